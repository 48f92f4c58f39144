"""One attempt of one step: what it captured and wrote, between its first input and its last output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips.orchestration.run.runs import RunInputs
from dagster_ips.progress.lookups import LookedUp

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass
class StepTry:
    """What an attempt of a step has done so far.

    ``captured`` is what it reads, by the name of each asset that captures. It is None until an incremental input
    loads, and stays None if another IO manager reads the inputs. ``written_by_statements`` are the assets that wrote
    their tables themselves, with ``capture``; ``capturing`` are those and the ones whose block has begun. ``looked_up``
    are the tables that were read beside the incremental inputs, as they were then; ``lookups`` are frames of them.
    """

    captured: dict[str, RunInputs] | None = None
    written_by_statements: set[dg.AssetKey] = field(default_factory=set)
    capturing: set[dg.AssetKey] = field(default_factory=set)
    looked_up: dict[str, LookedUp] = field(default_factory=dict)
    lookups: dict[str, DataFrame] = field(default_factory=dict)


@dataclass
class StepTries:
    """The step attempts that one IO manager has seen; a retry is a new attempt, which captures again."""

    _tries: dict[tuple[str, str, int], StepTry] = field(default_factory=dict)

    def of(self, step: Any) -> StepTry:  # noqa: ANN401  # Dagster's class for it isn't public
        """The attempt that ``step``'s context belongs to."""
        return self._tries.setdefault((step.run_id, step.step.key, step.previous_attempt_count), StepTry())
