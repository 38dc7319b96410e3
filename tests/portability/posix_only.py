"""Tests that are skipped on Windows and on simulated Windows, with reasons."""

CONTAINERS = "onnx-mlir's containers run on Linux only"
FILES_IN_USE = "replaces or removes files that are in use"
FORKS = "forks"
KINDS = "creates a kind of file that Windows lacks"
MODES = "changes POSIX permissions"
SIGNALS = "sends POSIX signals"

CHANGES = "tests/faults/test_changing_sources.py"
COMPILE_AHEAD = "tests/runtime/test_compile_ahead.py"
FILE_SYSTEMS = "tests/faults/test_file_systems.py"
ISOLATED = "tests/isolated/test_isolated.py"
NAMES = "tests/faults/test_names_and_kinds.py"
ONNX_MLIR = "tests/runtime/onnx_mlir"

POSIX_ONLY = {
    "tests/cli/test_processes.py::test_signal_ends_the_command": SIGNALS,
    "tests/cli/test_processes.py::test_ignored_signals_remain_ignored": SIGNALS,
    f"{CHANGES}::test_changed_sources_are_rejected[replace]": FILES_IN_USE,
    f"{CHANGES}::test_sources_that_another_program_replaces_are_rejected": FILES_IN_USE,
    f"{CHANGES}::test_removed_files_can_still_be_read": FILES_IN_USE,
    f"{FILE_SYSTEMS}::test_several_processes_write_the_same_output": FORKS,
    f"{FILE_SYSTEMS}::test_several_processes_optimize_in_place": FORKS,
    "tests/faults/test_kills.py": "forks, and sends POSIX signals",
    f"{NAMES}::test_special_files_are_rejected[device]": KINDS,
    f"{NAMES}::test_special_files_are_rejected[fifo]": KINDS,
    f"{NAMES}::test_special_files_are_rejected[loop]": KINDS,
    f"{NAMES}::test_special_files_are_rejected[socket]": KINDS,
    f"{NAMES}::test_many_data_files": "limits the number of open files",
    "tests/isolated/test_forks.py": FORKS,
    f"{ISOLATED}::test_command_that_exceeds_its_time_is_terminated_first": SIGNALS,
    f"{ISOLATED}::test_function_that_exceeds_its_time_can_clean_up": (
        "Windows does not interrupt a thread that sleeps"
    ),
    f"{ISOLATED}::test_processes_end_with_their_caller": SIGNALS,
    f"{ISOLATED}::test_child_processes_of_a_command_end_with_it": (
        "Windows has no process groups like those of POSIX"
    ),
    "tests/packaging/test_read_only.py": MODES,
    "tests/portability/test_simulations.py": "starts simulations of other systems",
    f"{ONNX_MLIR}/test_container.py": CONTAINERS,
    f"{ONNX_MLIR}/test_double.py::test_kernels_can_be_compiled_in_a_container": CONTAINERS,
    f"{ONNX_MLIR}/test_double.py::test_stages_need_a_compiler": CONTAINERS,
    f"{ONNX_MLIR}/test_tool.py": CONTAINERS,
    f"{COMPILE_AHEAD}::test_the_reason_names_a_killed_compilation": SIGNALS,
    f"{COMPILE_AHEAD}::test_a_process_that_ends_leaves_no_process[kill]": SIGNALS,
    f"{COMPILE_AHEAD}::test_a_forked_process_does_not_wait_for_a_fold_of_another_thread": FORKS,
    f"{COMPILE_AHEAD}::test_a_forked_process_does_not_end_the_compilation_of_its_parent": FORKS,
    f"{COMPILE_AHEAD}::test_a_session_that_ends_in_a_forked_process_leaves_no_process": FORKS,
    f"{COMPILE_AHEAD}::test_a_forked_process_folds_with_kernels_of_its_parent": FORKS,
    "tests/runtime/test_forked_sessions.py": FORKS,
    "tests/runtime/test_kernel_cache.py::test_a_read_only_cache_is_read": MODES,
    "tests/runtime/test_store.py::test_a_folder_that_others_may_write_to_is_refused": MODES,
    "tests/storage/test_save.py::test_modes": MODES,
    "tests/storage/test_save_failures.py::test_kill_at_every_rename": FORKS,
}
"""Reasons by test. A key is a module, a function of a module, or a function with a parameter."""


def posix_only(node_id: str) -> str | None:
    """Return the reason to skip a module or test, or None if it runs on Windows."""
    function, _, parameters = node_id.partition("[")
    names = [function.partition("::")[0], function]
    names += [f"{function}[{parameter}]" for parameter in parameters.rstrip("]").split("-")]
    return next((POSIX_ONLY[name] for name in names if name in POSIX_ONLY), None)
