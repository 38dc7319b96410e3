"""The operating system: the only modules that depend on whether this is Linux, macOS or Windows.

Other modules use functions of this package and the portable part of `os` only;
`tests/packaging/test_operating_systems.py` checks that. Differences that callers must consider are
values such as `CAN_REPLACE_OPEN_FILES`. psutil and subprocess are imported at their first use,
because importing them takes longer than importing onnxfold.
"""

from onnxfold.support.system.cpus import (
    CPU_LEVELS,
    IS_LINUX,
    cpu_features,
    cpu_levels,
    processors,
    system_and_machine,
)
from onnxfold.support.system.files import (
    CAN_REPLACE_OPEN_FILES,
    TEMPORARY_FOLDER_VARIABLES,
    allow_open_files,
    copy_permissions,
    copy_range,
    create_file,
    open_to_read,
    pread,
    pwrite,
    release_pages,
    sync_data,
    sync_file,
    sync_folder,
    sync_path,
    user_and_group,
    writable_by_others,
)
from onnxfold.support.system.limits import (
    CPU_LIMIT_CODE,
    MEMORY_LIMIT_CODE,
    WATCHED_CPU_CODE,
    limited,
    watched,
)
from onnxfold.support.system.memory import (
    allocatable_memory,
    available_memory,
    load_library,
    memory_comparison,
    memory_of_the_machine,
    peak_rss_bytes,
    rss_bytes,
    trim_heap,
    unload_library,
)
from onnxfold.support.system.processes import (
    call_at_forks,
    end_group,
    lower_priority,
    request_end_of_own_group,
    start_group,
)

__all__ = [
    "CAN_REPLACE_OPEN_FILES",
    "CPU_LEVELS",
    "CPU_LIMIT_CODE",
    "IS_LINUX",
    "MEMORY_LIMIT_CODE",
    "TEMPORARY_FOLDER_VARIABLES",
    "WATCHED_CPU_CODE",
    "allocatable_memory",
    "allow_open_files",
    "available_memory",
    "call_at_forks",
    "copy_permissions",
    "copy_range",
    "cpu_features",
    "cpu_levels",
    "create_file",
    "end_group",
    "limited",
    "load_library",
    "lower_priority",
    "memory_comparison",
    "memory_of_the_machine",
    "open_to_read",
    "peak_rss_bytes",
    "pread",
    "processors",
    "pwrite",
    "release_pages",
    "request_end_of_own_group",
    "rss_bytes",
    "start_group",
    "sync_data",
    "sync_file",
    "sync_folder",
    "sync_path",
    "system_and_machine",
    "trim_heap",
    "unload_library",
    "user_and_group",
    "watched",
    "writable_by_others",
]
