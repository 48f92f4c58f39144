"""Spark's configuration as a file: on a command line, every user of the machine could read it."""

from collections.abc import Mapping

_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_ESCAPED_IN_KEYS = _ESCAPED | {each: f"\\{each}" for each in "=: #!"}


def properties_text(configuration: Mapping[str, str]) -> str:
    r"""The text that Java's ``Properties`` reads as ``configuration``.

    >>> print(properties_text({"spark.app.name": "a=b", "spark.x": "C:\\new"}), end="")
    spark.app.name=a=b
    spark.x=C:\\new

    Source: java.util.Properties.load.
    """
    lines = (f"{_escape(key, _ESCAPED_IN_KEYS)}={_escape(value, _ESCAPED)}" for key, value in configuration.items())
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str, escaped: Mapping[str, str]) -> str:
    return "".join(escaped.get(each, each) for each in text)
