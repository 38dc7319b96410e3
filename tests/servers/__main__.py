"""Answer requests in forked and spawned processes: ``python -m tests.servers SECONDS [SEED]``."""

import sys

from tests.temporary_home import temporary_home

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with temporary_home("servers-"):
        from tests.servers.servers import main

        code = main([*sys.argv[1:], "0"][:2])
    sys.exit(code)
