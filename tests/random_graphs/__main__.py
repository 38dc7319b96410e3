"""``python -m tests.random_graphs``: many graphs, what failed and what was reached."""

from __future__ import annotations

import argparse
import sys
import time

from .generate import op_types
from .graph_check import DEFAULT, FACTS, VARIANTS
from .graph_runs import run
from .split_check import SPLITS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument(
        "--variants",
        default=",".join(DEFAULT),
        help=f"of {', '.join((*VARIANTS, *SPLITS, FACTS))}; without it those that keep every bit",
    )
    parser.add_argument("--reproduce", type=int, metavar="SEED", help="one graph, printed")
    parser.add_argument(
        "--shrink",
        type=float,
        default=40.0,
        metavar="SECONDS",
        help="spent on making a failing model small; 0 leaves it",
    )
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
    never = [op for op in op_types(21) if op not in found.reached["ops"]]
    print(f"ops never reached: {', '.join(never)}")
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
