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
    parser.add_argument("--of", choices=MAKERS, default="ops", help="generator of the graphs")
    parser.add_argument("--models", help="folder of models for mutants; default: the repository")
    parser.add_argument(
        "--variants",
        help=f"names out of {', '.join((*VARIANTS, *SPLITS, FACTS))}; default: exact variants",
    )
    parser.add_argument("--write", metavar="FILE", help="write the model of the seed and exit")
    parser.add_argument(
        "--shrink",
        type=float,
        default=40.0,
        metavar="SECONDS",
        help="time limit for reducing a failing model; 0 disables the reduction",
    )
    args = parser.parse_args()
    module, variants = MAKERS[args.of]
    make = (module, args.models) if args.models else (module,)
    if args.write:
        onnx.save(generated(make, args.seed).model, args.write)
        return 0
    start = time.monotonic()
    found = run(
        range(args.seed, args.seed + args.graphs),
        tuple(args.variants.split(",")) if args.variants else variants,
        make,
        seconds_to_shrink=args.shrink,
        show=lambda line: print(line, flush=True),
    )
    print(f"\n{found.summary()}\n{time.monotonic() - start:.0f} s")
    if args.of == "ops":
        never = [op for op in op_types(21) if op not in found.reached["ops"]]
        print(f"ops never reached: {', '.join(never)}")
    print(", ".join(f"{name} {n}" for name, n in found.reached["done"].most_common()))
    return 1 if found.classes else 0


if __name__ == "__main__":
    sys.exit(main())
