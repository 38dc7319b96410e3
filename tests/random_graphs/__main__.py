import argparse
import sys
import time

import onnx

from .generate import op_types
from .graph_check import BRANCHES, DEFAULT, FACTS, VARIANTS
from .graph_runs import generated, run
from .split_check import SPLITS

MAKERS = {
    "ops": ("generate", DEFAULT),
    "mutants": ("mutants", DEFAULT),
    "branches": ("branch_models", BRANCHES),
    "broadcasts": ("broadcast_models", DEFAULT),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--of", choices=MAKERS, default="ops", help="what the graphs are made of")
    parser.add_argument("--models", help="of mutants: a folder; without it the repository's own")
    parser.add_argument(
        "--variants",
        help=f"of {', '.join((*VARIANTS, *SPLITS, FACTS))}; without it those that keep every bit",
    )
    parser.add_argument("--write", metavar="FILE", help="write the model of the seed, and no more")
    parser.add_argument(
        "--shrink",
        type=float,
        default=40.0,
        metavar="SECONDS",
        help="spent on making a failing model small; 0 leaves it",
    )
    given = parser.parse_args()
    module, variants = MAKERS[given.of]
    make = (module, given.models) if given.models else (module,)
    if given.write:
        onnx.save(generated(make, given.seed).model, given.write)
        return 0
    began = time.monotonic()
    found = run(
        range(given.seed, given.seed + given.graphs),
        tuple(given.variants.split(",")) if given.variants else variants,
        make,
        seconds_to_shrink=given.shrink,
        show=lambda line: print(line, flush=True),
    )
    print(f"\n{found.summary()}\n{time.monotonic() - began:.0f} s")
    if given.of == "ops":
        never = [op for op in op_types(21) if op not in found.reached["ops"]]
        print(f"ops never reached: {', '.join(never)}")
    print(", ".join(f"{name} {n}" for name, n in found.reached["done"].most_common()))
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
