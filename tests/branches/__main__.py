"""``python -m tests.branches --models N --seed S``: optimize such models, list what is wrong."""

from __future__ import annotations

import argparse
import sys

from tests.branches.branch_models import failures


def main() -> int:
    """Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.branches", description=__doc__)
    parser.add_argument("--models", type=int, default=1000, help="how many models to make")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other models")
    given = parser.parse_args()
    count = 0
    for number in range(given.models):
        for text in failures(given.seed, number):
            print(text, flush=True)
            count += 1
    print(f"{given.models} models, {count} failures")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
