"""What the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``FAILURE``: runs fail, or don't happen. ``WARNING``: they will, or something is left to tidy up."""

    FAILURE = "failure"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: which ``check`` found it, ``where``, what it is and what to do."""

    check: str
    where: str
    what: str
    fix: str
    severity: Severity = Severity.FAILURE
