"""Tests of branches that need no Spark."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dagster_ips.spark.branches import Branch

_CONFLICT = RuntimeError("(org.apache.iceberg.exceptions.CommitFailedException) Table metadata refresh is required")


def _session(*outcomes: Exception | None) -> Mock:
    return Mock(sql=Mock(side_effect=outcomes))


def test_a_branch_is_created_although_other_runs_commit_at_the_same_moment() -> None:
    session = _session(_CONFLICT, _CONFLICT, None)
    Branch("lake", "media.plays", "ips_1").create(session, head=None)
    assert [call.args for call in session.sql.call_args_list] == [session.sql.call_args.args] * 3


def test_creating_a_branch_gives_up_when_every_attempt_conflicts() -> None:
    with pytest.raises(RuntimeError, match="CommitFailedException"):
        Branch("lake", "media.plays", "ips_1").create(_session(*[_CONFLICT] * 9), head=None)


def test_creating_a_branch_is_not_repeated_after_any_other_error() -> None:
    session = _session(RuntimeError("no such table"), None)
    with pytest.raises(RuntimeError, match="no such table"):
        Branch("lake", "media.plays", "ips_1").create(session, head=None)
    assert session.sql.call_count == 1
