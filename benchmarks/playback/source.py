"""The source: playback events of made-up accounts, most of the current day, some late, in many small files."""

from dataclasses import dataclass

from pyspark.sql import SparkSession

from benchmarks.playback.stages import WIDE, Stages

MEMORY = "6g"
FIRST_DAY = "DATE '2026-01-01'"
TITLES = 5_000
_PLAYS_PER_ACCOUNT = 5
_GENRES = "array('drama', 'comedy', 'documentary', 'kids', 'action', 'animation')"
_DEVICES = "array('tv', 'phone', 'tablet', 'web', 'console', 'stick', 'box', 'headset')"
_COUNTRIES = "array('US', 'BR', 'GB', 'DE', 'FR', 'IN', 'MX', 'JP', 'KR', 'ES', 'IT', 'CA', 'AU', 'AR', 'PL', 'SE')"


@dataclass(frozen=True)
class Workload:
    """``rows`` arrive each day in ``commits``; the share ``late`` of them belongs to the ``window - 1`` days before.

    Each of those days has ``decay`` times as many late rows as the next day; with 1, all have the same number.
    """

    rows: int
    late: float
    window: int
    commits: int = 8
    decay: float = 0.6
    stages: Stages = WIDE


@dataclass
class Source:
    """Writes the source to ``namespace``: the same rows for the same workload and days."""

    session: SparkSession
    namespace: str
    workload: Workload
    days: int = 0
    _rows: int = 0

    def create(self) -> None:
        """Create an empty source, and the titles."""
        self.session.sql(
            f"CREATE TABLE {self.namespace}.playback USING iceberg PARTITIONED BY (event_date) "
            "TBLPROPERTIES ('write.distribution-mode' = 'none', 'write.spark.fanout.enabled' = 'true') "
            f"AS SELECT {self._events(FIRST_DAY)} FROM range(0)"
        )
        self.session.sql(
            f"CREATE TABLE {self.namespace}.title USING iceberg AS SELECT /*+ COALESCE(1) */ CAST(id AS INT) title_id, "
            f"{_GENRES}[CAST(pmod(hash(id), 6) AS INT)] genre, CAST(1200 + pmod(hash(id, 3), 6000) AS INT) "
            f"runtime_seconds FROM range({TITLES})"
        )

    def past(self, days: int) -> None:
        """Add the events of ``days`` at once, as they would be after that many days of arrivals."""
        count = self.workload.rows * days
        day = f"date_add({FIRST_DAY}, CAST({_uniform(12)} * {days} AS INT))"
        self._insert(
            f"SELECT {self._events(day)} FROM range({self._rows}, {self._rows + count}) DISTRIBUTE BY event_date"
        )
        self._rows += count
        self.days += days

    def arrive(self) -> None:
        """Add one more day, in small commits that each have their share of late rows."""
        today = f"date_add({FIRST_DAY}, {self.days})"
        late = f"date_add({today}, -{self._delay()})"
        day = f"CASE WHEN {_uniform(13)} < {self.workload.late} THEN {late} ELSE {today} END"
        each = self.workload.rows // self.workload.commits
        for _ in range(self.workload.commits):
            self._insert(f"SELECT {self._events(day)} FROM range({self._rows}, {self._rows + each}, 1, 4)")
            self._rows += each
        self.days += 1

    def _insert(self, rows: str) -> None:
        self.session.sql(f"INSERT INTO {self.namespace}.playback {rows}").collect()

    def _delay(self) -> str:
        most, decay = self.workload.window - 1, self.workload.decay
        if decay == 1:
            return f"(1 + CAST({most} * {_uniform(11)} AS INT))"
        days = f"floor(ln(1 - {_uniform(11)} * (1 - pow({decay}, {most}))) / ln({decay}))"
        return f"(1 + least({most - 1}, CAST({days} AS INT)))"

    def _events(self, day: str) -> str:
        accounts = max(10, self.workload.rows // _PLAYS_PER_ACCOUNT)
        is_wide = self.workload.stages is WIDE
        wide = {
            "profile_id": "CAST(pmod(xxhash64(id, 3), 5) AS INT)",
            "app_version": "concat('v', pmod(xxhash64(id, 7), 9), '.', pmod(xxhash64(id, 8), 30))",
            "session_id": "substring(md5(CAST(id AS STRING)), 1, 16)",
        }
        time = f"timestamp_seconds(unix_date({day}) * 86400L + pmod(xxhash64(id, 10), 86400))"
        columns = {
            "event_id": "id",
            "account_id": f"CAST({accounts} * pow({_uniform(2)}, {2 if is_wide else 1}) AS BIGINT)",
            "title_id": f"CAST({TITLES} * pow({_uniform(4)}, 3) AS INT)",
            "device": f"{_DEVICES}[CAST(8 * pow({_uniform(5)}, 2) AS INT)]",
            "country": f"{_COUNTRIES}[CAST(16 * pow({_uniform(6)}, 2) AS INT)]",
            **(wide if is_wide else {}),
            "play_seconds": "CAST(pmod(xxhash64(id, 9), 7200) AS INT)",
            "event_ts": time,
            **({} if is_wide else {"ingested_at": time}),
            "event_date": day,
        }
        return ", ".join(f"{sql} AS {name}" for name, sql in columns.items())


def _uniform(number: int) -> str:
    """SQL for a number between 0 and 1 (both excluded) that depends on the row's id and on ``number``."""
    return f"((pmod(xxhash64(id, {number}), 1000003) + 0.5) / 1000003)"
