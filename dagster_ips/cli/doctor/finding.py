"""A finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``FAILURE``: runs fail or don't start. ``WARNING``: they may later, or something should be cleaned up."""

    FAILURE = "failure"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem: which ``check`` found it, ``where`` it is, ``what`` it is, and how to ``fix`` it."""

    check: str
    where: str
    what: str
    fix: str
    severity: Severity = Severity.FAILURE
