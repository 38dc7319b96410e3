from hypothesis import settings

# The same examples in every run: a change is judged by what it changes.
# `HYPOTHESIS_PROFILE=explore pytest` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)


def pytest_configure() -> None:
    import os

    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
