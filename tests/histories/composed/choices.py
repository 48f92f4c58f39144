"""Random lives: the same seed gives the same steps, as far as time allows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from dagster_ips.exactly_once.effects import Effect
from tests.histories.composed.assets import SOURCES, TOGETHER
from tests.histories.composed.expected import EXPECTED
from tests.histories.composed.life import PENDING, RENAMES, TARGET_STEPS, Coverage, Life, Step
from tests.histories.composed.runs import Assets
from tests.histories.composed.values import ALIKE, FREE
from tests.histories.operations import OPERATIONS, Operation
from tests.histories.table import Shape

STEPS = 22
_POOL = 60
_FAMILIES: Mapping[str, int] = {
    "append": 40,
    "delete": 9,
    "update": 9,
    "merge": 6,
    "overwrite": 4,
    "by hand": 3,
    "maintenance": 10,
    "publish": 3,
    "move": 4,
    "expire": 6,
    "schema": 5,
    "spec": 3,
    "format": 1,
    "replace": 1,
}
_OF_FREE = ("drop_column", "rename_column")
"""Operations on free columns only: an asset that uses the name of a missing column fails by itself."""
_WHEN = ("before", "after")
KILLS = tuple(
    f"{when}:{effect}"
    for effect in (
        Effect.REGISTER_ICDC_TABLE,
        Effect.CREATE_BRANCH,
        Effect.WRITE_BRANCH,
        Effect.PUBLISH,
        Effect.COPY_PROGRESS,
        Effect.DROP_BRANCH,
    )
    for when in _WHEN
)
KINDS_OF_STEPS = (
    *(f"{family} of a source" for family in _FAMILIES),
    *(f"{what} of the target" for what in TARGET_STEPS),
    *(f"killed {at}" for at in (*KILLS, *(f"{when}:{Effect.CREATE_TARGET}" for when in _WHEN))),
    *(f"{each} of a source" for each in RENAMES),
    *(f"{each} of a lookup" for each in RENAMES),
    "a partition that comes back",
    "a partition that comes later",
    "a partition that is deleted",
    "accepted",
    "by Dagster",
    "full",
    "overlapping",
    "restored",
    "slept",
    "together",
)
"""The kinds of steps that must precede a run before random lives have covered enough."""
_PARTITIONINGS = ((), (), ("day",), ("title",), ("bucket(2, number)",), ("day", "title"), ("written",), ("days(day)",))


@cache
def _pool(name: str) -> Sequence[dict[str, Any]]:
    """Possible arguments of an operation; always the same."""
    found: list[dict[str, Any]] = []

    @seeded(1)
    @settings(max_examples=_POOL, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(OPERATIONS[name].arguments)
    def collect(arguments: dict[str, Any]) -> None:
        found.append(arguments)

    collect()
    return found


class Chance:
    """Chooses the steps of a life at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def life(self, assets: Assets, coverage: Coverage) -> Life:
        """A new life: a few assets, among them some of the least covered, and their upstreams."""
        least = sorted(EXPECTED, key=lambda name: sum(n for (a, _), n in coverage.ends.items() if a == name))
        chosen = {self.random.choice(least[:6]), *self.random.sample(sorted(EXPECTED), 2)}
        for name in tuple(chosen):
            chosen |= set(assets.inputs(name)) - set(SOURCES)
        if chosen & set(TOGETHER):
            chosen |= set(TOGETHER)
        names = [name for name in EXPECTED if name in chosen]
        shapes = {name: self._shape() for name in SOURCES}
        return Life(assets, names, shapes, coverage)

    def _shape(self) -> Shape:
        version = self.random.choices((1, 2, 3), (2, 6, 2))[0]
        return Shape(version, self.random.choice(_PARTITIONINGS), self.random.random() < 0.3)

    def first(self, life: Life) -> list[Step]:
        """Rows in every source, perhaps large tables, and perhaps a run that is killed while it creates its table."""
        rows = [Step.of("change", table=name, operation="append_by_spark", rows=self._rows(3)) for name in SOURCES]
        asset, at = self.random.choice(life.names), f"{self.random.choice(_WHEN)}:{Effect.CREATE_TARGET}"
        killed = [Step.of("kill", asset=asset, at=at, keys=self._keys(asset))]
        large = [Step.of("meet_large_tables")] * (self.random.random() < 0.5)
        return rows + large + killed * (self.random.random() < 0.15)

    def _rows(self, most: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(24) for _ in range(self.random.randint(1, most)))

    def then(self, life: Life) -> list[Step]:  # noqa: C901, PLR0911  # one return per kind of step
        """The next steps."""
        kind = self.random.choices(
            (
                "change",
                "target",
                "backup",
                "restore",
                "partition",
                "begin",
                "end",
                "kill",
                "duplicate",
                "accept",
                "together",
                "rename",
            ),
            (60, 9, 3, 4, 4, 5, 6, 6, 3, 6, 12, 6),
        )[0]
        asset = self.random.choice(life.names)
        keys = self._keys(asset)
        slot = self.random.choice("ab")
        match kind:
            case "change":
                return [self._change(life), *self._runs(life)]
            case "target":
                return [Step.of("target", asset=asset, what=self.random.choice(TARGET_STEPS)), *self._runs(life, asset)]
            case "backup" | "restore":
                return [Step.of(kind), *self._runs(life)]
            case "partition":
                what = "remove_partition" if self.random.random() < 0.3 else "add_partition"
                return [Step.of(what, key=self.random.choice("012")), self._change(life), *self._runs(life)]
            case "begin":
                return [self._change(life), Step.of("begin", asset=asset, slot=slot, keys=keys)]
            case "end":
                return [Step.of("end", slot=slot)]
            case "kill":
                return [self._change(life), Step.of("kill", asset=asset, at=self.random.choice(KILLS), keys=keys)]
            case "accept":
                return self._accepted(life)
            case "together":
                return [self._change(life), *self._together(life)]
            case "rename":
                return [self._rename(life), self._change(life), *self._runs(life)]
            case _:
                both = [Step.of("begin", asset=asset, slot=slot, keys=keys) for slot in "cd"]
                ends = [Step.of("end", slot=slot) for slot in self.random.sample("cd", 2)]
                return [
                    self._change(life),
                    both[0],
                    *([self._change(life)] * self.random.randint(0, 1)),
                    both[1],
                    *ends,
                ]

    def _together(self, life: Life) -> list[Step]:
        """Runs of the tables of one step, if the step is part of the life; a few are killed."""
        names = sorted(set(TOGETHER) & set(life.names), reverse=True)
        at = self.random.choice(KILLS) if self.random.random() < 0.3 else ""
        return [Step.of("run_together", assets=tuple(names), at=at)] * (len(names) > 1)

    def _accepted(self, life: Life) -> list[Step]:
        """Others write to a table, the asset's run accepts that, and life continues."""
        found: list[Step] = []
        for asset in life.names:
            if EXPECTED[asset].only_adds:
                what = self.random.choice(("foreign append", "foreign delete"))
                found += [Step.of("target", asset=asset, what=what), self._change(life)]
                found += [Step.of("accept", asset=asset), self._change(life)]
        return [*found, *self._runs(life)]

    def _source(self, life: Life) -> str:
        """A source that the life's assets read."""
        used = {name for asset in life.names for name in (*life.assets.inputs(asset), *life.assets.lookups(asset))}
        return self.random.choice([name for name in SOURCES if name in used])

    def _rename(self, life: Life) -> Step:
        """Make names of a source mean other columns, which no commit shows."""
        chosen = OPERATIONS[self.random.choice(RENAMES)]
        return Step.of("change", table=self._source(life), operation=chosen.name, **self._arguments(chosen))

    def _change(self, life: Life) -> Step:
        table = self._source(life)
        family = self.random.choices(list(_FAMILIES), list(_FAMILIES.values()))[0]
        version = life.tables[table].version
        possible = [o for o in OPERATIONS.values() if o.family == family and version in o.versions]
        if not possible:
            return Step.of("change", table=table, operation="append_by_spark", rows=self._rows(4))
        chosen = self.random.choice(possible)
        if family == "append" and version < 3 and self.random.random() < 0.8:
            return Step.of("change", table=table, operation="append_by_pyiceberg", rows=self._rows(4))
        return Step.of("change", table=table, operation=chosen.name, **self._arguments(chosen))

    def _arguments(self, chosen: Operation) -> dict[str, Any]:
        if chosen.name in _OF_FREE:
            return {"role": self.random.choice(FREE)}
        if chosen.name == "swap_names":
            return dict(zip(("one", "other"), self.random.choice(ALIKE), strict=True))
        return self.random.choice(_pool(chosen.name))

    def _keys(self, asset: str) -> tuple[str, ...]:
        every = EXPECTED[asset].partitions
        if every and self.random.random() < 0.6:
            return PENDING
        first = self.random.randrange(len(every)) if every else 0
        return every[first : first + self.random.randint(1, 3)]

    def _runs(self, life: Life, *always: str) -> list[Step]:
        """Runs of some assets, stage after stage."""
        found = []
        for asset in life.names:
            if asset in always or self.random.random() < 0.6:
                by = "Dagster" if self.random.random() < 0.06 else "hand"
                full = self.random.random() < 0.05
                mended = self.random.random() < 0.6
                found.append(Step.of("run", asset=asset, keys=self._keys(asset), by=by, full=full, mended=mended))
        return found
