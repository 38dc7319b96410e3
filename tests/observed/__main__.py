"""Run random sequences of inputs: ``python -m tests.observed RUNS [SEED]``."""

import os
import sys
import tempfile

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="observed-") as home:
        os.environ["XDG_CACHE_HOME"] = os.path.join(home, "cache")
        os.environ["TMPDIR"] = os.path.join(home, "temporary")
        tempfile.tempdir = os.environ["TMPDIR"]
        os.mkdir(tempfile.tempdir)
        from tests.observed.sequences import main

        code = main([*sys.argv[1:], "0"][:2])
    sys.exit(code)
