"""Answer requests in forked and spawned processes: ``python -m tests.servers SECONDS [SEED]``."""

import os
import sys
import tempfile

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="servers-") as home:
        os.environ["XDG_CACHE_HOME"] = os.path.join(home, "cache")
        os.environ["TMPDIR"] = os.path.join(home, "temporary")
        tempfile.tempdir = os.environ["TMPDIR"]
        os.mkdir(tempfile.tempdir)
        from tests.servers.servers import main

        code = main([*sys.argv[1:], "0"][:2])
    sys.exit(code)
