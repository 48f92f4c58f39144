"""Audits: asset checks that see what a run wrote before it is published, and can prevent the publication.

No ``from __future__ import annotations`` here: Dagster reads a context's annotation without resolving it.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips.errors import AuditError, DeclarationError
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.orchestration.declare.consumers import executable_assets
from dagster_ips.orchestration.declare.run_numbers import PUBLISHED
from dagster_ips.orchestration.run.run_metadata import of_run

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame

AUDIT = "dagster_ips/audit"
_FUNCTION = "dagster_ips_audit"
_SAID = 500

Audited = Callable[["DataFrame"], "bool | dg.AssetCheckResult"]


def audit(
    *, asset: AssetName, blocking: bool = True, name: str | None = None, description: str | None = None
) -> Callable[[Audited], dg.AssetChecksDefinition]:
    """Declare an asset check that runs on the rows that a run of ``asset`` wrote, before they are published.

    The function gets the whole table as it would be after publishing, and returns a bool or an ``AssetCheckResult``. If
    it fails or raises, nothing is published and nothing is consumed; with ``blocking=False`` the rows are published
    with a warning. A result with severity WARN never blocks. Like every asset check, it goes into
    ``Definitions(asset_checks=[...])``, is shown in the UI, and can be run there on the published table. ``asset`` must
    be written by an ``IcdcIOManager`` or by ``capture``.

    Example:
        >>> from pyspark.sql import DataFrame
        >>> @audit(asset="playback_daily")
        ... def has_only_known_accounts(rows: DataFrame) -> bool:
        ...     return rows.where("account_id IS NULL").isEmpty()
        >>> next(iter(has_only_known_accounts.check_specs)).blocking
        True
    """

    def declared(function: Audited) -> dg.AssetChecksDefinition:
        def check(context: dg.AssetCheckExecutionContext, rows: Any) -> dg.AssetCheckResult:  # noqa: ANN401  # a DataFrame, imported late
            (key,) = context.selected_asset_check_keys
            return _found_in_this_run(context, key) or _evaluated(function, rows, blocking=blocking)

        setattr(check, _FUNCTION, function)
        return dg.asset_check(
            asset=asset_key_of(asset),
            name=name or function.__name__,
            description=description or inspect.getdoc(function),
            blocking=blocking,
            metadata={AUDIT: True},
        )(check)

    return declared


def run_audits(step: Any, key: dg.AssetKey, table: str, read: Callable[[], "DataFrame"]) -> None:  # noqa: ANN401  # not public
    """Evaluate the audits of ``key`` on the rows that ``read`` returns, and log each as an asset check of the step.

    Raises:
        AuditError: a blocking audit didn't pass.
    """
    audits = list(_audits_of(step, key))
    if not audits:
        return
    rows, failed = read(), []
    for found in audits:
        result = _evaluated(found.function, rows, blocking=found.blocking)
        # Logged immediately, because a failed audit may fail the step.
        dg.DagsterEvent.asset_check_evaluation(
            step,
            dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=found.name,
                passed=result.passed,
                metadata=result.metadata,
                severity=result.severity,
                description=result.description,
                blocking=found.blocking,
            ),
        )
        if found.blocking and not result.passed and result.severity is dg.AssetCheckSeverity.ERROR:
            failed.append(f"{found.name} ({'; '.join(_said(result))})")
    if failed:
        raise AuditError(table=table, asset=key.to_user_string(), audits=tuple(failed))


def _said(result: dg.AssetCheckResult) -> Iterator[str]:
    """What a failed audit says: its sentence and its numbers."""
    yield result.description or "it failed"
    for name, value in result.metadata.items():
        if isinstance(value.value, int | float) and not isinstance(value.value, bool):
            yield f"{name}: {value.value:,}"


def check_audits(checks: Iterable[Any], assets: Iterable[Any], io_managers: set[str]) -> None:
    """Refuse an audit that could never check rows before they are published.

    Raises:
        DeclarationError: the audit's asset is missing, or another IO manager writes it.
    """
    managers = {
        key: definition.get_io_manager_key_for_asset_key(key)
        for definition in executable_assets(list(assets))
        for key in definition.keys
    }
    for definition in checks:
        for spec in definition.check_specs:
            if AUDIT in spec.metadata and managers.get(spec.asset_key) not in io_managers:
                raise DeclarationError(
                    asset=spec.asset_key.to_user_string(),
                    problem=f"its audit {spec.name} can't check its rows before they are published, because no "
                    "IcdcIOManager writes it here.",
                    remedy="Give the asset the io_manager_key of an IcdcIOManager, or declare a plain asset_check.",
                )


@dataclass(frozen=True)
class _Audit:
    name: str
    blocking: bool
    function: Audited


def _audits_of(step: Any, key: dg.AssetKey) -> Iterator[_Audit]:  # noqa: ANN401  # as for run_audits
    """All audits of the asset, including those that the run didn't select as checks."""
    graph = step.job_def.asset_layer.asset_graph.source_asset_graph
    for check_key in sorted(graph.asset_check_keys):
        definition = graph.assets_def_for_key(check_key)
        spec = definition.get_spec_for_check_key(check_key)
        if check_key.asset_key == key and AUDIT in spec.metadata:
            function = getattr(definition.node_def.compute_fn.decorated_fn, _FUNCTION)
            yield _Audit(check_key.name, spec.blocking, function)


def _evaluated(function: Audited, rows: "DataFrame", *, blocking: bool) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN
    try:
        found: object = function(rows)
    except Exception as error:  # noqa: BLE001  # an audit that raises doesn't show that the rows are right
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:_SAID]
        return dg.AssetCheckResult(passed=False, severity=severity, description=f"It raised {said}")
    if isinstance(found, bool):
        why = None if found else "It is false of the rows that the run would publish."
        return dg.AssetCheckResult(passed=found, severity=severity, description=why)
    if not isinstance(found, dg.AssetCheckResult):
        said = f"It returned a {type(found).__name__} instead of a bool or an AssetCheckResult."
        return dg.AssetCheckResult(passed=False, severity=severity, description=said)
    if blocking:
        return found
    return dg.AssetCheckResult(
        passed=found.passed, severity=severity, description=found.description, metadata=found.metadata
    )


def _found_in_this_run(context: dg.AssetCheckExecutionContext, key: dg.AssetCheckKey) -> dg.AssetCheckResult | None:
    """The audit's result before publishing, if that was in the same run, because the rows are the same."""
    if not _has_published(context, key.asset_key):
        return None
    for record in context.instance.event_log_storage.get_asset_check_execution_history(key, limit=1):
        event = record.event.dagster_event if record.event else None
        evaluated = dg.DagsterEventType.ASSET_CHECK_EVALUATION
        if event and event.event_type is evaluated and record.run_id == context.run.run_id:
            found = event.asset_check_evaluation_data
            return dg.AssetCheckResult(
                passed=found.passed, severity=found.severity, description=found.description, metadata=found.metadata
            )
    return None


def _has_published(context: dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> bool:
    """Whether the run published rows. If it didn't, an attempt that was retried may have audited others."""
    for record in context.instance.fetch_materializations(asset, limit=1).records:
        made = record.asset_materialization
        is_told = made is not None and not {PUBLISHED, of_run(PUBLISHED)}.isdisjoint(made.metadata)
        return is_told and record.run_id == context.run.run_id
    return False
