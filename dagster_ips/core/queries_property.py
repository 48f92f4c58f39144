"""The texts of the code that made a table's rows, in a property of the table: stamps have only hashes of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

QUERIES = "dagster-ips.queries"
"""The property of a table that is declared by a query: a JSON object of texts by code version."""


PLANS = "dagster-ips.plans"
"""The same for a table that combine() writes: summaries of plans."""


def texts_property(
    name: str, properties: Mapping[str, str], code: str, text: str, *, of_rows: Collection[str]
) -> dict[str, str]:
    """The property ``name`` once ``code``, whose query or plan is ``text``, writes a table with ``properties``.

    The texts of the code versions ``of_rows``, which made the existing rows, are kept as far as they are known.

    Example:
        >>> texts_property(QUERIES, {QUERIES: '{"1": "SELECT a", "2": "SELECT b"}'}, "3", "SELECT c", of_rows={"2"})
        {'dagster-ips.queries': '{"2": "SELECT b", "3": "SELECT c"}'}
    """
    kept = {each: known for each, known in texts_in(name, properties).items() if each in of_rows}
    # Spark would take ${...} in a statement for one of its variables.
    return {name: json.dumps(kept | {code: text}, ensure_ascii=False).replace("$", "\\u0024")}


def query_text_of(properties: Mapping[str, str], code: str) -> str | None:
    r"""The query of the code version ``code``; None if the table doesn't say.

    Example:
        >>> query_text_of({QUERIES: '{"1": "SELECT \\u0024{a}"}'}, "1")
        'SELECT ${a}'
    """
    return texts_in(QUERIES, properties).get(code)


def texts_in(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The texts in the property ``name``, by code."""
    return dict(json.loads(properties.get(name, "{}")))
