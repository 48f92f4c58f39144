"""Generates playback events as devices would send them: the same events for the same seed on every machine."""

import datetime as dt
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FIRST_DAY = dt.date(2026, 1, 1)
BATCHES_PER_DAY = 6
LATE_DAYS = 13
PLAN_CHANGES_EVERY_DAYS = 7
TITLES = 2_000

_LATE_EVERY = 3
_LATE_DECAY = 0.6
_DAY_SECONDS = 86_400
_BATCH_SECONDS = _DAY_SECONDS // BATCHES_PER_DAY
_MICROSECONDS = 1_000_000
_PLAYS_PER_ACCOUNT = 5
_LONGEST_PLAY_SECONDS = 7_200
_EVENT_IDS_PER_DAY = 10**9
_DEVICES = ["tv", "phone", "tablet", "web", "console", "stick", "box", "headset"]
_COUNTRIES = ["US", "BR", "GB", "DE", "FR", "IN", "MX", "JP", "KR", "ES", "IT", "CA", "AU", "AR", "PL", "SE"]
_PLANS = ["basic", "standard", "premium"]
_PLAN_CHANGES_PER_ACCOUNT = 0.01
_GENRES = ["drama", "comedy", "documentary", "kids", "action", "animation"]

EVENT_SCHEMA = pa.schema(
    [
        ("event_id", pa.int64()),
        ("account_id", pa.int64()),
        ("title_id", pa.int32()),
        ("device", pa.string()),
        ("country", pa.string()),
        ("play_seconds", pa.int32()),
        ("event_ts", pa.timestamp("us", tz="UTC")),
        ("event_date", pa.date32()),
        ("ingested_at", pa.timestamp("us", tz="UTC")),
    ]
)

PLAN_SCHEMA = pa.schema(
    [("change_id", pa.int64()), ("account_id", pa.int64()), ("plan", pa.string()), ("valid_on", pa.date32())]
)

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """How many events land on a day, the fraction of them that is late, and the seed of the random numbers."""

    rows_per_day: int = 300_000
    late: float = 0.03
    seed: int = 7


def landing_batches(day: int, workload: Workload) -> list[pa.Table]:
    """The events that land on day number ``day`` (0 is `FIRST_DAY`), in six batches, one for every four hours.

    Most events of a batch happened in its four hours. Every third batch also contains events of the 13 days before,
    which devices held back while they were offline; each day has 0.6 times as many of them as the next one. No event is
    older than `FIRST_DAY`.

    >>> [batch.num_rows for batch in landing_batches(1, Workload(rows_per_day=1200, late=0.5))]
    [100, 100, 400, 100, 100, 400]
    """
    random = np.random.default_rng([workload.seed, day])
    when = _arrivals(random, day, workload)
    events = _events(random, day, when, accounts=_accounts(workload))
    return [events.take(np.flatnonzero(when.batch == batch)) for batch in range(BATCHES_PER_DAY)]


def titles() -> pa.Table:
    """The dimension table: 2,000 titles with name, genre and running time. Always the same.

    >>> titles().slice(0, 1).to_pylist()
    [{'title_id': 0, 'title_name': 'Title 0', 'genre': 'drama', 'runtime_seconds': 1200}]
    """
    ids = np.arange(TITLES)
    return pa.table(
        {
            "title_id": pa.array(ids, pa.int32()),
            "title_name": [f"Title {i}" for i in ids],
            "genre": [_GENRES[i % len(_GENRES)] for i in ids],
            "runtime_seconds": pa.array(1_200 + ids * 97 % 6_000, pa.int32()),
        }
    )


def plan_changes(day: int, workload: Workload) -> pa.Table:
    """The plan changes that land on day number ``day``: which plan an account has from ``valid_on`` on.

    On day 0 every account gets its first plan. Every seventh day after that, one in a hundred accounts changes its
    plan, half of them with effect from up to 13 days earlier, but not before `FIRST_DAY`. Of several changes for the
    same day, the last one counts.

    >>> [plan_changes(day, Workload(rows_per_day=1000)).num_rows for day in (0, 1, 7)]
    [200, 0, 2]
    """
    random = np.random.default_rng([workload.seed, day, len(_PLANS)])
    accounts = np.arange(_accounts(workload))
    if day:
        changed = max(round(len(accounts) * _PLAN_CHANGES_PER_ACCOUNT), 1) if day % PLAN_CHANGES_EVERY_DAYS == 0 else 0
        accounts = random.choice(accounts, size=changed, replace=False)
    days_late = random.integers(0, min(day, LATE_DAYS) + 1, len(accounts)) * (np.arange(len(accounts)) % 2 == 0)
    columns = {
        "change_id": day * _EVENT_IDS_PER_DAY + np.arange(len(accounts)),
        "account_id": accounts,
        "plan": _named(random.integers(0, len(_PLANS), len(accounts)), _PLANS),
        "valid_on": (_days_since_epoch(FIRST_DAY) + day - days_late).astype(np.int32),
    }
    return pa.table([pa.array(columns[f.name]).cast(f.type) for f in PLAN_SCHEMA], schema=PLAN_SCHEMA)


@dataclass(frozen=True)
class _Arrivals:
    """For each event: the day and the second of the day when it happened, and the batch in which it lands."""

    day: _Ints
    second: _Ints
    batch: _Ints


def _arrivals(random: np.random.Generator, day: int, workload: Workload) -> _Arrivals:
    late = round(workload.rows_per_day * workload.late) if day else 0
    on_time = workload.rows_per_day - late
    on_time_batch = np.arange(on_time) * BATCHES_PER_DAY // max(on_time, 1)
    late_batches = np.arange(_LATE_EVERY - 1, BATCHES_PER_DAY, _LATE_EVERY)
    late_batch = late_batches[np.arange(late) * len(late_batches) // max(late, 1)]
    on_time_second = on_time_batch * _BATCH_SECONDS + random.integers(0, _BATCH_SECONDS, on_time)
    return _Arrivals(
        day=np.concatenate([np.full(on_time, day), day - _days_late(random, late, most=min(day, LATE_DAYS))]),
        second=np.concatenate([on_time_second, random.integers(0, _DAY_SECONDS, late)]),
        batch=np.concatenate([on_time_batch, late_batch]),
    )


def _days_late(random: np.random.Generator, count: int, *, most: int) -> _Ints:
    """Numbers of days between 1 and ``most``, each geometrically less frequent than the one before."""
    weights = _LATE_DECAY ** np.arange(most)
    return random.choice(np.arange(1, most + 1), size=count, p=weights / weights.sum()) if count else np.empty(0, int)


def _events(random: np.random.Generator, landed: int, when: _Arrivals, *, accounts: int) -> pa.Table:
    count = len(when.day)
    first_day = _days_since_epoch(FIRST_DAY)
    date = first_day + when.day
    landed_second = (first_day + landed) * _DAY_SECONDS + (when.batch + 1) * _BATCH_SECONDS
    columns = {
        "event_id": landed * _EVENT_IDS_PER_DAY + np.arange(count),
        "account_id": _skewed(random, count, accounts),
        "title_id": _skewed(random, count, TITLES).astype(np.int32),
        "device": _named(_skewed(random, count, len(_DEVICES)), _DEVICES),
        "country": _named(_skewed(random, count, len(_COUNTRIES)), _COUNTRIES),
        "play_seconds": random.integers(0, _LONGEST_PLAY_SECONDS, count).astype(np.int32),
        "event_ts": (date * _DAY_SECONDS + when.second) * _MICROSECONDS,
        "event_date": date.astype(np.int32),
        "ingested_at": landed_second * _MICROSECONDS,
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in EVENT_SCHEMA]
    return pa.table(arrays, schema=EVENT_SCHEMA)


def _accounts(workload: Workload) -> int:
    return max(workload.rows_per_day // _PLAYS_PER_ACCOUNT, 1)


def _days_since_epoch(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days


def _skewed(random: np.random.Generator, count: int, below: int) -> _Ints:
    """Integers from 0 to ``below`` (exclusive), of which small ones are many times as frequent as large ones."""
    drawn: _Ints = (below * random.random(count) ** 2).astype(np.int64)
    return drawn


def _named(index: _Ints, names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int8)), pa.array(names))
