"""The definitions of the soak's code server: the two-stage pipeline, in folders named by environment variables."""

import os
from pathlib import Path

from tests.support.pipeline import pipeline

defs = pipeline(Path(os.environ["SOAK_LAKE"]), Path(os.environ["SOAK_SPARK"]))
