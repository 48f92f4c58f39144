"""What the soak's code server serves: the two-stage pipeline, in folders that the environment names."""

import os
from pathlib import Path

from tests.support.pipeline import pipeline

defs = pipeline(Path(os.environ["SOAK_LAKE"]), Path(os.environ["SOAK_SPARK"]))
