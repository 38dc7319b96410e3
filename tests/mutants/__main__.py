"""``python -m tests.mutants``: many mutants of real models, and what failed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.mutant_sources import models
from mutants.mutant_tasks import make, run


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
    print(f"\n{len(paths)} models, {time.monotonic() - began:.0f} s: {found.summary()}")
    counts = found.reached["mutations"].most_common()
    print("  " + ", ".join(f"{name} {count}" for name, count in counts))
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
