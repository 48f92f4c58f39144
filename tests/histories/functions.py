"""Random functions of assets, in every write mode and form of input, over a table that changes in every way.

After each run a target must hold what its function makes of the same rows in memory, where no condition passes through
Iceberg; or the run was refused, by an error of the library.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips import errors
from tests.support.lake import Lake
from tests.support.lake_definitions import definitions_on

COLUMNS = {"id": "bigint", "k": "string", "d": "date", "f": "double", "n": "int", "m": "decimal(20, 2)"}
MOST_BITES = 20
_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
_WAYS = ("copy-on-write", "merge-on-read")
_VALUES: Mapping[str, Sequence[str]] = {
    "k": ["'q'", "'r'", "'zz'", "''", "NULL"],
    "d": ["DATE '2026-01-01'", "DATE '2026-01-02'", "DATE '1969-12-31'", "NULL"],
    "f": ["0.0D", "-0.0D", "1.5D", "-3.0D", "DOUBLE('NaN')", "DOUBLE('Infinity')", "NULL"],
    "n": ["0", "1", "2", "-7", "NULL"],
    "m": ["0.00BD", "1.50BD", "-3.25BD", "123456789012345678.99BD", "NULL"],
}
_LAYOUTS = ("", "k", "d", "k, d", "f", "n", "m", "bucket(3, id)", "truncate(1, k)", "month(d)", "d, bucket(2, k)")
_EXPRESSIONS = {
    "string": ["upper(k)", "coalesce(k, 'none')", "CAST(d AS STRING)", "concat(k, '/', n)"],
    "int": ["n + 1", "CASE WHEN f > 0 THEN n END", "length(k)", "CAST(f > 1 AS INT)", "coalesce(n, -1)"],
    "decimal(20, 2)": ["CAST(m / 2 AS DECIMAL(20, 2))", "CASE WHEN k = 'q' THEN m ELSE -m END", "greatest(m, 0.00BD)"],
}
REFUSALS = frozenset(name for name in dir(errors) if name.endswith("Error"))


def a_condition(chance: random.Random, depth: int = 2) -> str:
    """A random SQL condition on the columns."""
    if depth and chance.random() < 0.6:
        one, other = a_condition(chance, depth - 1), a_condition(chance, depth - 1)
        return chance.choice([f"({one}) AND ({other})", f"({one}) OR ({other})", f"NOT ({one})", f"({one}) OR n = 1"])
    column = chance.choice([*_VALUES, *"kf"])
    one, other = chance.choices(_VALUES[column], k=2)
    forms = [
        *(f"{column} {sign} {one}" for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>")),
        f"{column} IN ({one}, {other})",
        f"{column} NOT IN ({one})",
        f"{column} BETWEEN {one} AND {other}",
        f"{column} IS NOT NULL",
        f"coalesce({column}, {one}) = {other}",
    ]
    if column == "k":
        forms += ["k LIKE 'q%'", "k NOT LIKE 'q%'", "k > 'a'", "length(k) > 0"]
    if column == "f":
        forms += ["isnan(f)", "f > 2", "try_cast(f AS INT) = 0"] if chance.random() < 0.5 else ["f * 2 >= 0"]
    return chance.choice(forms)


@dataclass(frozen=True)
class Function:
    """What an asset does with rows: it filters, adds a column, and names the key anew."""

    condition: str = "TRUE"
    kind: str = "int"
    expression: str = "n"
    key: str = "id"
    as_sql: bool = False

    @classmethod
    def random(cls, chance: random.Random, *, may_rename: bool = True) -> Function:
        kind = chance.choice(list(_EXPRESSIONS))
        key = chance.choice(["id", "id", "order_id"]) if may_rename else "id"
        condition = a_condition(chance) if chance.random() < 0.85 else "TRUE"
        return cls(condition, kind, chance.choice(_EXPRESSIONS[kind]), key, chance.random() < 0.3)

    def edited(self, chance: random.Random) -> Function:
        """The same columns, computed otherwise."""
        if chance.random() < 0.5:
            return replace(self, condition=a_condition(chance))
        return replace(self, expression=chance.choice(_EXPRESSIONS[self.kind]))

    def text(self, table: str, more: str = "") -> str:
        return (
            f"SELECT id AS {self.key}, k, d, f, n, m, CAST({self.expression} AS {self.kind}) AS x{more} "
            f"FROM {table} WHERE {self.condition}"
        )

    def __call__(self, rows: DataFrame, *more: str) -> DataFrame:
        if self.as_sql:
            return rows.sparkSession.sql(self.text("{rows}", "".join(f", {name}" for name in more)), rows=rows)
        shown = [F.col("id").alias(self.key), "k", "d", "f", "n", "m"]
        return rows.where(self.condition).select(*shown, F.expr(self.expression).cast(self.kind).alias("x"), *more)


def _groups(rows: DataFrame) -> DataFrame:
    summed = F.sum("n").cast("bigint").alias("n"), F.sum("m").cast("decimal(38, 2)").alias("m")
    return rows.groupBy("k").agg(F.count("*").alias("rows"), *summed, F.max("x").alias("most"))


def _same(rows: DataFrame) -> DataFrame:
    return rows


_AGGREGATES = {"rows": "count(*)", "n": "sum(n)", "m": "sum(m)", "most": "max(x)"}
_GROUPED = (
    "SELECT k, count(*) AS rows, CAST(sum(n) AS BIGINT) AS n, CAST(sum(m) AS DECIMAL(38, 2)) AS m, max(x) AS most "
    "FROM ({rows}) GROUP BY k"
)


@dataclass(frozen=True)
class Kind:
    """A way to write a table: how an asset with a function is declared, and what the function's rows become.

    ``follows_edits`` says that rows of an earlier function never stay; of own SQL, no plan shows that it was edited.
    """

    declare: Callable[[str, Function], dg.AssetsDefinition]
    result: Callable[[DataFrame], DataFrame] = _same
    follows_edits: bool = False


def _reading(
    compute: Callable[[ips.IcdcView, Function], Any],
    write: Callable[[Function], dict[str, Any]],
    partition_by: Sequence[str] = (),
    **declared: Any,  # noqa: ANN401  # incremental()'s own
) -> Callable[[str, Function], dg.AssetsDefinition]:
    def declare(name: str, function: Function) -> dg.AssetsDefinition:
        metadata = write(function) | ips.table(f"media.{name}", partition_by=partition_by)

        @dg.asset(name=name, ins={"up": ips.incremental(**declared)}, metadata=metadata)
        def made(up: ips.IcdcView):  # noqa: ANN202  # as one writes it who annotates nothing
            return compute(up, function)

        return made

    return declare


def _of_frame(name: str, function: Function) -> dg.AssetsDefinition:
    metadata = ips.append(remove_on=[function.key]) | ips.table(f"media.{name}")

    @dg.asset(name=name, ins={"up": ips.incremental()}, metadata=metadata)
    def made(up: DataFrame) -> DataFrame:
        return function(up)

    return made


def _of_own_sql(name: str, function: Function) -> dg.AssetsDefinition:
    columns = f"{function.key} bigint, k string, d date, f double, n int, m decimal(20, 2), x {function.kind}"

    @dg.asset(name=name, deps=[ips.incremental_dep("up")], metadata=ips.table(f"media.{name}"))
    def made(context):  # noqa: ANN001, ANN202  # Dagster reads its annotation at run time
        with ips.capture(context, "up", columns=columns) as icdc:
            icdc.sql(f"DELETE FROM {{target}} WHERE {function.key} IN (SELECT id FROM {{removed}})")
            icdc.sql(f"INSERT INTO {{target}} {function.text('{added}')}")

    return made


def _of_plain_table(name: str, function: Function) -> dg.AssetsDefinition:
    @dg.asset(name=name, ins={"up": dg.AssetIn("up")}, metadata=ips.table(f"media.{name}"))
    def made(up: DataFrame) -> DataFrame:
        return function(up)

    return made


def _of_sql(text: str) -> Callable[[str, Function], dg.AssetsDefinition]:
    def declare(name: str, function: Function) -> dg.AssetsDefinition:
        return ips.sql_asset(name, text.format(rows=function.text("up")), table=f"media.{name}")

    return declare


def _of_range(name: str, function: Function) -> dg.AssetsDefinition:
    metadata = ips.table(f"media.{name}", partition_by=["d"])

    @dg.asset(name=name, ins={"up": ips.incremental(ranges=["d"])}, metadata=metadata)
    def made(up: ips.IcdcView) -> ips.Overwrite:
        scope = up.range("d").between("d")
        return ips.Overwrite(function(up.source.where(scope)), where=scope)

    return made


def _by_key(function: Function) -> dict[str, Any]:
    return ips.append(remove_on=[function.key])


def _merged(function: Function) -> dict[str, Any]:
    return ips.merge(on=[function.key])


KINDS: Mapping[str, Kind] = {
    "append": Kind(_reading(lambda up, f: f(up.added), _by_key)),
    "append_by_day": Kind(_reading(lambda up, f: f(up.added), _by_key, ["d"])),
    "append_in_bites": Kind(_reading(lambda up, f: f(up.added), _by_key, max_files=1)),
    "append_of_frame": Kind(_of_frame),
    "append_once": Kind(_reading(lambda up, f: f(up.added), lambda f: ips.append(dedup_on=[f.key]), ["k"])),
    "merge": Kind(_reading(lambda up, f: f(up.added), _merged)),
    "merge_affected": Kind(_reading(lambda up, f: f(up.affected("id")), _merged, ["k"])),
    "merge_groups": Kind(_reading(lambda up, f: _groups(f(up.affected("k"))), lambda _: ips.merge(on=["k"])), _groups),
    "partitions": Kind(_reading(lambda up, f: f(up.scope), lambda _: ips.overwrite_partitions(), ["d"])),
    "partitions_affected": Kind(
        _reading(lambda up, f: f(up.affected("d")), lambda _: ips.overwrite_partitions(), ["d"])
    ),
    "replace": Kind(_reading(lambda up, f: f(up.source), lambda _: ips.replace())),
    "combine": Kind(
        _reading(lambda up, f: f(up.weighted, "_weight"), lambda _: ips.combine(on=["k"], aggregates=_AGGREGATES)),
        _groups,
        follows_edits=True,
    ),
    "overwrite": Kind(_of_range),
    "own_sql": Kind(_of_own_sql),
    "plain": Kind(_of_plain_table, follows_edits=True),
    "sql": Kind(_of_sql("{rows}"), follows_edits=True),
    "sql_groups": Kind(_of_sql(_GROUPED), _groups, follows_edits=True),
}


class WrongTableError(AssertionError):
    """A target doesn't hold what its function makes of the source, or a run failed with an error of someone else."""


@dataclass
class Made:
    """An asset of a life: how it is written, and its function now."""

    kind: str
    function: Function
    has_older_rows: bool = False


@dataclass
class RandomFunctions:
    """A table, assets over it, and random changes of both. The same seed gives the same life."""

    lake: Lake
    instance: dg.DagsterInstance
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.next_id = self.tries = 0
        kinds = self.chance.sample(sorted(KINDS), 6)
        self.assets = {f"{kind}_{self.seed}": Made(kind, Function.random(self.chance)) for kind in kinds}
        self.lake.catalog.create_namespace("media")
        self._sql("DROP TABLE IF EXISTS lake.media.up")
        layout, version = self.chance.choice(_LAYOUTS), self.chance.choice([2, 2, 3])
        ways = [f"'write.{each}.mode'='{self.chance.choice(_WAYS)}'" for each in ("delete", "update", "merge")]
        self._sql(
            f"CREATE TABLE lake.media.up ({_SCHEMA}) USING iceberg"
            f"{f' PARTITIONED BY ({layout})' if layout else ''} "
            f"TBLPROPERTIES ('format-version'='{version}', {', '.join(ways)})"
        )

    def live(self, steps: int) -> None:
        """Change the table and run every asset, ``steps`` times; check every target after each run.

        Raises:
            WrongTableError: with the life so far.
        """
        self._insert(self.chance.randint(4, 9))
        self._run()
        for _ in range(steps):
            for _ in range(self.chance.choice([1, 1, 2])):
                self._change()
            if self.chance.random() < 0.4:
                made = self.assets[self.chance.choice(sorted(self.assets))]
                before = made.function
                made.function = before if made.kind == "own_sql" else before.edited(self.chance)
                made.has_older_rows |= made.function != before
            self.tries = 0
            self._run()

    def _sql(self, text: str) -> None:
        self.steps.append(text)
        self.lake.sql(text).collect()

    def _values(self, count: int) -> str:
        rows = []
        for _ in range(count):
            self.next_id += 1
            rows.append(f"({self.next_id}, {', '.join(map(self.chance.choice, _VALUES.values()))})")
        typed = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in COLUMNS.items())
        return f"SELECT {typed} FROM VALUES {', '.join(rows)} AS v({', '.join(COLUMNS)})"

    def _insert(self, count: int) -> None:
        self._sql(f"INSERT INTO lake.media.up {self._values(count)}")

    def _change(self) -> None:
        """One commit. Its condition names only the id, so that Iceberg decides nothing by itself."""
        some = f"id % {self.chance.choice([2, 3, 5])} = {self.chance.choice([0, 1])}"
        column = self.chance.choice(sorted(_VALUES))
        value = self.chance.choice(_VALUES[column])
        match self.chance.choice(["insert"] * 3 + ["update"] * 2 + ["delete", "merge", "overwrite", "compact"]):
            case "insert":
                self._insert(self.chance.randint(1, 5))
            case "update":
                self._sql(f"UPDATE lake.media.up SET {column} = CAST({value} AS {COLUMNS[column]}) WHERE {some}")
            case "delete":
                self._sql(f"DELETE FROM lake.media.up WHERE {some}")
            case "merge":
                self._sql(
                    f"MERGE INTO lake.media.up t USING (SELECT * FROM ({self._values(2)}) UNION ALL "
                    f"SELECT id, k, d, f, n + 1, m FROM lake.media.up WHERE {some}) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
            case "overwrite":
                self._sql(f"INSERT OVERWRITE lake.media.up SELECT * FROM lake.media.up WHERE NOT ({some})")
            case "compact":
                self._sql("CALL lake.system.rewrite_data_files('media.up', options => map('rewrite-all', 'true'))")

    def _run(self, *, full: bool = False, only: Sequence[str] = ()) -> None:
        names = list(only or self.assets)
        made = [KINDS[self.assets[name].kind].declare(name, self.assets[name].function) for name in names]
        definitions = definitions_on(
            self.lake.folder, self.lake.spark_folder, ips.iceberg_asset("up", table="media.up"), *made
        )
        job = definitions.resolve_implicit_global_asset_job_def()
        tags = {"dagster_ips/mode": "full"} if full else {}
        keys = [dg.AssetKey(name) for name in names]
        done = job.execute_in_process(instance=self.instance, asset_selection=keys, tags=tags, raise_on_error=False)
        self.steps.append(f"run {names} {'full' if full else ''}")
        refused = {event.step_key: _chain(event.step_failure_data.error) for event in done.get_step_failure_events()}
        rows = self.lake.sql("SELECT * FROM lake.media.up").collect()
        again = []
        for name in names:
            if name not in refused:
                again += self._checked(name, rows, done, full=full)
            elif not set(refused[name]) & REFUSALS:
                raise self._wrong(name, f"failed: {refused[name]}")
            elif full:
                self.outcomes["never"] += 1
                self.steps.append(f"{name} is refused: {refused[name]}")
                del self.assets[name]
            else:
                self.outcomes["refused"] += 1
                again.append(name)
        if again:
            self.tries = 0
            self._run(full=True, only=again)

    def _checked(self, name: str, rows: Sequence[Any], done: dg.ExecuteInProcessResult, *, full: bool) -> Iterator[str]:
        """Check the target of an asset that has run; yields its name if rows that are said to be older are left."""
        asset = self.assets[name]
        kind = KINDS[asset.kind]
        expected = _counted(kind.result(asset.function(self._in_memory(rows))))
        held = _counted(self.lake.sql(f"SELECT * FROM lake.media.{name}"))
        is_older = asset.has_older_rows and not full and not kind.follows_edits
        asset.has_older_rows &= not full
        self.outcomes["full" if full else "incremental"] += 1
        if held == expected:
            return
        if asset.kind == "append_in_bites" and not is_older and self.tries < MOST_BITES:
            self.tries += 1
            self._run(only=[name])
            return
        if is_older and any("older rows" in event.materialization.metadata for event in _materializations(done, name)):
            self.outcomes["older"] += 1
            yield name
            return
        raise self._wrong(name, f"{asset}\nmissing: {expected - held}\ntoo many: {held - expected}")

    def _in_memory(self, rows: Sequence[Any]) -> DataFrame:
        return self.lake.session.createDataFrame([tuple(row) for row in rows], _SCHEMA)

    def _wrong(self, name: str, what: str) -> WrongTableError:
        told = "\n".join(self.steps)
        return WrongTableError(f"seed {self.seed}, {name}: {what}\n{told}")


def _materializations(done: dg.ExecuteInProcessResult, name: str) -> Sequence[Any]:
    events = done.get_asset_materialization_events()
    return [event.event_specific_data for event in events if event.asset_key == dg.AssetKey(name)]


def _chain(error: Any) -> list[str]:  # noqa: ANN401  # Dagster's SerializableErrorInfo
    """The names of an error and of its causes; the message of the last."""
    names = []
    while error is not None:
        names.append(error.cls_name)
        message, error = error.message, error.cause
    return [*names, message]


def _counted(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    """The rows of a frame without hidden columns, by their names; NaN equals NaN, and -0.0 equals 0.0."""
    names = sorted(name for name in frame.columns if not name.startswith("_ips_"))
    return Counter(tuple(_plain(value) for value in row) for row in frame.select(*names).collect())


def _plain(value: object) -> object:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value
