"""The tests that are skipped on Windows, and where Windows is simulated, with the reasons."""

CONTAINERS = "onnx-mlir's containers run on Linux only"
MODES = "changes permissions of POSIX"
SIGNALS = "sends POSIX signals"

ISOLATED = "tests/isolated/test_isolated.py"

POSIX_ONLY = {
    "tests/cli/test_processes.py::test_signals": SIGNALS,
    "tests/cli/test_processes.py::test_what_is_ignored_stays_ignored": SIGNALS,
    "tests/faults/test_kills.py": "forks, and sends POSIX signals",
    "tests/isolated/test_forks.py": "forks",
    f"{ISOLATED}::test_everything_ends_with_the_caller": SIGNALS,
    f"{ISOLATED}::test_a_command_that_takes_too_long_is_asked_to_end_first": SIGNALS,
    f"{ISOLATED}::test_a_function_that_is_ended_can_clean_up": (
        "Windows does not interrupt a thread that sleeps"
    ),
    f"{ISOLATED}::test_what_a_command_has_started_ends_with_it": (
        "Windows has no groups of processes"
    ),
    "tests/packaging/test_read_only.py": "removes the permission to write to folders",
    "tests/portability/test_simulations.py": "simulates other systems itself",
    "tests/runtime/onnx_mlir/test_container.py": CONTAINERS,
    "tests/runtime/onnx_mlir/test_double.py::test_by_a_container_it_is_the_same": CONTAINERS,
    "tests/runtime/onnx_mlir/test_double.py::test_stages_need_a_compiler": CONTAINERS,
    "tests/runtime/onnx_mlir/test_tool.py": CONTAINERS,
    "tests/runtime/test_forked_sessions.py": "forks",
    "tests/runtime/test_kernel_cache.py::test_a_cache_that_nobody_may_write_to_is_read": MODES,
    "tests/runtime/test_store.py::test_a_folder_that_others_may_write_to_is_refused": MODES,
    "tests/storage/test_save.py::test_modes": MODES,
    "tests/storage/test_save_failures.py::test_kill_at_every_rename": "forks",
}
"""Reasons by module, or by module and function."""


def posix_only(node_id: str) -> str | None:
    """Return the reason to skip a module or test; None if it runs on Windows."""
    name = node_id.partition("[")[0]
    return POSIX_ONLY.get(name) or POSIX_ONLY.get(name.partition("::")[0])
