"""Every table has a name, and a name means exactly one table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.table_name import name_of, parts_of

parts = st.lists(st.text("ab.` é-", min_size=1), min_size=1, max_size=4)


@given(parts)
def test_a_name_can_be_split_into_the_parts_it_was_made_of(made_of: list[str]) -> None:
    assert list(parts_of(name_of(made_of))) == made_of


def test_unnecessary_backquotes_do_not_change_a_name() -> None:
    assert name_of(parts_of("`media`.`playback`")) == "media.playback"


@pytest.mark.parametrize(
    "name", ["", ".", "media.", ".playback", "media..playback", "`media", "media.``", "a`b", "`a`b"]
)
def test_an_ambiguous_or_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="empty part or an unmatched backquote"):
        parts_of(name)
