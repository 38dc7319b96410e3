"""``python -m tests.benchmarks NAME``: run one of the benchmarks that the documentation cites.

``peers`` compares the results of onnxfold and other tools on many models (package ``peers``).
``census`` lists the rules, kernels and engines that models use (``census.py``). ``sessions`` times
runs with and without runtime constants (``sessions.py``). ``kernels`` times folds with and without
compiled kernels (``kernels.py``). ``shapes`` compares the types that onnxfold and other tools infer
(``shape_inference.py``).

The exit code is 1 if ``kernels`` finds that `auto` is too slow, otherwise 0.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.census import census
from tests.benchmarks.kernels import kernels
from tests.benchmarks.peers import peers
from tests.benchmarks.peers.judge import Limits
from tests.benchmarks.peers.production import production
from tests.benchmarks.sessions import sessions
from tests.benchmarks.shape_inference import shapes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=["peers", "census", "sessions", "kernels", "shapes"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", default=[], help="a model, not for sessions")
    parser.add_argument("--output", type=Path, help="where to write tables and figures")
    parser.add_argument("--jobs", type=int, default=1, help="for census: parallel processes")
    parser.add_argument("--full", action="store_true", help="for kernels: a model of 1 GB")
    parser.add_argument("--busy", type=int, default=0, help="for kernels: number of busy loops")
    others = parser.add_argument_group("peers and shapes")
    others.add_argument("--environment", type=Path, help="the tools' virtual environment")
    others.add_argument("--nodes", type=int, nargs="*", default=[], help="lengths of added chains")
    others.add_argument(
        "--gigabytes", type=float, nargs="*", default=[], help="sizes of added transformers"
    )
    others.add_argument(
        "--production", action="store_true", help="use models of packages; --model is then a glob"
    )
    others.add_argument("--seconds", type=float, default=300, help="time limit of a tool")
    others.add_argument("--memory", type=float, help="memory limit of a tool in GB")
    given = parser.parse_args()
    is_fast = True
    limits = Limits(given.seconds, given.memory and int(given.memory * 1e9))
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        common = (Path(folder), given.rounds, given.model)
        if given.name == "sessions":
            sessions(given.rounds)
        elif given.name == "kernels":
            options = {"full": given.full, "models": given.model, "busy": given.busy}
            is_fast = kernels(Path(folder), given.rounds, **options)
        elif given.name == "shapes":
            shapes(Path(folder), given.model, given.environment, given.output, limits)
        elif given.name == "census":
            census(given.model, given.output, given.jobs)
        elif given.production:
            production(*common, given.environment, given.output, limits)
        else:
            peers(*common, given.environment, given.output, given.nodes, given.gigabytes, limits)
    print(f"{time.perf_counter() - begin:.0f} s in all")
    sys.exit(not is_fast)


if __name__ == "__main__":
    main()
