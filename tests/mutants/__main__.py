"""``python -m tests.mutants``: many mutants of real models, and what failed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.run import run
from mutants.sources import models
from mutants.tasks import make


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--models", help="a folder; without it the repository's own")
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first mutant")
    parser.add_argument("--write", metavar="FILE", help="write the mutant of the seed, and no more")
    given = parser.parse_args()
    paths = models(given.models)
    if given.write:
        case, done = make(paths[given.seed % len(paths)], given.seed)
        Path(given.write).write_bytes(case.model.SerializeToString())
        print(", ".join(done))
        return 0
    began = time.monotonic()
    seeds = range(given.seed, given.seed + given.mutants)
    found = run(paths, seeds, lambda text: print(text, flush=True))
    print(
        f"\n{found.mutants} mutants of {len(paths)} models checked in "
        f"{time.monotonic() - began:.0f} s, {sum(found.discarded.values())} discarded, "
        f"{len(found.classes)} classes of failures"
    )
    for reason, count in found.discarded.most_common(12):
        print(f"  discarded {count}: {reason}")
    for key, seeds_of in sorted(found.classes.items(), key=lambda item: -len(item[1])):
        print(f"  {len(seeds_of):4} {key}   {seeds_of[:8]}")
    print("  " + ", ".join(f"{name} {count}" for name, count in found.mutations.most_common()))
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
