"""What an asset's own function could not read, called by its name: Spark says a file at most, and no way on."""

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

_READING: dict[int, tuple[Sequence[CapturedInput], LakeCatalog]] = {}
"""What the step reads that a thread is at, which loads its inputs and calls its function."""
_DONE = "__ips_says_what_it_could_not_read__"


def reads(inputs: Sequence[CapturedInput], catalog: LakeCatalog) -> None:
    """From now on what the function of the step that is running reads is of ``inputs``."""
    _READING[threading.get_ident()] = (inputs, catalog)


def saying_what_is_unreadable(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of an asset, whose errors say what of its inputs can't be read any more, if that is why."""
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async or hasattr(function, _DONE):
        return function
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def explained(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # whatever the function takes and gives
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
        if reading and (found := unreadable(error, *reading)):
            raise found from error
        raise
