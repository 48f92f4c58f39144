"""Libraries that are imported on first use.

Declaring assets or showing a command's help needs neither Spark nor PyIceberg, and each of them takes as long to import
as Dagster itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """Stands for the module ``name``: has the same attributes, and imports it when the first of them is read.

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
