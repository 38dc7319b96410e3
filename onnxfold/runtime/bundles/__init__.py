"""Split models: their manifest, their folder on the disk, and sessions on their parts."""
