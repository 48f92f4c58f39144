"""What the code server of the backfill's test serves: the three stages, in folders that the environment names.

The bug is there as long as the file that the environment names is.
"""

import os
from pathlib import Path

from tests.backfill.three_stages import three_stages

defs = three_stages(
    Path(os.environ["SOAK_LAKE"]), Path(os.environ["SOAK_SPARK"]), bug=Path(os.environ["SOAK_BUG"]).exists()
)
