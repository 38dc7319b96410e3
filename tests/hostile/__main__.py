"""``python -m tests.hostile --files N --seed S``: run hostile files, list the failures by class."""

import argparse
import sys
import time
from pathlib import Path

from tests.hostile.net import CORPUS, run


def main() -> int:
    """Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="how many files to make")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other files")
    parser.add_argument("--reproduce", type=int, metavar="NUMBER", help="one file")
    parser.add_argument("--keep", type=Path, help="folder for files that failed")
    given = parser.parse_args()
    numbers = range(-len(CORPUS), given.files)
    if given.reproduce is not None:
        numbers = range(given.reproduce, given.reproduce + 1)
    began = time.monotonic()
    found = run(given.seed, numbers, keep=given.keep, show=lambda text: print(text, flush=True))
    print(f"\n{found.summary()}\n{time.monotonic() - began:.0f} s")
    for what, count in sorted(found.reached["steps"].items()):
        print(f"{count:7} {what}")
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
