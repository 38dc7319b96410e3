"""``python -m tests.hostile --files N --seed S``: run hostile files, list the failures by class."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.hostile.net import Net, Outcome, case, corpus


def main() -> int:
    """Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="how many files to make")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other files")
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--seconds", type=float, help="stop after as many")
    parser.add_argument("--own", action="store_true", help="without onnx's own test models")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="further seeds")
    parser.add_argument("--keep", type=Path, help="folder for files that failed")
    parser.add_argument("--run", type=Path, nargs="*", help="run these files instead")
    parser.add_argument("--steps", help="these steps instead: load,-O1,-O2,inspect,...")
    given = parser.parse_args()
    steps = tuple(given.steps.split(",")) if given.steps else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        net = Net(Path(folder))
        try:
            if given.run is not None:
                from tests.hostile.net import Case

                for path in given.run:
                    net.run(Case(str(path), path.read_bytes(), ""), steps)
            else:
                for one in corpus():
                    net.run(one, steps)
                for number in range(given.first, given.first + given.files):
                    if given.seconds is not None and time.monotonic() - began > given.seconds:
                        print(f"stopped before file {number}")
                        break
                    net.run(
                        case(given.seed, number, tuple(given.more), all_ops=not given.own), steps
                    )
        finally:
            net.close()
    print_outcome(net.outcome, given.keep)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if net.outcome.failures else 0


def print_outcome(outcome: Outcome, keep: Path | None) -> None:
    """The counts, then each class of failures with an example."""
    for what, count in sorted(outcome.counts.items()):
        print(f"{count:7} {what}")
    print(f"{outcome.peak / 1e6:7.0f} MB peak beside the file")
    for text, count in outcome.refusals.most_common(30):
        print(f"{count:7} refused, but onnxruntime loads it{text}")
    ranked = sorted(outcome.failures.items(), key=lambda item: -item[1].count)
    for kind, failures in ranked:
        one, result = failures.examples[0]
        print(f"\n{failures.count} x {kind}\n  {one.name} ({one.about:.200}), {result['step']}")
        print(f"  {result['message'][:300]}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for number, (each, found) in enumerate(failures.examples):
                name = "".join(c if c.isalnum() else "_" for c in kind)[:80]
                (keep / f"{name}-{number}.onnx").write_bytes(each.data)
                (keep / f"{name}-{number}.txt").write_text(
                    f"{each.name} {each.about}\n{found}\n" + found.get("trace", ""),
                    errors="replace",
                )


if __name__ == "__main__":
    sys.exit(main())
