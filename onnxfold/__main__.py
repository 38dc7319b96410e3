"""`python -m onnxfold`: the command line."""

import sys

from onnxfold.cli import main

if __name__ == "__main__":
    sys.exit(main())
