"""``python -m tests.faults``: many kills and terminations; prints figures, and faults if any."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .kills import strikes


def main() -> int:
    """Run them; the exit code is 1 if anything was lost or left behind."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many [200]")
    parser.add_argument("--seed", type=int, default=0, help="makes the moments [0]")
    parser.add_argument("--folder", help="work on this file system [the temporary folder]")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        outcome = strikes(options.kills, options.seed, Path(folder))
    for text, number in sorted(outcome.counts.items()):
        print(f"{number:6}  {text}")
    for fault in outcome.faults:
        print("FAULT ", fault)
    print(
        f"{options.kills} signals, {len(outcome.faults)} faults, {time.monotonic() - began:.0f} s"
    )
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
