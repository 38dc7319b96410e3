"""``python -m tests.faults``: many kills and terminations; prints figures, and faults if any.

``--compilations N`` ends compilations for runtime_fold instead, by signals and time limits, and
``--folds N`` kills processes that share a folder of folded tensors.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .compilations import endings
from .folds import killed
from .kills import strikes


def main() -> int:
    """Run them; the exit code is 1 if anything was lost or left behind."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many [200]")
    parser.add_argument("--compilations", type=int, help="end so many compilations instead")
    parser.add_argument("--folds", type=int, help="kill so many users of folded tensors instead")
    parser.add_argument("--seed", type=int, default=0, help="makes the moments [0]")
    parser.add_argument("--folder", help="work on this file system [the temporary folder]")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.compilations:
            count = options.compilations
            outcome = endings(count, options.seed, Path(folder))
        elif options.folds:
            count = options.folds
            outcome = killed(count, options.seed, Path(folder) / "folds")
        else:
            count = options.kills
            outcome = strikes(count, options.seed, Path(folder))
    for text, number in sorted(outcome.counts.items()):
        print(f"{number:6}  {text}")
    for fault in outcome.faults:
        print("FAULT ", fault)
    print(f"{count} ended, {len(outcome.faults)} faults, {time.monotonic() - began:.0f} s")
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
