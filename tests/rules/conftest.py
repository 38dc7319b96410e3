"""The helper that certifies rules is beside the tests of the language."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "rewrite"))
