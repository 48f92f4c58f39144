"""Refuses results by which Dagster would record an asset as materialized, although nothing was written or consumed.

Dagster calls no IO manager for a ``MaterializeResult`` without a value, or if the asset is annotated to return nothing.

It also adds results that Dagster misses: once a function has used a Pipes client, Dagster insists that it returns what
the client reported. What ``capture`` published before is materialized in any case.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_ips._compat import has_value
from dagster_ips.errors import OutputTypeError
from dagster_ips.orchestration.declare.consumers import captures_by_itself, incremental_input_names
from dagster_ips.orchestration.run.io_manager import asset_context

_DONE = "__ips_refuses_results_without_rows__"


def refusing_results_without_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an incremental asset's ``function``: it fails if its result has no rows and it didn't write any itself."""
    if hasattr(function, _DONE) or inspect.isasyncgenfunction(function):
        return function
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def checked(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # whatever the function takes and returns
            given = []
            for result in function(*values, **named):
                _check(result)
                given.append(result)
                yield result
            yield from _missing(given)
    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def checked(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # as above
            return _checked(await function(*values, **named))
    else:

        @functools.wraps(function)
        def checked(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # as above
            return _checked(function(*values, **named))

    setattr(checked, _DONE, True)
    return checked


def _checked(result: Any) -> Any:  # noqa: ANN401  # whatever the function returns
    running = asset_context()
    if result is None and running is not None:
        for key in sorted(running.selected_asset_keys):
            if captures_by_itself(running.assets_def, key):
                _require_captured(running, key)
    several = isinstance(result, tuple) and not isinstance(result, dg.MaterializeResult)  # It is a tuple, too.
    given = () if result is None else result if several else (result,)
    for each in given:
        _check(each)
    missing = [*_missing(given)]
    return (*given, *missing) if missing else result


def _missing(given: Sequence[object]) -> Iterator[dg.MaterializeResult[Any]]:
    """The results of published assets that Dagster would miss in ``given``.

    Raises:
        DeclarationError: such an asset should have written its rows by ``capture``.
    """
    running = asset_context()
    if running is None or not running.requires_typed_event_stream or any(isinstance(each, dg.Output) for each in given):
        return
    results = [each for each in given if isinstance(each, dg.MaterializeResult)]
    reported = {each.asset_key or running.asset_key for each in results}
    for key in sorted(running.selected_asset_keys - reported):
        if captures_by_itself(running.assets_def, key):
            _require_captured(running, key)
            yield dg.MaterializeResult(key)


def _check(result: object) -> None:
    """Check one result that a function returned or yielded.

    Raises:
        OutputTypeError: it is without the rows that the asset's IO manager should write.
        DeclarationError: the asset should have written its rows by ``capture``.
    """
    running = asset_context()
    if running is None or not isinstance(result, dg.MaterializeResult) or has_value(result):
        return
    key = result.asset_key or running.asset_key
    if captures_by_itself(running.assets_def, key):
        _require_captured(running, key)
    elif incremental_input_names(running.assets_def):
        raise OutputTypeError(asset=key.to_user_string(), found="a MaterializeResult without a value")


def _require_captured(running: dg.AssetExecutionContext, key: dg.AssetKey) -> None:
    step = running.get_step_execution_context()
    manager: Any = getattr(step.resources, running.assets_def.get_io_manager_key_for_asset_key(key))
    manager.require_captured(step, key)
