"""Libraries that are imported when something of them is used first.

Whoever only declares assets, or asks for a command's help, needs neither Spark nor PyIceberg, and each takes as long to
import as Dagster itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """Stands for the module ``name``: has whatever that has, and imports it when it is asked for the first time.

    Example:
        >>> LateModule("json").dumps([1])
        '[1]'
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401  # whatever the module has
        return getattr(import_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"<{self._name}, imported late>"
