"""The tests that are skipped on Windows, and where Windows is simulated, with the reasons."""

SIGNALS = "sends POSIX signals"

POSIX_ONLY = {
    "tests/cli/test_processes.py::test_signals": SIGNALS,
    "tests/cli/test_processes.py::test_what_is_ignored_stays_ignored": SIGNALS,
    "tests/faults/test_kills.py": "forks, and sends POSIX signals",
    "tests/isolated/test_forks.py": "forks",
    "tests/isolated/test_isolated.py::test_everything_ends_with_the_caller": SIGNALS,
    "tests/packaging/test_read_only.py": "removes the permission to write to folders",
    "tests/portability/test_simulations.py": "simulates other systems itself",
    "tests/runtime/onnx_mlir/test_container.py::test_it_ends_with_its_caller": SIGNALS,
    "tests/runtime/test_forked_sessions.py": "forks",
    "tests/storage/test_save.py::test_modes": "reads and changes permissions of POSIX",
    "tests/storage/test_save_failures.py::test_kill_at_every_rename": "forks",
}
"""Reasons by module, or by module and function."""


def posix_only(node_id: str) -> str | None:
    """Return the reason to skip a module or test; None if it runs on Windows."""
    name = node_id.partition("[")[0]
    return POSIX_ONLY.get(name) or POSIX_ONLY.get(name.partition("::")[0])
