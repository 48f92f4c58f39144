"""The definitions of the backfill test's code server: the three stages, in folders named by environment variables.

The code has the bug as long as the file named by ``SOAK_BUG`` exists.
"""

import os
from pathlib import Path

from tests.backfill.three_stages import three_stages

defs = three_stages(
    Path(os.environ["SOAK_LAKE"]), Path(os.environ["SOAK_SPARK"]), bug=Path(os.environ["SOAK_BUG"]).exists()
)
