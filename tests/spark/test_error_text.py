"""What Spark's errors are about is told by their text only where that is certain."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from dagster_ips.spark.error_text import is_of_long_path

FOLDER = "java.io.IOException: Mkdirs failed to create file:/lake/media/some/data/account={} (exists=false, cwd=file:/)"


@pytest.mark.parametrize(
    ("said", "is_long"),
    [
        (FOLDER.format("%C3%A9" * 60), True),
        (FOLDER.format("ada"), False),
        ("java.io.FileNotFoundException: /lake/a.parquet (File name too long)", True),
        ("S3Exception: Your key is too long (Status Code: 400, KeyTooLongError)", True),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_a_folder_that_cannot_be_made_is_of_a_long_name_only_if_a_part_of_its_path_is_long(
    said: str, *, is_long: bool
) -> None:
    assert is_of_long_path(PySparkException(f"Job aborted.\nCaused by: {said}")) is is_long
