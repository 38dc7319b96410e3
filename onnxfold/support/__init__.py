"""The operating system, processes, files, tables and errors."""
