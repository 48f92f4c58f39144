"""What maintenance may expire, so that every consumer still reads what it hasn't read yet."""

from __future__ import annotations

import pytest

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.expiry_limit import Expiry, Need, expiry

HISTORY = {n: Snapshot(n, n - 1 or None, n, n * 10, "append", f"m{n}") for n in range(1, 6)}


@pytest.mark.parametrize(
    ("expired_up_to", "found"), [(1, Expiry(20, "behind")), (2, Expiry(30, "behind")), (3, Expiry(100))]
)
def test_what_follows_a_consumed_snapshot_is_kept_as_long_as_it_can_be_followed_even_if_that_one_has_expired(
    expired_up_to: int, found: Expiry
) -> None:
    retained = {number: snapshot for number, snapshot in HISTORY.items() if number > expired_up_to}
    ancestries = {"main": Ancestry.of(retained, head_snapshot_id=5)}
    assert expiry([Need("behind", "main", 2)], retained, ancestries, wanted_ms=100) == found
