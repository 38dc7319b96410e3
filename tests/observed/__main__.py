"""Run sessions on random sequences of inputs: ``python -m tests.observed RUNS [SEED]``."""

import sys

from tests.temporary_home import temporary_home

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with temporary_home("observed-"):
        from tests.observed.sequences import main

        code = main([*sys.argv[1:], "0"][:2])
    sys.exit(code)
