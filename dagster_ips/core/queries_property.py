"""The texts of the queries that made a table's rows, in a property of the table: stamps have only their hashes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

QUERIES = "dagster-ips.queries"
"""The property of a table that is declared by a query: a JSON object of texts by code version."""


def queries_property(properties: Mapping[str, str], code: str, text: str, *, of_rows: Collection[str]) -> str:
    """The property's value once ``code``, whose query is ``text``, writes a table with ``properties``.

    The texts of the code versions ``of_rows``, which made the existing rows, are kept as far as they are known.

    Example:
        >>> queries_property({QUERIES: '{"1": "SELECT a", "2": "SELECT b"}'}, "3", "SELECT c", of_rows={"2"})
        '{"2": "SELECT b", "3": "SELECT c"}'
    """
    kept = {each: known for each, known in _texts(properties).items() if each in of_rows}
    # Spark would take ${...} in a statement for one of its variables.
    return json.dumps(kept | {code: text}, ensure_ascii=False).replace("$", "\\u0024")


def query_text_of(properties: Mapping[str, str], code: str) -> str | None:
    r"""The query of the code version ``code``; None if the table doesn't say.

    Example:
        >>> query_text_of({QUERIES: '{"1": "SELECT \\u0024{a}"}'}, "1")
        'SELECT ${a}'
    """
    return _texts(properties).get(code)


def _texts(properties: Mapping[str, str]) -> dict[str, str]:
    return dict(json.loads(properties.get(QUERIES, "{}")))
