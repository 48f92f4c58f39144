"""The tokens of a text in Spark's SQL, without comments and spaces, which change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<space>\s+|--(?:\\\n|[^\n])*)
    |(?P<comment>/\*)
    |(?P<text>[rR]"[^"]*"|[rR]'[^']*'|"(?:\\.|""|[^"\\])*"|'(?:\\.|''|[^'\\])*'|`(?:``|[^`])*`)
    |(?P<word>\d+\.?\d*(?:[eE][+-]?\d+)?\w*|\w+)
    |(?P<sign><=>|<=|>=|<>|!=|==|\|\||->|=>|::|<<|>>>|>>|.)""",
    re.VERBOSE | re.DOTALL,
)


def sql_tokens(text: str) -> list[str]:
    r"""The tokens of ``text``, as they are written.

    Example:
        >>> sql_tokens("SELECT a -- what\n  FROM t WHERE b<=1.5e-3 AND c = 'a  -- b' /* no */")
        ['SELECT', 'a', 'FROM', 't', 'WHERE', 'b', '<=', '1.5e-3', 'AND', 'c', '=', "'a  -- b'"]
    """
    return list(_tokens(text))


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while found := _TOKEN.match(text, at):
        at = found.end()
        if found["comment"]:
            at = _end_of_comment(text, at)
        elif not found["space"]:
            yield found.group()


def _end_of_comment(text: str, at: int) -> int:
    """The end of a comment whose content begins ``at``; it may have comments inside."""
    depth = 1
    for found in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if found.group() == "/*" else -1
        if not depth:
            return at + found.end()
    return len(text)
