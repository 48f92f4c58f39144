"""What a run did, asset by asset, read from its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_ips.core.log_lines import Event, LogLine
from dagster_ips.errors import UnknownRunError
from dagster_ips.orchestration.declare.maintained_rows import IS_BEST, REFRESH, WHY_NOT_BETTER
from dagster_ips.orchestration.run.cascade_tag import CASCADE_TAG

_MOST_RUNS = 1000


@dataclass
class AssetStory:
    """What a run did for one asset. ``captures`` has one log line per input, ``commits`` one per upstream.

    ``refresh`` is the strategy by which the table of a query was brought up to date, with why it wasn't a better one,
    empty if there is none. ``errors`` say why the asset failed, the innermost cause first.
    """

    asset: str
    captures: list[Mapping[str, str]] = field(default_factory=list)
    refresh: tuple[str, str] | None = None
    written: Mapping[str, str] | None = None
    published: Mapping[str, str] | None = None
    skipped: Mapping[str, str] | None = None
    commits: list[Mapping[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def follow(self, line: LogLine) -> None:
        """Process the next line of the log."""
        match line.event:
            case Event.CAPTURE:
                self._begin_again(line)
                self.captures.append(line.values)
            case Event.WRITE:
                self.written = line.values
            case Event.PUBLISH:
                self.published = line.values
            case Event.SKIP:
                self.skipped, self.written = line.values, None
            case Event.COMMIT:
                self.commits.append(line.values)

    def _begin_again(self, line: LogLine) -> None:
        """Start over if an input is captured a second time: it is a retry, and only the last attempt counts."""
        if any(each["input"] == line.values["input"] for each in self.captures):
            self.captures, self.commits = [], []
            self.written = self.published = self.skipped = None

    def refreshed(self, metadata: Mapping[str, dg.MetadataValue[Any]]) -> None:
        """Process the metadata of the asset's materialization, which doesn't mention a strategy without a query."""
        strategy, why = (getattr(metadata.get(name), "value", None) for name in (REFRESH, WHY_NOT_BETTER))
        if strategy is not None:
            self.refresh = str(strategy), "" if why in (None, IS_BEST) else str(why)


@dataclass(frozen=True)
class RunStory:
    """A run, and what it did for each asset that captured something or failed; ``others`` are its other assets."""

    run: dg.DagsterRun
    started_ms: int | None
    ended_ms: int | None
    assets: Mapping[str, AssetStory]
    others: Sequence[str]

    @property
    def cascade(self) -> str | None:
        """The cascade that the run belongs to; None if there is none."""
        return self.run.tags.get(CASCADE_TAG)


def story_of(instance: dg.DagsterInstance, run_id: str) -> RunStory:
    """The story of the run whose id is ``run_id`` or begins with it.

    Raises:
        UnknownRunError: there is no such run, or there are several.
    """
    record = _record(instance, run_id)
    run = record.dagster_run
    stories: dict[str, AssetStory] = {}
    steps: dict[str, list[str]] = {}
    for entry in instance.all_logs(run.run_id):
        event = entry.dagster_event
        if event is None:
            line = LogLine.parse(entry.user_message)
            if line is not None and (asset := line.values.get("asset")):
                stories.setdefault(asset, AssetStory(asset)).follow(line)
        elif event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED and event.step_key:
            steps.setdefault(event.step_key, []).append(_name(event.asset_key))
        elif (made := entry.asset_materialization) is not None and (story := stories.get(_name(made.asset_key))):
            story.refreshed(made.metadata)
        elif event.event_type is dg.DagsterEventType.STEP_FAILURE and event.step_key:
            for asset in steps.get(event.step_key, []):
                failed = stories.setdefault(asset, AssetStory(asset))
                failed.errors = list(causes(event.event_specific_data.error))  # type: ignore[union-attr]
    others = sorted({name for names in steps.values() for name in names} - stories.keys())
    return RunStory(run, _ms(record.start_time), _ms(record.end_time), stories, others)


def causes(error: Any) -> Iterator[str]:  # noqa: ANN401  # Dagster's serialized error has no public name
    """The messages of an error and its causes, innermost first, because Dagster wraps the actual error in its own."""
    if error is not None:
        yield from causes(error.cause)
        yield error.message.strip()


def _record(instance: dg.DagsterInstance, run_id: str) -> dg.RunRecord:
    exact = instance.get_run_record_by_id(run_id)
    if exact is not None:
        return exact
    found = [each for each in instance.get_run_records(limit=_MOST_RUNS) if each.dagster_run.run_id.startswith(run_id)]
    if len(found) != 1 or not run_id:
        raise UnknownRunError(run=run_id, known=tuple(each.dagster_run.run_id for each in found), looked_at=_MOST_RUNS)
    return found[0]


def _name(key: dg.AssetKey | None) -> str:
    return key.to_user_string() if key else ""


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
