"""Where the example's tables are: one folder with a SQLite catalog and a warehouse beside it."""

import os
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

CATALOG = "lake"
SPARK_CONFIG = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's default, 200, is for clusters: here four fifths of the time would go into starting tasks.
    "spark.sql.shuffle.partitions": "8",
}
"""What every job of the example sets in its Spark session."""


def lake_folder() -> Path:
    """The folder that ``PLAYBACK_LAKE`` names, else ``.local/lake`` in the current folder. It need not exist yet.

    >>> os.environ["PLAYBACK_LAKE"] = "/data/lake"
    >>> lake_folder().as_posix()
    '/data/lake'
    >>> del os.environ["PLAYBACK_LAKE"]
    """
    return Path(os.environ.get("PLAYBACK_LAKE") or ".local/lake").absolute()


def open_catalog(folder: Path) -> SqlCatalog:
    """The catalog in ``folder``, for PyIceberg; folder and catalog are made if they are missing.

    Spark must know it by the same name: the catalog's database lists tables under it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Spark commits to the same file; without a timeout a moment's lock would be an error.
    return SqlCatalog(CATALOG, uri=f"sqlite:///{folder}/catalog.db?timeout=30", warehouse=f"file://{folder}/warehouse")
