"""Where the example's tables are: one folder with a SQLite catalog and a warehouse."""

import os
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

CATALOG = "lake"
SPARK_CONFIG = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's default, 200, is for clusters: here, starting tasks would take four fifths of the time.
    "spark.sql.shuffle.partitions": "8",
}
"""The settings of every Spark session in the example."""


def lake_folder() -> Path:
    """The folder that ``PLAYBACK_LAKE`` names, else ``.local/lake`` in the current folder. It need not exist yet.

    >>> os.environ["PLAYBACK_LAKE"] = "/data/lake"
    >>> lake_folder().as_posix()
    '/data/lake'
    >>> del os.environ["PLAYBACK_LAKE"]
    """
    return Path(os.environ.get("PLAYBACK_LAKE") or ".local/lake").absolute()


def open_catalog(folder: Path) -> SqlCatalog:
    """The catalog in ``folder``, for PyIceberg; folder and catalog are created if they are missing.

    Spark must use the same name for the catalog, because the catalog's database lists the tables under that name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Spark commits to the same file; without a timeout, a short lock would be an error.
    return SqlCatalog(CATALOG, uri=f"sqlite:///{folder}/catalog.db?timeout=30", warehouse=f"file://{folder}/warehouse")
