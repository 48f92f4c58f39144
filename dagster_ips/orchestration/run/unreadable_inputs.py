"""Explains which input an asset's function could not read. Spark's error names a file at most, and no remedy."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.lost_files import unreadable
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata

_READING: dict[int, tuple[Sequence[CapturedInput], Sequence[TableMetadata], LakeCatalog]] = {}
"""By thread, the inputs of its current step. The same thread loads a step's inputs and calls its function."""
_DONE = "__ips_says_what_it_could_not_read__"


def reads(inputs: Sequence[CapturedInput], looked_up: Sequence[TableMetadata], catalog: LakeCatalog) -> None:
    """Remember that the function of the step that this thread is running reads ``inputs`` and ``looked_up``."""
    _READING[threading.get_ident()] = (inputs, looked_up, catalog)


def saying_what_is_unreadable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an asset's ``function``: if it fails because an input can no longer be read, the error says which."""
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async or hasattr(function, _DONE):
        return function
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def explained(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # whatever the function takes and returns
            with _explained():
                yield from function(*values, **named)
    else:

        @functools.wraps(function)
        def explained(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # as above
            with _explained():
                return function(*values, **named)

    setattr(explained, _DONE, True)
    return explained


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reading = _READING.get(threading.get_ident())
        if reading:
            inputs, looked_up, catalog = reading
            if found := unreadable(error, inputs, catalog, looked_up):
                raise found from error
        raise
