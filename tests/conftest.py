"""Select the hypothesis profile. On Windows, skip the tests that require POSIX."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.portability.posix_only import posix_only

ROOT = Path(__file__).parents[1]

# The profile "fixed" draws the same examples in every run, so that a new failure has a cause in
# the code. `HYPOTHESIS_PROFILE=explore pytest` draws new examples.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)


def pytest_configure() -> None:
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


class SkippedModule(pytest.Module):
    """A test module that is not imported because it needs functions that the system lacks."""

    reason = ""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(self.reason, allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    reason = posix_only(module_path.relative_to(ROOT).as_posix())
    if sys.platform != "win32" or reason is None:
        return None
    module = SkippedModule.from_parent(parent, path=module_path)
    module.reason = reason
    return module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform == "win32":
        for item in items:
            reason = posix_only(item.nodeid)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
