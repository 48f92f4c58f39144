"""How often a failing consumer is retried automatically."""

from __future__ import annotations

from dataclasses import dataclass

MOST_FAILURES = 5
_FIRST_WAIT_SECONDS = 30.0
_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class RetryState:
    """Failures in a row on the same ``fingerprint`` (upstream heads and code), the last one being ``run_id``."""

    fingerprint: str = ""
    failures: int = 0
    run_id: str = ""

    def after_failure(self, fingerprint: str, run_id: str, *, is_alone: bool = True) -> RetryState:
        """Count ``run_id`` once. New data or new code restarts the count with this failure.

        The last failure counts only if it ``is_alone``: in a run of several partitions, another one may have failed.
        """
        if fingerprint != self.fingerprint:
            return RetryState(fingerprint, 1, run_id)
        failures = min(self.failures + 1, MOST_FAILURES if is_alone else MOST_FAILURES - 1)
        return self if run_id == self.run_id else RetryState(fingerprint, failures, run_id)

    def is_blocked(self, *, seconds_since_failure: float) -> bool:
        """Whether to wait: 30 s after the first failure, four times longer after each, for good after the fifth.

        Example:
            >>> once = RetryState().after_failure("a", "run 1")
            >>> once.is_blocked(seconds_since_failure=10), once.is_blocked(seconds_since_failure=31)
            (True, False)
        """
        if self.failures >= MOST_FAILURES:
            return True
        return self.failures > 0 and seconds_since_failure < _FIRST_WAIT_SECONDS * _FACTOR ** (self.failures - 1)
