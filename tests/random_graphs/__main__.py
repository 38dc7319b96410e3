"""``python -m tests.random_graphs``: many graphs, what failed and what was reached."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .check import DEFAULT, VARIANTS
from .coverage import kernel_names, rule_names
from .generate import op_types
from .run import run
from .split_check import SPLITS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument(
        "--variants",
        default=",".join(DEFAULT),
        help=f"of {', '.join((*VARIANTS, *SPLITS))}; without it those that keep every bit in one",
    )
    parser.add_argument("--reproduce", type=int, metavar="SEED", help="one graph, printed")
    parser.add_argument(
        "--shrink",
        type=float,
        default=40.0,
        metavar="SECONDS",
        help="spent on making a failing model small; 0 leaves it",
    )
    parser.add_argument("--coverage", action="store_true", help="list what was seldom reached")
    given = parser.parse_args()
    variants = tuple(given.variants.split(","))
    if given.reproduce is not None:
        given.seed, given.graphs = given.reproduce, 1
    began = time.monotonic()
    found = run(
        range(given.seed, given.seed + given.graphs),
        variants,
        seconds_to_shrink=given.shrink,
        show=lambda line: print(line, flush=True),
    )
    print(f"\n{found.summary()}\n{time.monotonic() - began:.0f} s")
    _reached("ops", found.reached["ops"], op_types(21), 20, given.coverage)
    _reached("kernels", found.reached["kernels"], kernel_names(), 50, given.coverage)
    _reached("rules", found.reached["rules"], rule_names(), 20, given.coverage)
    return 1 if found.classes else 0


def _reached(what: str, counts: Counter[str], known: list[str], often: int, listed: bool) -> None:
    seldom = sorted((counts[name], name) for name in known if counts[name] < often)
    never = sum(not count for count, _ in seldom)
    print(
        f"{what}: {len(known)} known, {never} never reached, {len(seldom)} less than {often} times"
    )
    if listed:
        print("   " + ", ".join(f"{name} {count}" for count, name in seldom))


if __name__ == "__main__":
    sys.exit(main())
