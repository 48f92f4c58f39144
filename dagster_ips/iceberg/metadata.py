"""A table's metadata.json, parsed as far as it is needed.

It is read as JSON and not through PyIceberg's models: those take four times as long for a long history and refuse types
that they don't know yet.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json
from pyiceberg.exceptions import ValidationError

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import TargetMark
from dagster_ips.core.columns import Column, Kind, ListOf, MapOf, Path, Struct, fit
from dagster_ips.core.misread_columns import ANY_TYPE, hiding
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import MetadataUnreadableError, UnsupportedTableError
from dagster_ips.iceberg.late import schema

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

NEWEST_FORMAT_VERSION = 3
_FIRST_WITH_VECTORS = 3
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class TableMetadata:
    """One version of a table's metadata. ``raw`` is the parsed file, without fields that are null.

    A field that is null means the same as one that is missing.

    Source: Iceberg table spec, "Table Metadata".
    """

    table: str
    metadata_location: str
    raw: dict[str, Any]

    @classmethod
    def parse(cls, table: str, metadata_location: str, content: bytes) -> TableMetadata:
        """Parse a metadata.json.

        Raises:
            MetadataUnreadableError: it isn't one.
            UnsupportedTableError: it is a view's, its format is newer than known here, or the table is encrypted.
        """
        try:
            loaded = _loaded(gzip.decompress(content) if content.startswith(_GZIP) else content)
            raw = {name: value for name, value in loaded.items() if value is not None}
            if "view-uuid" in raw:
                raise unsupported_view(table)
            version = int(raw["format-version"])
            metadata = cls(table, metadata_location, raw)
            _ = metadata.uuid, metadata.location, metadata.default_spec
            metadata._require_heads()  # its own
        except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise MetadataUnreadableError(table=table, file=metadata_location, cause=cause) from error
        if version > NEWEST_FORMAT_VERSION:
            problem = f"its format version is {version}, but {NEWEST_FORMAT_VERSION} is the newest supported"
            raise UnsupportedTableError(table=table, problem=problem, remedy="Upgrade dagster_ips.")
        if raw.get("encryption-keys") or raw.get("properties", {}).get("encryption.key-id"):
            remedy = "Read it through another IO manager; tables computed from it can then be consumed incrementally."
            raise UnsupportedTableError(table=table, problem="it is encrypted", remedy=remedy)
        return metadata

    @property
    def uuid(self) -> str:
        """The table's uuid; a re-created table has another one."""
        return str(self.raw["table-uuid"])

    @property
    def location(self) -> str:
        """The table's base folder."""
        return str(self.raw["location"])

    @property
    def format_version(self) -> int:
        """1, 2 or 3."""
        return int(self.raw["format-version"])

    @property
    def hides_rows_by_vectors(self) -> bool:
        """Whether every hidden row is in one deletion vector: a data file has at most one, which goes when it goes.

        Not if a snapshot from before version 3 had other delete files, which may still be there.
        Source: Iceberg table spec, "Row-level Deletes".
        """
        if self.format_version < _FIRST_WITH_VECTORS:
            return False
        older = [each for each in self.raw.get("snapshots", ()) if "first-row-id" not in each]
        return all(each.get("summary", {}).get("total-delete-files", "0") == "0" for each in older)

    @property
    def last_sequence_number(self) -> int:
        """The newest sequence number that a commit has taken; 0 in a v1 table."""
        return int(self.raw.get("last-sequence-number", 0))

    def predates(self, mark: Watermark | TargetMark) -> bool:
        """Whether ``mark`` is of a commit that came after this version; False in a v1 table, where that is unknown."""
        return mark.table_uuid == self.uuid and mark.sequence_number > self.last_sequence_number

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.raw.get("properties", {}))

    @cached_property
    def snapshots(self) -> Mapping[int, Snapshot]:
        """Every retained snapshot, by id; a malformed one raises only when it is looked up."""
        return _Snapshots(self)

    def head_snapshot_id(self, ref: str = "main") -> int | None:
        """The snapshot that ``ref`` points to; None if there is none."""
        if (found := self.raw.get("refs", {}).get(ref)) is not None:
            return _snapshot_id(found["snapshot-id"])
        return _snapshot_id(self.raw.get("current-snapshot-id")) if ref == "main" else None

    def as_of(self, snapshot_id: int, ref: str) -> TableMetadata:
        """A copy in which ``ref`` points to ``snapshot_id``; its columns are the current ones."""
        refs = {**self.raw.get("refs", {}), ref: {"snapshot-id": snapshot_id, "type": "branch"}}
        return replace(self, raw={**self.raw, "refs": refs})

    def on_branch(self, branch: str) -> TableMetadata:
        """A copy in which ``main`` is where ``branch`` is; unchanged if there is no such branch."""
        head = self.head_snapshot_id(branch) if branch in self.branches else None
        return self if head is None else self.as_of(head, "main")

    def _require_heads(self) -> None:
        for ref in {"main", *self.raw.get("refs", {})}:
            head = self.head_snapshot_id(ref)
            if head is not None and head not in self.snapshots:
                message = f"{ref} points to snapshot {head}, which it doesn't list"
                raise ValueError(message)

    @property
    def branches(self) -> tuple[str, ...]:
        """The names of its branches."""
        return self._refs("branch")

    @property
    def tags(self) -> tuple[str, ...]:
        """The names of its tags, which commits never move."""
        return self._refs("tag")

    @property
    def branch_ages_ms(self) -> Mapping[str, int]:
        """For how long branches keep snapshots by their own settings, whatever an expiry asks for; only those."""
        ages = {name: self.raw["refs"][name].get("max-snapshot-age-ms") for name in self.branches}
        return {name: int(age) for name, age in ages.items() if age is not None}

    def _refs(self, kind: str) -> tuple[str, ...]:
        return tuple(name for name, ref in self.raw.get("refs", {}).items() if ref["type"] == kind)

    def watermark_at(self, snapshot: Snapshot, ref: str) -> Watermark:
        """The watermark of a consumer that has consumed all of ``ref`` up to ``snapshot``, with the current schema."""
        return Watermark.at(snapshot, table_uuid=self.uuid, ref=ref, schema_id=self.current_schema_id)

    def ancestry(self, ref: str = "main") -> Ancestry:
        """The snapshots of ``ref``; empty if the ref doesn't exist."""
        return Ancestry.of(self.snapshots, self.head_snapshot_id(ref))

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The names of the current schema's top-level columns."""
        return tuple(field["name"] for field in self.current_fields)

    @cached_property
    def columns(self) -> dict[str, NestedField]:
        """The current schema's top-level columns by name, without those of a type that PyIceberg can't load."""
        parsed = {field["name"]: _field(field) for field in self.current_fields}
        return {name: field for name, field in parsed.items() if field is not None}

    @cached_property
    def column_types(self) -> dict[str, str]:
        """The type of each top-level column, as Iceberg writes it."""
        known = {name: str(column.field_type) for name, column in self.columns.items()}
        raw = {field["name"]: field["type"] for field in self.current_fields}
        return {name: known.get(name, kind if isinstance(kind, str) else "nested") for name, kind in raw.items()}

    @cached_property
    def columns_with_defaults(self) -> frozenset[str]:
        """The top-level columns with a default other than null, also in a nested field, for rows from before them."""
        return frozenset(field["name"] for field in self.current_fields if _has_default(field))

    @cached_property
    def hidden_columns(self) -> dict[Path, str]:
        """The columns, and fields of structs, that are always hidden from Iceberg, as ``MisreadColumns.hidden``."""
        whole = {(name,): ANY_TYPE for name in self.columns_with_defaults}
        leaves = ((path, hiding(kind)) for _, path, kind in _leaf_kinds(self.current_fields) if path[:1] not in whole)
        return whole | {path: sql for path, sql in leaves if sql is not None}

    @cached_property
    def texts(self) -> dict[int, Path]:
        """The columns, and fields of structs, that hold texts, by their numbers."""
        return {number: path for number, path, kind in _leaf_kinds(self.current_fields) if kind == "string"}

    @property
    def hidden_names(self) -> frozenset[str]:
        """The columns that are hidden from Iceberg, or have a field that is."""
        return frozenset(path[0] for path in self.hidden_columns)

    def partition_sources(self, spec_id: int) -> list[tuple[str, Path, str]]:
        """The fields of a spec: name, the column or field of a struct that it is made from, and the type of that.

        It leaves out fields without values (``void``), and those of columns that were dropped.
        """
        known = {number: (path, kind) for number, path, kind in _leaf_kinds(self.current_fields)}
        fields = [each for each in self.spec(spec_id) if each["transform"] != "void"]
        sources = [(each["name"], number) for each in fields for number in _source_ids(each)]
        return [(name, *known[number]) for name, number in sources if number in known]

    @property
    def layout_columns(self) -> frozenset[str]:
        """The columns by which rows are partitioned or sorted: Iceberg doesn't let anyone drop these, or a field."""
        paths = {number: path for number, path, _ in _leaf_kinds(self.current_fields)}
        fields = [field for spec_id in self.spec_ids for field in self.spec(spec_id)]
        fields += [field for order in self.raw.get("sort-orders", ()) for field in order["fields"]]
        return frozenset(paths[number][0] for field in fields for number in _source_ids(field) if number in paths)

    @cached_property
    def struct(self) -> Struct:
        """The current schema, with nested columns."""
        return _struct(self.current_fields)

    def shows_current_schema(self, snapshot: Snapshot) -> bool:
        """Whether time travel to ``snapshot`` shows the columns that the table has now."""
        return snapshot.schema_id in (None, self.current_schema_id)

    def fields_at(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """The columns that time travel to the retained ``snapshot`` shows, in the form of ``current_fields``."""
        return self._fields_of(snapshot.schema_id) or self.current_fields

    def showing(self, snapshot: Snapshot) -> TableMetadata:
        """A copy whose columns are those that time travel to the retained ``snapshot`` shows; itself if it has them."""
        if self.shows_current_schema(snapshot) or self._fields_of(snapshot.schema_id) is None:
            return self
        return replace(self, raw={**self.raw, "current-schema-id": int(str(snapshot.schema_id).partition("-")[0])})

    @cached_property
    def current_schema_id(self) -> str:
        """The schema with which the table's rows are read now, as in ``Watermark.schema_id``."""
        number = int(self.raw.get("current-schema-id", 0))
        return self.schema_ids.get(number, str(number))

    @cached_property
    def schema_ids(self) -> Mapping[int, str]:
        """How each schema is recorded, by its number in the metadata: the number and a digest of its columns.

        The number alone isn't enough. When ``clean_expired_metadata`` has removed a schema, Iceberg may give its number
        to another one.
        """
        return {number: f"{number}-{_digest(fields)}" for number, fields in self._schemas.items()}

    @cached_property
    def _schemas(self) -> dict[int, list[dict[str, Any]]]:
        schemas = self.raw.get("schemas") or [self.raw["schema"]]
        return {int(each.get("schema-id", 0)): list(each["fields"]) for each in schemas}

    @cached_property
    def current_fields(self) -> list[dict[str, Any]]:
        """The current schema's top-level columns as they are in the metadata."""
        newest = (self.raw.get("schemas") or [self.raw["schema"]])[-1]
        return self._schemas.get(int(self.raw.get("current-schema-id", 0))) or list(newest["fields"])

    def _fields_of(self, schema_id: str | None) -> list[dict[str, Any]] | None:
        """The fields of a schema; None if the schema is no longer in the metadata."""
        number, _, digest = str(schema_id).partition("-")
        found = self._schemas.get(int(number)) if number.isdigit() else None
        return found if found is None or digest in ("", _digest(found)) else None

    def column_names_in(self, schema_id: str | None) -> tuple[str, ...] | None:
        """The names of the top-level columns in that schema; None if they are unknown.

        If ``schema_id`` is None, they are known only if the columns have always had the same names.
        """
        if schema_id is None and self._has_every_schema:
            names = {tuple(field["name"] for field in fields) for fields in self._schemas.values()}
            return names.pop() if len(names) == 1 else None
        fields = self._fields_of(schema_id)
        return None if fields is None else tuple(field["name"] for field in fields)

    def columns_since(self, schema_id: str | None) -> tuple[str, ...]:
        """The columns that the table has now and didn't have in that schema; fields of nested ones as ``a.b``.

        Empty if the schema is no longer in the metadata.
        """
        if (fields := self._fields_of(schema_id)) is None:
            return ()
        before = {number for _, number in _named_ids(fields)}
        new = [name for name, number in _named_ids(self.current_fields) if number not in before]
        return tuple(name for name in new if not any(name.startswith(f"{other}.") for other in new))

    def columns_widened_since(self, schema_id: str | None) -> tuple[str, ...]:
        """As ``columns_since``, but those that the table had then and that have a wider type now."""
        before = _struct(self._fields_of(schema_id) or ())
        return tuple(".".join(each.path) for each in fit(before, self.struct).widened)

    def structs_changed_since(self, schema_id: str | None) -> frozenset[tuple[str, ...]]:
        """The structs in columns that have other fields now, or in another order; each as the names that lead to it.

        Empty if the schema is no longer in the metadata.
        """
        before, now = (list(_structs(fields)) for fields in (self._fields_of(schema_id) or (), self.current_fields))
        paths = {path for path, _ in before}
        return frozenset(path for path, fields in now if path in paths and (path, fields) not in before)

    def columns_lost_since(self, schema_id: str | None) -> tuple[str, ...]:
        """The names that the table had in that schema and has no longer; fields of nested columns as ``a.b``."""
        now = {name for name, _ in _named_ids(self.current_fields)}
        return tuple(name for name, _ in _named_ids(self._fields_of(schema_id) or ()) if name not in now)

    def unwritten_columns(self) -> tuple[str, ...]:
        """The columns that are newer than the last commit to ``main``, so that they are null in every row."""
        head = self.ancestry().head
        return self.columns_since(head.schema_id) if head else self.column_names

    def columns_of_other_meaning(self, schema_id: str | None) -> tuple[str, ...] | None:
        """The names that stood for another column in that schema than now; fields of nested columns as ``a.b``.

        None if that is unknown because the schema was removed from the metadata. If ``schema_id`` is None, the schema
        is unknown. Even then the answer is known if the metadata has every schema that the table ever had, and the
        names stand for the same columns in all of them.
        """
        if schema_id is not None:
            fields = self._fields_of(schema_id)
            return self._of_other_meaning(fields) if fields is not None else None
        same = not any(map(self._of_other_meaning, self._schemas.values()))
        return () if same and self._has_every_schema else None

    @property
    def _has_every_schema(self) -> bool:
        """Whether no schema was removed from the metadata, as far as the numbers show."""
        return self._schemas.keys() == set(range(max(self._schemas) + 1))

    def _of_other_meaning(self, fields: Sequence[dict[str, Any]]) -> tuple[str, ...]:
        before, now = dict(_named_ids(fields)), dict(_named_ids(self.current_fields))
        # Spark ignores case in names, so one that is gone may be found again in another case, for another column.
        gone = {name.lower(): number for name, number in before.items() if name not in now}
        other = (name for name, number in now.items() if before.get(name, gone.get(name.lower(), number)) != number)
        return tuple(sorted(other))

    def shows_partition_columns(self, spec_id: int) -> bool:
        """Whether a row, as the current schema shows it, says which partition of the spec it is in.

        It doesn't if a column that the spec partitions by was dropped, nor with a floating-point column, whose equal
        values (-0.0 and 0.0) are in different partitions.
        """
        kinds = {number: kind for number, _, kind in _leaf_kinds(self.current_fields)}
        fields = [field for field in self.spec(spec_id) if field["transform"] != "void"]
        sources = [source for field in fields for source in _source_ids(field)]
        return all(kinds.get(source) not in (None, "float", "double") for source in sources)

    @property
    def specs(self) -> list[list[dict[str, Any]]]:
        """The fields of every partition spec."""
        return [list(spec["fields"]) for spec in self._specs]

    @property
    def spec_ids(self) -> list[int]:
        """The id of every partition spec."""
        return [int(spec["spec-id"]) for spec in self._specs]

    @property
    def _specs(self) -> list[dict[str, Any]]:
        return self.raw.get("partition-specs") or [{"spec-id": 0, "fields": self.raw.get("partition-spec", [])}]

    def spec(self, spec_id: int) -> list[dict[str, Any]]:
        """The fields of a partition spec: name, transform, source-id, field-id."""
        found = next((list(spec["fields"]) for spec in self._specs if int(spec["spec-id"]) == spec_id), None)
        if found is None:
            cause = f"it has no partition spec {spec_id}, although some of its files use it"
            raise MetadataUnreadableError(table=self.table, file=self.metadata_location, cause=cause)
        return found

    @property
    def default_spec_id(self) -> int:
        """The id of the partition spec that new files get."""
        return int(self.raw.get("default-spec-id", 0))

    @property
    def default_spec(self) -> list[dict[str, Any]]:
        """The fields of the partition spec that new files get."""
        return self.spec(self.default_spec_id)

    def identity_partition_columns(self) -> tuple[str, ...]:
        """The columns whose own values (``identity``) the default spec partitions by, in its order."""
        return self._identity_columns(self.default_spec)

    def whole_file_columns(self) -> tuple[str, ...]:
        """The columns of which every file holds a single value: those that every spec partitions by ``identity``."""
        specs = [self._identity_columns(spec) for spec in self.specs]
        return tuple(c for c in self.identity_partition_columns() if all(c in columns for columns in specs))

    def sole_partition_columns(self) -> frozenset[str]:
        """The columns whose values alone every spec partitions by; empty if any spec partitions by something else."""
        specs = [[field for field in spec if field["transform"] != "void"] for spec in self.specs]
        found = {frozenset(self._identity_columns(spec)) for spec in specs}
        is_alone = len(found) == 1 and all(len(self._identity_columns(spec)) == len(spec) for spec in specs)
        return found.pop() if is_alone else frozenset()

    def _identity_columns(self, spec: list[dict[str, Any]]) -> tuple[str, ...]:
        names = {field.field_id: name for name, field in self.columns.items()}
        return tuple(
            names[field["source-id"]]
            for field in spec
            if field["transform"] == "identity" and field.get("source-id") in names
        )


def unsupported_view(table: str) -> UnsupportedTableError:
    """The error for a view where a table was expected."""
    return UnsupportedTableError(
        table=table,
        problem="it is a view, which has no files and no snapshots, so its changes are unknown",
        remedy="Use the tables behind the view as the asset's inputs, and select from them in the asset.",
    )


def _leaf_kinds(fields: list[dict[str, Any]], path: Path = ()) -> Iterator[tuple[int, Path, str]]:
    """The field id, path and type of every primitive column that a spec may partition by, including nested ones."""
    for field in fields:
        inside = (*path, str(field["name"]))
        if isinstance(field["type"], str):
            yield int(field["id"]), inside, field["type"]
        elif field["type"]["type"] == "struct":
            yield from _leaf_kinds(field["type"]["fields"], inside)


def _source_ids(field: Mapping[str, Any]) -> list[int]:
    """The ids of the columns that a partition field is made from."""
    return list(field.get("source-ids", [field.get("source-id")]))


def _struct(fields: Sequence[dict[str, Any]]) -> Struct:
    return Struct(tuple(Column(field["name"], _kind(field["type"])) for field in fields))


def _kind(kind: str | dict[str, Any]) -> Kind:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            return _struct(kind["fields"])
        case "list":
            return ListOf(_kind(kind["element"]))
        case "map":
            return MapOf(_kind(kind["key"]), _kind(kind["value"]))
        case other:
            return str(other)


def _named_ids(fields: Sequence[dict[str, Any]], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every field's full name and id, except list elements and map keys and values, whose names can't be changed."""
    for field in fields:
        name = prefix + str(field["name"])
        yield name, int(field["id"])
        yield from _nested_ids(field["type"], f"{name}.")


def _digest(fields: Sequence[dict[str, Any]]) -> str:
    return hashlib.sha256(repr(sorted(_named_ids(fields))).encode()).hexdigest()[:8]


def _nested_ids(kind: str | dict[str, Any], prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(kind, str):
        return
    yield from _named_ids(kind.get("fields", ()), prefix)
    for part in {"element", "key", "value"} & kind.keys():
        yield from _nested_ids(kind[part], f"{prefix}{part}.")


def _structs(
    fields: Sequence[dict[str, Any]], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, int]]]]:
    """The structs in ``fields``, each as the names that lead to it, and the names and ids of its own fields."""
    for field in fields:
        kinds = [field["type"]]
        for kind in kinds:  # of a list, its elements'; of a map, its keys' and values'
            if isinstance(kind, dict):
                kinds += [kind[part] for part in ("element", "key", "value") if part in kind]
                if own := kind.get("fields"):
                    yield (*path, str(field["name"])), [(str(each["name"]), int(each["id"])) for each in own]
                    yield from _structs(own, (*path, str(field["name"])))


class _Snapshots(Mapping[int, Snapshot]):
    """The snapshots of a metadata.json, each parsed when it is first looked up: most never are."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._raw = {int(raw["snapshot-id"]): raw for raw in metadata.raw.get("snapshots", ())}
        self._parsed: dict[int, Snapshot] = {}

    def __getitem__(self, snapshot_id: int) -> Snapshot:
        found = self._parsed.get(snapshot_id)
        if found is None:
            raw = self._raw[snapshot_id]
            try:
                found = self._parsed[snapshot_id] = _snapshot(raw, self._metadata.schema_ids)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                cause = f"its snapshot {snapshot_id} can't be read: {type(error).__name__}: {error}"
                table, file = self._metadata.table, self._metadata.metadata_location
                raise MetadataUnreadableError(table=table, file=file, cause=cause) from error
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._raw


def _loaded(content: bytes) -> Any:  # noqa: ANN401  # what JSON may hold
    """``content`` parsed, if possible by a parser that is twice as fast as Python's."""
    try:
        return from_json(content)
    except ValueError:
        return json.loads(content)


def _snapshot(raw: dict[str, Any], schema_ids: Mapping[int, str]) -> Snapshot:
    summary, schema = raw.get("summary") or {}, raw.get("schema-id")
    return Snapshot(
        snapshot_id=int(raw["snapshot-id"]),
        parent_id=_snapshot_id(raw.get("parent-snapshot-id")),
        sequence_number=max(0, int(raw.get("sequence-number") or 0)),
        timestamp_ms=int(raw["timestamp-ms"]),
        # The spec makes the summary optional in v1; a snapshot that doesn't say what it did must not pass as append.
        operation=str(summary.get("operation", "unknown")),
        manifest_list=str(raw.get("manifest-list") or ""),
        summary=summary,
        schema_id=None if schema is None else schema_ids.get(int(schema), str(schema)),
    )


def _snapshot_id(raw: Any) -> int | None:  # noqa: ANN401  # a number, or text in old metadata
    """None also for -1, which Iceberg's implementation in Java and ClickHouse write for no snapshot."""
    return None if raw is None or int(raw) == -1 else int(raw)


def _field(raw: dict[str, Any]) -> NestedField | None:
    """A column as PyIceberg represents it; None for what it can't load: a type (``variant``) or a type's default."""
    try:
        return schema.Schema.model_validate({"type": "struct", "fields": [raw]}).fields[0]
    except (ValueError, TypeError, ArithmeticError, ValidationError):
        return None


def _has_default(part: Any) -> bool:  # noqa: ANN401  # a field or a type, as metadata has it
    if isinstance(part, Mapping):
        return part.get("initial-default") is not None or any(_has_default(each) for each in part.values())
    return isinstance(part, list) and any(_has_default(each) for each in part)
