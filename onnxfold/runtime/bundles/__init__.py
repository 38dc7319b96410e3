"""Split models: what describes them, their folder on the disk, and opening their parts."""
