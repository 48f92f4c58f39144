"""What may happen to the model of a table: each a commit, or a change of how later ones are written.

A step that has nothing to work on does nothing, so that every list of steps is a history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.histories.manifest_model import SPECS, File, Kind, ModelTable, Row, rows_of

Operation = Callable[[ModelTable], None]
OPERATIONS: dict[str, Operation] = {}
_WEIGHTS: list[int] = []


@dataclass(frozen=True, slots=True)
class Step:
    """An operation, and the seed of all that it decides."""

    operation: str
    seed: int


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """The steps of a table that began in format ``version``, after an append; ``seed`` gives the same one again."""

    seed: int
    version: int
    steps: tuple[Step, ...]

    @classmethod
    def of_seed(cls, seed: int) -> ModelHistory:
        """The random one of this seed."""
        random = Random(seed)
        names = random.choices(list(OPERATIONS), _WEIGHTS, k=random.randint(4, 10))
        return cls(seed, random.choice([1, 2, 3]), tuple(Step(name, random.getrandbits(32)) for name in names))

    def table(self) -> ModelTable:
        """A new table after these steps."""
        table = ModelTable(self.version, Random(self.seed))
        append(table)
        for step in self.steps:
            table.random = Random(step.seed)
            OPERATIONS[step.operation](table)
        return table

    def shorter(self) -> Iterable[ModelHistory]:
        """The same without one of the steps."""
        return (replace(self, steps=self.steps[:at] + self.steps[at + 1 :]) for at in range(len(self.steps)))


def operation(weight: int) -> Callable[[Operation], Operation]:
    """Let random histories have it ``weight`` times as often as one with weight 1."""

    def add(function: Operation) -> Operation:
        OPERATIONS[function.__name__] = function
        _WEIGHTS.append(weight)
        return function

    return add


@operation(5)
def append(table: ModelTable) -> None:
    table.commit("append", _new_files(table, _new_rows(table)))


@operation(1)
def overwrite(table: ModelTable) -> None:
    table.commit("overwrite", _new_files(table, _new_rows(table)), _some(table, table.data))


@operation(1)
def remove_files(table: ModelTable) -> None:
    table.commit("delete", (), _with_vectors(table, _some(table, table.data)))


@operation(1)
def change_nothing(table: ModelTable) -> None:
    table.commit(table.random.choice(["append", "delete", "overwrite", "replace"]))


@operation(1)
def copy_without_a_row(table: ModelTable) -> None:
    for file in _some(table, table.data, most=1):
        rows = list(rows_of([file], table.deletes).elements())
        table.commit("overwrite", _new_files(table, rows[1:]), _with_vectors(table, [file]))


@operation(7)
def add_removed_file_again(table: ModelTable) -> None:
    """Its path was live before and isn't now, as after ``add_files``."""
    live = {file.path for file in table.data}
    removed = [file for file in table.written.values() if file.kind is Kind.DATA and file.path not in live]
    table.commit("append", _some(table, removed, most=1))


@operation(1)
def remove_and_add_at_once(table: ModelTable) -> None:
    files = _some(table, table.data, most=1)
    table.commit("overwrite", files, files)


@operation(1)
def list_live_file_again(table: ModelTable) -> None:
    table.commit("append", _some(table, table.data, most=1))


@operation(9)
def compact(table: ModelTable) -> None:
    """Deletes by equality may be committed while the compaction is at work; deletes by position are a conflict."""
    ancestors = list(table.ancestors())[:3]
    start = table.random.choice([ancestors[0], *ancestors])
    data, deletes = table.live(start)
    since = [file for file in table.deletes if file not in deletes and file.kind is Kind.POSITIONS]
    chosen = {file.path for file in _some(table, data, most=4)}
    files = [file for file in table.data if file.path in chosen]
    if not set(files) <= set(data) or rows_of(files, since) != rows_of(files, []):
        return
    spec_id = table.random.choice([*[file.spec_id for file in files], table.spec_id])
    rows = list(rows_of(files, deletes).elements())
    table.random.shuffle(rows)
    began_at = next(each.get("sequence-number", 0) for each in table.snapshots if each["snapshot-id"] == start)
    is_late = start != table.head or table.chance(0.5)
    written = _new_files(table, rows, spec_id)
    table.commit("replace", written, _with_vectors(table, files), sequence_number=began_at if is_late else None)


@operation(4)
def delete_positions(table: ModelTable) -> None:
    hidden = {file: _any_positions(table, file) for file in {f.path: f for f in _some(table, table.data)}.values()}
    if table.version == 3:
        _delete_by_vectors(table, hidden)
    elif table.version == 2:
        by_place: dict[object, list[File]] = {}
        by_partition = table.chance(0.5)
        for file in hidden:
            by_place.setdefault(file.place if by_partition else file.path, []).append(file)
        table.commit("delete", [_position_deletes(table, files, hidden) for files in by_place.values()])


@operation(3)
def delete_equal(table: ModelTable) -> None:
    """In the partition of a data file, or in all."""
    for file in _some(table, table.data, most=1) if table.version > 1 else ():
        columns = table.random.choice([(1,), (2,), (1, 2)])
        values = frozenset(tuple(row[column - 1] for column in columns) for row in _new_rows(table, most=2))
        path, place, has_bounds = table.new_path("equal"), table.random.choice([file.place, (1, ())]), table.chance(0.7)
        deletes = File(Kind.EQUALITY, path, *place, columns=columns, values=values, has_bounds=has_bounds)
        rows = _new_rows(table) if table.chance(0.4) else []
        table.commit("overwrite" if rows else "delete", [deletes, *_new_files(table, rows)])


@operation(1)
def drop_dangling_deletes(table: ModelTable) -> None:
    """Those of positions whose data files are gone."""
    live = {file.path for file in table.data}
    dangling = [d for d in table.deletes if d.positions and live.isdisjoint(path for path, _ in d.positions)]
    table.commit("replace", (), dangling)


@operation(1)
def upgrade(table: ModelTable) -> None:
    table.version = min(table.version + 1, 3)


@operation(1)
def change_spec(table: ModelTable) -> None:
    table.spec_id = table.random.choice(list(SPECS))


@operation(1)
def roll_back(table: ModelTable) -> None:
    table.head = table.random.choice(list(table.ancestors()))


def _some(table: ModelTable, files: Iterable[File], most: int = 3) -> list[File]:
    found = list(files)
    return table.random.sample(found, min(len(found), table.random.randint(1, most)))


def _new_rows(table: ModelTable, most: int = 5) -> list[Row]:
    choice = table.random.choice
    return [(choice([None, 1, 2]), choice([None, 1, 2])) for _ in range(table.random.randint(1, most))]


def _new_files(table: ModelTable, rows: Sequence[Row], spec_id: int | None = None) -> list[File]:
    """One file for each partition."""
    spec_id = table.spec_id if spec_id is None else spec_id
    by_partition: dict[tuple[int | None, ...], list[Row]] = {}
    for row in rows:
        by_partition.setdefault(tuple(row[column - 1] for column in SPECS[spec_id]), []).append(row)
    return [
        File(Kind.DATA, table.new_path("data"), spec_id, place, tuple(found), has_bounds=table.chance(0.7))
        for place, found in by_partition.items()
    ]


def _with_vectors(table: ModelTable, data: Sequence[File]) -> list[File]:
    """Removed data files, and the deletion vectors that go with them."""
    paths = {file.path for file in data}
    return [*data, *(each for each in table.deletes if each.offset is not None and each.refers_to in paths)]


def _any_positions(table: ModelTable, file: File) -> set[tuple[str, int]]:
    chosen = table.random.sample(range(len(file.rows)), table.random.randint(1, len(file.rows)))
    return {(file.path, position) for position in chosen}


def _delete_by_vectors(table: ModelTable, hidden: Mapping[File, set[tuple[str, int]]]) -> None:
    """One vector for each data file, which takes over what was deleted from it by position before."""
    before = [each for each in table.deletes if each.kind is Kind.POSITIONS]
    paths = {file.path for file in hidden}
    vectors = []
    for file, positions in hidden.items():
        still = {(file.path, at) for at in range(len(file.rows)) if any(each.hides(file, at) for each in before)}
        vectors.append(_vector(table, file, positions | still))
    table.commit("delete", vectors, [each for each in before if each.offset is not None and each.refers_to in paths])


def _vector(table: ModelTable, file: File, positions: Iterable[tuple[str, int]]) -> File:
    path, offset = table.new_path("vector"), table.random.randrange(99)
    return File(Kind.POSITIONS, path, *file.place, positions=frozenset(positions), refers_to=file.path, offset=offset)


def _position_deletes(table: ModelTable, files: Sequence[File], hidden: Mapping[File, set[tuple[str, int]]]) -> File:
    positions = frozenset().union(*[hidden[file] for file in files])
    has_bounds = table.chance(0.7)
    refers_to = files[0].path if has_bounds and len(files) == 1 else None
    path, place = table.new_path("positions"), files[0].place
    return File(Kind.POSITIONS, path, *place, positions=positions, refers_to=refers_to, has_bounds=has_bounds)
