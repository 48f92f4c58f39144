"""The consumers that definitions describe, with everything needed to inspect and manage them outside a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_ips.core.retention import Retention
from dagster_ips.core.write_mode import WriteMode, may_repeat
from dagster_ips.errors import UnknownConsumerError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.declare.consumers import (
    Consumer,
    MetadataByKey,
    capturing_consumers,
    consumers_of,
    executable_assets,
    io_manager_keys,
    outside_tables,
    tables_written,
    without_triggers,
)
from dagster_ips.orchestration.declare.declarations import code_of, write_mode_of
from dagster_ips.orchestration.run.io_manager import IcdcIOManager


@dataclass(frozen=True)
class KnownConsumer:
    """A consumer, the IO manager that knows its table, and its code.

    ``write_mode`` is None if the asset returns an Overwrite or writes with its own statements. ``may_repeat`` says
    whether a change can be written twice without duplicating rows; it is False for an asset's own statements, because
    what they do is unknown. ``warning`` is set if nothing ever triggers the asset. ``graph`` is Dagster's asset graph.
    """

    consumer: Consumer
    manager: IcdcIOManager
    may_repeat: bool
    write_mode: WriteMode | None
    warning: str | None
    code_version: str | None
    graph: Any = field(repr=False, compare=False)

    @property
    def retention(self) -> Retention:
        """How long the IO manager keeps ICDC tables."""
        return Retention.of_days(self.manager.icdc_keep_last, self.manager.icdc_max_age_days)

    def tracked(self, upstream: str | None) -> TrackedInput:
        """The input with the asset key ``upstream``, or the only input if it is None.

        Raises:
            UnknownConsumerError: it isn't an incremental input of the asset, or it is None and there are several.
        """
        inputs = {each.upstream: each for each in self.consumer.inputs.values()}
        if upstream is None and len(inputs) == 1:
            return next(iter(inputs.values()))
        if upstream not in inputs:
            several = "has several upstreams, so --upstream is required"
            what = f"doesn't read {upstream} incrementally" if upstream else several
            raise UnknownConsumerError(asset=self.consumer.name, problem=what, known=tuple(sorted(inputs)))
        return inputs[upstream]


@dataclass(frozen=True)
class KnownTable:
    """A table that the definitions name, its asset, and the IO manager in whose catalog it is.

    ``is_outside`` says that a job outside Dagster writes it.
    """

    asset: str
    table: str
    manager: IcdcIOManager
    is_outside: bool


def known_tables(*all_definitions: dg.Definitions) -> Sequence[KnownTable]:
    """Every table of ``all_definitions`` in an ``IcdcIOManager``'s catalog: written by an asset, or outside."""
    return [known for definitions in all_definitions for known in _tables_in(definitions)]


def _tables_in(definitions: dg.Definitions) -> Iterator[KnownTable]:
    specs = definitions.resolve_all_asset_specs()
    metadata = {spec.key: spec.metadata for spec in specs}
    managers = _managers_of(definitions)
    namespaces = {key: manager.default_namespace for key, manager in managers.items()}
    for each in tables_written(definitions.resolve_asset_graph().assets_defs, metadata, namespaces):
        yield KnownTable(each.key.to_user_string(), each.table, managers[each.manager], is_outside=False)
    names = io_manager_keys(specs)
    for key, table in sorted(outside_tables(specs).items()):
        if names[key] in managers:
            yield KnownTable(key.to_user_string(), table, managers[names[key]], is_outside=True)


def _managers_of(definitions: dg.Definitions) -> Mapping[str, IcdcIOManager]:
    found = (definitions.resources or {}).items()
    return {key: value.with_settings() for key, value in found if isinstance(value, IcdcIOManager)}


def known_consumers(*all_definitions: dg.Definitions) -> Mapping[str, KnownConsumer]:
    """Every asset of ``all_definitions`` that reads incrementally, by its key.

    Raises:
        DeclarationError: a declaration can't work.
    """
    return {name: known for definitions in all_definitions for name, known in _consumers_in(definitions)}


def _consumers_in(definitions: dg.Definitions) -> Iterator[tuple[str, KnownConsumer]]:
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    metadata = {key: spec.metadata for key, spec in specs.items()}
    managers = _managers_of(definitions)
    graph = definitions.resolve_asset_graph()
    for each in executable_assets(graph.assets_defs):
        keys = [each.get_io_manager_key_for_asset_key(key) for key in sorted(each.keys)]
        manager = next((managers[key] for key in keys if key in managers), None)
        if manager is None:
            continue
        for consumer, repeats, write_mode in _reading_in(each, metadata, manager.default_namespace):
            warning = without_triggers(consumer.key, graph)
            code = code_of(specs[consumer.key].code_version, metadata[consumer.key])
            yield consumer.name, KnownConsumer(consumer, manager, repeats, write_mode, warning, code, graph)


def _reading_in(
    assets: dg.AssetsDefinition, metadata: MetadataByKey, default_namespace: str
) -> Iterator[tuple[Consumer, bool, WriteMode | None]]:
    for consumer in consumers_of(assets, metadata, default_namespace):
        write_mode = write_mode_of(metadata[consumer.key], consumer.name)
        yield consumer, may_repeat(write_mode), write_mode
    for consumer in capturing_consumers(assets, metadata, default_namespace):
        yield consumer, False, None


def consumer_named(known: Mapping[str, KnownConsumer], asset: str) -> KnownConsumer:
    """The consumer with the asset key ``asset`` among ``known``.

    Raises:
        UnknownConsumerError: no such asset reads incrementally.
    """
    if asset not in known:
        key = dg.AssetKey.from_user_string(asset)
        is_missing = known and not any(each.graph.has(key) for each in known.values())
        why = "isn't in these definitions, so it " if is_missing else ""
        raise UnknownConsumerError(asset, f"{why}reads nothing incrementally", tuple(sorted(known)))
    return known[asset]
