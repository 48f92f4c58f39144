"""Dates that Spark has and Python hasn't: a run that must know one says so."""

from __future__ import annotations

import pickle

import pytest

from dagster_ips.errors import OutOfRangeDateError
from dagster_ips.spark.writes.partition_filter import collected
from tests.support.lake import Lake


@pytest.mark.parametrize(
    "value", ["DATE'-0044-03-15'", "TIMESTAMP_NTZ'+55555-01-01 00:00:00'", "TIMESTAMP_LTZ'+55555-01-01 00:00:00Z'"]
)
def test_a_date_that_python_has_not_is_an_error_that_names_its_column(lake: Lake, value: str) -> None:
    with pytest.raises(OutOfRangeDateError, match="A value of day lies before the year 1 or after 9999") as caught:
        collected(lake.sql(f"SELECT {value} AS day, 1 AS number"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
