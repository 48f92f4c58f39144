"""What maintenance may expire, so that every consumer still reads what it hasn't read yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.expiry_limit import Expiry, Need, expiry, refs_to_hold

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


@pytest.mark.parametrize(("number", "found"), [(2, Expiry(30, "behind")), (1, Expiry(100)), (0, Expiry(100))])
def test_what_follows_a_consumed_snapshot_is_kept_even_if_its_expiry_removed_the_parents_id(
    number: int, found: Expiry
) -> None:
    """As PyIceberg does. The next sequence number still shows that nothing is missing in between."""
    counts = {"total-data-files": "3", "added-data-files": "1"}
    oldest = replace(HISTORY[3], parent_id=None, summary=counts)
    retained = {3: oldest, 4: HISTORY[4], 5: HISTORY[5]}
    ancestries = {"main": Ancestry.of(retained, head_snapshot_id=5)}
    need = Need("behind", "main", 2, number)
    assert expiry([need], retained, ancestries, wanted_ms=100) == found


@pytest.mark.parametrize(
    ("need", "found"),
    [
        (Need("behind", "main", 2), {"main": "behind"}),
        (Need("nearly done", "main", 4), {}),
        (Need("of a branch", "audit", 2), {"main": "of a branch"}),  # the branch keeps what main would lose, too
        (Need("unknown", "main", None), {"main": "unknown"}),
    ],
)
def test_a_branch_is_held_if_it_would_expire_what_a_consumer_needs_by_its_own_age(
    need: Need, found: dict[str, str]
) -> None:
    ancestries = {"main": Ancestry.of(HISTORY, head_snapshot_id=5), "audit": Ancestry.of(HISTORY, head_snapshot_id=4)}
    assert refs_to_hold([need], HISTORY, ancestries, kept_from_ms={"main": 40}) == found
