"""Optimize hostile files and list the failures by class.

Usage: ``python -m tests.hostile --files N --seed S``.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.hostile.net import CORPUS, run


def main() -> int:
    """Run the command and return the exit code: 1 if a file failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="number of generated files")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated files")
    parser.add_argument("--reproduce", type=int, metavar="NUMBER", help="run only this file")
    parser.add_argument("--keep", type=Path, help="folder for one failed file of each class")
    args = parser.parse_args()
    numbers = range(-len(CORPUS), args.files)
    if args.reproduce is not None:
        numbers = range(args.reproduce, args.reproduce + 1)
    start = time.monotonic()
    found = run(args.seed, numbers, keep=args.keep, show=lambda text: print(text, flush=True))
    print(f"\n{found.summary()}\n{time.monotonic() - start:.0f} s")
    for outcome, count in sorted(found.reached["steps"].items()):
        print(f"{count:7} {outcome}")
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
