"""Tables of partials: the table property that says how their rows are added up."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster_ips.core.aggregates import parse_aggregate
from dagster_ips.core.write_mode import Combine, WriteMode

PARTIALS = "dagster-ips.partials"
"""The property of a table that keeps partials: its keys and aggregates, as JSON. That is all that readers need."""


def partials_property(write_mode: WriteMode | None) -> str | None:
    """The value of the property for a table that is written by ``write_mode``; None if it keeps no partials.

    Example:
        >>> partials_property(Combine(("day",), (parse_aggregate("plays", "count(*)"),), keeps_partials=True))
        '{"on": ["day"], "aggregates": {"plays": "count(*)"}, "approximate": false}'
    """
    if not isinstance(write_mode, Combine) or not write_mode.keeps_partials:
        return None
    aggregates = {each.name: str(each) for each in write_mode.aggregates}
    return json.dumps({"on": write_mode.on, "aggregates": aggregates, "approximate": write_mode.approximate})


def partials_of(properties: Mapping[str, str]) -> Combine | None:
    """How a table with ``properties`` is folded; None if it keeps no partials.

    Example:
        >>> partials_of({PARTIALS: '{"on": ["day"], "aggregates": {"plays": "count(*)"}, "approximate": false}'}).on
        ('day',)
    """
    if (text := properties.get(PARTIALS)) is None:
        return None
    said = json.loads(text)
    aggregates = tuple(parse_aggregate(*each) for each in said["aggregates"].items())
    return Combine(tuple(said["on"]), aggregates, said["approximate"], keeps_partials=True)
