"""What a person did to an edge, kept with its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.core.watermark import Watermark


class InterventionKind(StrEnum):
    """``RESET`` forgets everything that was consumed, ``REWIND`` what was consumed after a snapshot."""

    RESET = "reset"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class Intervention:
    """Who changed what counts as consumed, and why: from ``before`` to ``after``, None being nothing.

    ``number`` is the number that it used up: captures up to that number are no longer valid.
    """

    kind: InterventionKind
    who: str
    why: str
    at_ms: int
    number: int
    before: Watermark | None
    after: Watermark | None
