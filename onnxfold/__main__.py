"""Run the command line with `python -m onnxfold`."""

import sys

from onnxfold.cli import main

if __name__ == "__main__":
    sys.exit(main())
