"""Kill and end many commands at random moments, and report lost models and remaining files.

Run it with ``python -m tests.faults``. ``--compilations N`` ends compilations of runtime_fold
instead, by signals and time limits. ``--folds N`` kills processes that share a folder of folded
tensors.
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
    """Run the commands that the options select, and return whether there are faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="number of commands to end [200]")
    parser.add_argument("--compilations", type=int, help="number of compilations to end instead")
    parser.add_argument("--folds", type=int, help="number of users of a store to kill instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments [0]")
    parser.add_argument("--folder", help="folder for the files [the temporary folder]")
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
