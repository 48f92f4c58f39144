"""A Spark session that isn't one: it has settings, and does the few statements by which a run changes its table."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dagster_ips.spark.branches import SNAPSHOT_PROPERTY, Branch
from tests.interleavings.lake import Rows, Table

_DROP = re.compile(r"ALTER TABLE \S+ DROP BRANCH IF EXISTS `(\w+)`")
_CREATE = re.compile(r"ALTER TABLE \S+ CREATE BRANCH `(\w+)` RETAIN \d+ DAYS")
_SET = re.compile(r"ALTER TABLE \S+ SET TBLPROPERTIES \('([^']+)' ?= ?'([^']+)'\)")
_BRANCH = re.compile(r"`branch_(\w+)`$")


@dataclass
class _Settings:
    values: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.values.pop(name, None)

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)


@dataclass
class NoSpark:
    """The session of one run of the asset that writes ``target``."""

    target: Table
    conf: _Settings = field(default_factory=_Settings)

    def sql(self, text: str) -> None:
        """Do a statement as Spark does."""
        if found := _DROP.fullmatch(text):
            self.target.drop_ref(found[1])
        elif found := _CREATE.fullmatch(text):
            if (head := self.target.head) is not None:
                self.target.set_ref(found[1], head)
            else:  # Spark makes an empty snapshot for the branch.
                self.target.commit(Counter(), ref=found[1])
        elif found := _SET.fullmatch(text):
            self.target.set_properties({found[1]: found[2]})
        else:
            raise NotImplementedError(text)

    def table(self, name: str) -> Any:  # noqa: ANN401  # what is used of a frame
        """The rows of a branch, of which only none are ever taken."""
        return _NoRows(self, name)

    def write(self, branch: Branch, rows: Rows, *, times: int = 1) -> None:
        """Make ``rows`` those of the branch, in one commit or two."""
        now = self.rows(branch)
        gone, new = now - rows, rows - now
        if times > 1 and gone:
            self._commit(branch, gone, Counter())
            gone = Counter()
        if gone or new:
            self._commit(branch, gone, new)

    def rows(self, branch: Branch) -> Rows:
        """What the branch holds; main if it is missing, as a write would create it there."""
        metadata = self.target.metadata
        return self.target.rows(metadata.head_snapshot_id(branch.name) or metadata.head_snapshot_id())

    def _commit(self, branch: Branch, gone: Rows, new: Rows) -> None:
        metadata = self.target.metadata
        live = self.target.live[metadata.head_snapshot_id(branch.name) or metadata.head_snapshot_id()]
        touched = {path: file.rows for path, file in live.items() if file.rows & gone}
        rest: Rows = sum(touched.values(), Counter()) - gone
        self.target.commit(rest + new, drop=touched.keys(), ref=branch.name, summary=self.summary)

    @property
    def summary(self) -> dict[str, str]:
        """What every commit of the session carries."""
        return {
            name.removeprefix(SNAPSHOT_PROPERTY): value
            for name, value in self.conf.values.items()
            if name.startswith(SNAPSHOT_PROPERTY)
        }


@dataclass
class _NoRows:
    session: NoSpark
    name: str

    def where(self, condition: str) -> _NoRows:
        assert condition == "FALSE"
        return self

    def writeTo(self, name: str) -> _NoRows:  # noqa: N802  # Spark's name
        return _NoRows(self.session, name)

    def append(self) -> None:
        found = _BRANCH.search(self.name)
        assert found
        self.session.target.commit(Counter(), ref=found[1], summary=self.session.summary)
