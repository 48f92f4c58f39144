"""Proofs: asset checks that recompute a sample of a table with the asset's own function, and compare it row by row.

A proof doesn't rely on anything that produces the table: neither on the captured changes, nor on the write mode, nor on
the checks that refuse results.

No ``from __future__ import annotations`` here: Dagster reads a context's annotation without resolving it.
"""

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import dagster as dg

from dagster_ips.core.sampling import Sample
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.exactly_once.inspect.claims import Claim, ClaimedPart, Prover
from dagster_ips.exactly_once.inspect.sampled_rows import key_of, sampled_rows
from dagster_ips.exactly_once.snapshot_rows import current_rows
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.orchestration.declare.consumers import (
    MetadataByKey,
    captures_by_itself,
    consumers_of,
    executable_assets,
)
from dagster_ips.orchestration.declare.declarations import is_to_be_proved, plain
from dagster_ips.orchestration.declare.partition_mappings import rows_of_keys
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.platform.staged_run import staged_run
from dagster_ips.orchestration.prove.proof_findings import MOST_EXAMPLES, Findings, Proved, unknown
from dagster_ips.orchestration.run.io_manager import IcdcIOManager
from dagster_ips.orchestration.run.recompute_asset import Asset, Surroundings, graph_of, recompute
from dagster_ips.orchestration.watch.pending_checks import Never
from dagster_ips.spark.comparison import alike, columns_of_one, compare, floating, rows_outside

PROOF = "dagster_ips/proof"
_OR_TRUSTED = ", or trusted(...) from its metadata, which adds one"
_LEAST_ROWS = 1000
_SAID = 500


class ProofConfig(dg.Config):
    """What can be set when a proof is launched: another share, or the seed of an earlier proof."""

    sample: float | None = None
    seed: int | None = None


def proof(  # noqa: PLR0913  # independent parameters
    asset: AssetName,
    *,
    sample: float = 0.01,
    ignore: Sequence[str] = (),
    with_each_run: bool = False,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    name: str = "proof",
) -> dg.AssetChecksDefinition:
    """Declare an asset check that recomputes a sample of an incremental asset's table and compares the rows.

    It calls the asset's own function in mode ``full``, with its inputs as of the snapshots that the table says it
    contains, and compares the result with the table, row by row. It writes and consumes nothing. Missing, extra or
    different rows fail the check, with examples. If something can't be recomputed, for example because a snapshot has
    expired, the check warns.

    Put it into ``Definitions(asset_checks=[...])``, and pass the definitions through ``with_incremental``. It runs on
    request and by ``automation_condition``.

    Args:
        asset: The key of an asset with ``incremental()`` inputs.
        sample: The share of the table's keys, or of its partitions if it has any: above 0, up to 1. Half of the sample
            is what the last change touched.
        ignore: Columns that aren't compared, such as the time when a row was written.
        with_each_run: Whether it also runs after the asset in each of its runs.
        automation_condition: When else it runs, for example ``dg.AutomationCondition.on_cron("@daily")``.
        name: The check's name.

    Raises:
        DeclarationError: the sample is invalid.

    Example:
        >>> next(iter(proof("playback_daily_agg", sample=0.01).check_specs)).name
        'proof'
    """
    key = asset_key_of(asset)
    declared = key.to_user_string()
    if isinstance(ignore, str):
        problem = f"ignore={ignore!r} of its proof is a single string, so each letter would count as a column."
        raise DeclarationError(asset=declared, problem=problem, remedy=f"Write ignore=[{ignore!r}].")
    _require_share(sample, declared)
    if with_each_run and automation_condition is not None:
        problem = "its proof has both with_each_run=True and a condition of its own."
        raise DeclarationError(asset=declared, problem=problem, remedy="Choose one of them.")
    return _check(
        key,
        name=name,
        # A check without a condition is added to every run that Dagster's automation requests for its asset.
        condition=automation_condition if with_each_run or automation_condition is not None else Never(),
        metadata={PROOF: {"sample": sample, "ignore": list(ignore)}},
    )


def proofs_of_trusted(checks: Iterable[Any], metadata: MetadataByKey) -> list[dg.AssetChecksDefinition]:
    """Proofs that run with each run of every trusted asset for which ``checks`` have no proof."""
    # A component's definitions may hold checks as an AssetsDefinition.
    definitions = [each for each in checks if isinstance(each, dg.AssetsDefinition)]
    proved = {spec.asset_key for each in definitions for spec in each.check_specs if PROOF in spec.metadata}
    trusted = sorted(key for key, values in metadata.items() if is_to_be_proved(values) and key not in proved)
    return [proof(key, with_each_run=True) for key in trusted]


def bind_proofs(
    checks: Iterable[Any], assets: Iterable[Any], metadata: MetadataByKey, managers: Mapping[str, IcdcIOManager]
) -> list[Any]:
    """``checks`` with the proofs among them bound to the asset that they recompute; the others are unchanged.

    Raises:
        DeclarationError: a proof's asset is missing or can't be proved.
    """
    by_key = {key: each for each in executable_assets(list(assets)) for key in each.keys}
    bound = []
    for definition in checks:
        specs = list(definition.check_specs) if isinstance(definition, dg.AssetsDefinition) else []
        if len(specs) != 1 or PROOF not in specs[0].metadata:
            bound.append(definition)
            continue
        (spec,) = specs
        asset = _asset(spec.asset_key, by_key, metadata, managers)
        bound.append(
            _check(
                spec.asset_key, name=spec.name, condition=spec.automation_condition, metadata=spec.metadata, asset=asset
            )
        )
    return bound


def _asset(
    key: dg.AssetKey,
    by_key: Mapping[dg.AssetKey, dg.AssetsDefinition],
    metadata: MetadataByKey,
    managers: Mapping[str, IcdcIOManager],
) -> Asset:
    if key not in by_key:
        problem = "it has a proof, but these definitions have no such asset to run."
        _refuse(key, problem, f"Correct the key in proof(...){_OR_TRUSTED}.")
    assets = by_key[key]
    if captures_by_itself(assets, key):
        problem = "it is written by its own statements, which return nothing to compare."
        remedy = f"Remove its proof{_OR_TRUSTED}; a plain asset_check can compare its table with a query."
        _refuse(key, problem, remedy)
    manager = assets.get_io_manager_key_for_asset_key(key)
    consumers = consumers_of(assets, metadata, managers[manager].namespace) if manager in managers else ()
    found = [each for each in consumers if each.key == key]
    if not found:
        problem = "it has a proof, but it reads nothing incrementally, so every run recomputes it anyway."
        _refuse(key, problem, f"Remove its proof{_OR_TRUSTED}.")
    return Asset(assets, found[0], manager)


def _refuse(key: dg.AssetKey, problem: str, remedy: str) -> NoReturn:
    raise DeclarationError(asset=key.to_user_string(), problem=problem, remedy=remedy)


def _require_share(sample: float, asset: str) -> None:
    if not (isinstance(sample, int | float) and 0 < sample <= 1):
        problem = f"its proof can't use sample={sample!r}."
        raise DeclarationError(asset=asset, problem=problem, remedy="Give a sample above 0 and up to 1, such as 0.01.")


def _check(
    key: dg.AssetKey,
    *,
    name: str,
    condition: dg.AutomationCondition[Any] | None,
    metadata: Mapping[str, Any],
    asset: Asset | None = None,
) -> dg.AssetChecksDefinition:
    resources = {asset.manager, *asset.resources} if asset else set()

    @dg.asset_check(
        asset=key,
        name=name,
        description="Recomputes a sample of the table with the asset's own function and compares the rows.",
        automation_condition=condition,
        metadata=dict(metadata),
        required_resource_keys=resources,
    )
    def check(context: dg.AssetCheckExecutionContext, config: ProofConfig) -> dg.AssetCheckResult:
        if asset is None:
            problem = "its proof has no definitions to recompute it with."
            _refuse(key, problem, "Pass the definitions through with_incremental.")
        declared = plain(metadata[PROOF])
        share = declared["sample"] if config.sample is None else config.sample
        _require_share(share, key.to_user_string())
        seed = config.seed if config.seed is not None else secrets.randbelow(2**31)
        return _Proof(asset, context, Sample(share, seed), tuple(declared["ignore"])).result()

    return check


@dataclass(frozen=True)
class _Proof:
    """One execution of a proof."""

    asset: Asset
    context: dg.AssetCheckExecutionContext
    sample: Sample
    ignore: Sequence[str]

    def result(self) -> dg.AssetCheckResult:
        started = time.monotonic()
        try:
            found = self._found()
        except Exception as error:
            if not isinstance(error, IpsError):
                self.context.log.exception("the proof of %s failed", self.asset.consumer.name)
            said = str(error) if isinstance(error, IpsError) else _said(error)
            return self._shown(unknown(f"Not proved: {said}"), started)
        return self._shown(found, started)

    def _found(self) -> dg.AssetCheckResult:
        manager: IcdcIOManager = getattr(self.context.op_execution_context.resources, self.asset.manager)
        consumer, graph = self.asset.consumer, graph_of(self.context)
        instance, lake = self.context.instance, self._lake(manager)
        prover = Prover(lake, CursorStore(instance))
        definition = graph.get(consumer.key).partitions_def
        known = definition.get_partition_keys(dynamic_partitions_store=instance) if definition else None
        inputs = list(consumer.tracked(graph, instance).values())
        claim = prover.claim(consumer.name, consumer.table, inputs, known)
        if claim is None:
            nothing = f"Nothing to prove yet: no run has published to {consumer.table}."
            return dg.AssetCheckResult(passed=True, description=nothing)
        begun = claim.begun if consumer.is_partitioned else (None,)
        sample = self.sample.at_least(_LEAST_ROWS, of=claim.rows)
        chosen = sample.of(begun, claim.recent) if consumer.is_partitioned else [None]
        parts, untold = prover.parts(claim, chosen, each_alone=self.asset.sees_one_partition)
        if untold and not parts:
            return unknown(f"Not proved: {next(iter(untold.values()))}")
        within = sample.within(chosen=len(chosen), of=len(begun)) if consumer.is_partitioned else sample
        proved = [self._compared(manager, prover, claim, part, within) for part in parts]
        outside = self._outside(manager, claim, begun) if consumer.is_partitioned else 0
        return Findings(claim, proved, untold, outside, (len(chosen), len(begun))).result()

    def _compared(
        self, manager: IcdcIOManager, prover: Prover, claim: Claim, part: ClaimedPart, sample: Sample
    ) -> Proved:
        lake, target = self._lake(manager), claim.target
        resources = self.context.op_execution_context.resources
        around = Surroundings(graph_of(self.context), self.context.instance, resources, lake)
        made = recompute(self.asset, part, manager, around)
        frame, key = made.frame.drop(*self.ignore), key_of(made.write_mode)
        session = frame.sparkSession
        there = current_rows(session, lake.name, target, storage=lake.storage).drop(*self.ignore)
        if part.partitions:
            of_part = self._rows_of(claim, part.partitions)
            frame, there = frame.where(of_part), there.where(of_part)
        rows = sampled_rows(prover, claim, part, (frame, there), key, sample)
        expected, actual = (rows.of(each) for each in alike(frame, there))
        found = compare(expected, actual, keys=key, any_row_of_key=made.keeps_any_row, most_examples=MOST_EXAMPLES)
        made.release()
        return Proved(part, rows, found, columns_of_one(frame, there), floating(expected), made.lookups)

    def _lake(self, manager: IcdcIOManager) -> LakeCatalog:
        """The catalog; in a staged run, with the branches that it reads and writes."""
        staged = staged_run(self.context.run, self.context.instance)
        return manager.catalog.open().on_branch(staged.branch if staged else None)

    def _rows_of(self, claim: Claim, keys: Sequence[str]) -> str:
        graph = graph_of(self.context)
        node: Any = graph.get(self.asset.consumer.key)
        name = self.asset.consumer.name
        return rows_of_keys(claim.target, node.partitions_def, keys, node.metadata, self.context.instance, asset=name)

    def _outside(self, manager: IcdcIOManager, claim: Claim, begun: Sequence[str | None]) -> int:
        """How many of the target's rows are in partitions that no run computed, as far as its snapshots say."""
        lake = manager.catalog.open()
        there = current_rows(manager.session(), lake.name, claim.target, storage=lake.storage)
        computed = claim.removed.union(key for key in begun if key is not None)
        return rows_outside(there, self._rows_of(claim, sorted(computed)))

    def _shown(self, found: dg.AssetCheckResult, started: float) -> dg.AssetCheckResult:
        """The result with how long it took, and the sample and seed that repeat it."""
        seconds = round(time.monotonic() - started, 1)
        metadata: dict[str, Any] = {
            **found.metadata,
            "seconds": seconds,
            "sample": self.sample.share,
            "seed": self.sample.seed,
        }
        return dg.AssetCheckResult(
            passed=found.passed, severity=found.severity, description=found.description, metadata=metadata
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:_SAID]
