"""What a tick reports about tables that it couldn't read, while it continued with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dagster_ips.errors import IpsError

_MOST_SHOWN = 3


def said_of(errors: Mapping[str, IpsError]) -> Iterator[str]:
    """Sentences on the assets for which it couldn't determine what is new, and why; none without errors."""
    for name, error in list(errors.items())[:_MOST_SHOWN]:
        yield f"Could not determine what is new for {name}: {error}"
    if len(errors) > _MOST_SHOWN:
        yield f"Same for {len(errors) - _MOST_SHOWN} more; see the tick's log."
