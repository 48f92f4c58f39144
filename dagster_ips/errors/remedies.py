"""The runs by which a person answers an error: each as a command, and as the run tag to set in Dagster's UI.

``of`` is an asset's key, or the name of its table where only that is known; ``dagster-ips run`` takes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import join


def full_run(of: str) -> str:
    """A run that computes everything.

    Example:
        >>> full_run("daily")
        "dagster-ips run daily --full; or run it in Dagster's UI with the run tag dagster_ips/mode=full"
    """
    return _run(of, ["--full"], "mode=full")


def accepting_run(of: str, snapshot_id: int) -> str:
    """A run that continues with what others wrote up to a snapshot."""
    return _run(of, ["--accept", str(snapshot_id)], f"accept={snapshot_id}")


def run_taking_over(of: str, owner: str) -> str:
    """A run of a renamed asset, whose table belongs to its old name."""
    return _run(of, ["--take-over", owner], f"take_over={owner}")


def run_ignoring_removed(of: str) -> str:
    """A run that ignores the rows that were removed upstream."""
    return _run(of, ["--ignore-removed"], "on_removed=ignore")


def _run(of: str, options: Sequence[str], tag: str) -> str:
    command = join(["dagster-ips", "run", of, *options])
    return f"{command}; or run it in Dagster's UI with the run tag dagster_ips/{tag}"
