"""One catalog configuration for PyIceberg and Spark, and the few operations that a catalog is needed for."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError as ResponseError
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)

from dagster_ips._compat import (
    commit_or_swap,
    commit_tables_together,
    commits_tables_together,
    offers_register,
    on_vended,
)
from dagster_ips.core.table_name import name_of, namespace_of, parts_of
from dagster_ips.errors import (
    CatalogUnreachableError,
    HiveTooNewError,
    IpsError,
    NoRegisterError,
    SharedFolderError,
    UnknownTableError,
    UnsupportedTableError,
)
from dagster_ips.iceberg.answer_deadline import NoAnswerError, Patience
from dagster_ips.iceberg.catalog_settings import CLASS, mistake_behind, require_catalog
from dagster_ips.iceberg.late import catalog as pyiceberg_catalog
from dagster_ips.iceberg.late import config, schema, sql, sqlalchemy, types
from dagster_ips.iceberg.metadata import TableMetadata, unsupported_view
from dagster_ips.iceberg.object_stores import is_on_s3, spark_storage
from dagster_ips.iceberg.storage import Storage, kind_of
from dagster_ips.iceberg.vended import Vended

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import ColumnElement

_Answer = TypeVar("_Answer")
_Row = tuple[str, str]
"""The namespace and name of a table, as a database catalog stores them."""
_SQLITE = "sqlite:///"
_TRIED = "ips_try"
_METHOD = re.compile(r"Invalid method name: '\w+'")
_UNREADABLE = (ValidationError, ResponseError, TypeError)
"""What PyIceberg raises if a metadata file, or a catalog's response, has something that it doesn't know.

A TypeError comes from a default of a type that it has no defaults for.
"""
_MOST_LISTED = 20
_CONNECTION = {"pool_pre_ping": "true"}
"""A connection to a database that ended while a run computed, as the database or a firewall ends it, isn't used."""


@dataclass(frozen=True, eq=False)
class LakeCatalog:
    """A catalog by its PyIceberg properties. These may contain secrets, so they are in no repr, log or error.

    PyIceberg's own configuration adds what they don't say: environment variables and ``.pyiceberg.yaml``. Spark gets
    the result.

    With ``patience_seconds``, pointers and files are waited for no longer than that, as ``Patience`` says. With
    ``branch``, tables that have such a branch look as if ``main`` were there. Metadata of ICDC tables is written under
    ``icdc_location``, or beside the tables whose changes they hold.

    Example:
        >>> lake = LakeCatalog.embedded("lake", Path("/data/lake"))
        >>> lake.spark_configuration()["spark.sql.catalog.lake.uri"]
        'jdbc:sqlite:/data/lake/catalog.db?busy_timeout=30000'
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    spark_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_seconds: float | None = None
    branch: str | None = None
    icdc_location: str | None = None
    _patience: Patience | None = field(init=False, repr=False)
    _vended: dict[tuple[str, ...], Vended] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", _with_type(_with_configured(self.name, self.properties)))
        object.__setattr__(self, "_patience", self._new_patience())

    @classmethod
    def embedded(cls, name: str, folder: Path) -> LakeCatalog:
        """A catalog of one SQLite file and one warehouse folder, for PyIceberg and Spark alike."""
        uri = f"{_SQLITE}{folder.absolute()}/catalog.db?timeout=30"
        return cls(name, {"type": "sql", "uri": uri, "warehouse": f"file://{folder.absolute()}/warehouse"})

    def on_branch(self, branch: str | None) -> LakeCatalog:
        """This catalog with ``branch`` instead of ``main`` in the tables that have it; with ``main`` if it is None."""
        found = replace(self, branch=branch)
        vars(found).update(client=self.client, _vended=self._vended)  # Its connections are shared.
        return found

    @classmethod
    def configured(cls, name: str) -> LakeCatalog:
        """The catalog in PyIceberg's own configuration: a file or environment variables.

        Raises:
            DeclarationError: there is none.
            CatalogUnreachableError: it doesn't answer.
        """
        found = cls(name, {}).client
        return cls(name, dict(found.properties))

    def reading_once(self) -> LakeCatalog:
        """This catalog for one step, as ``Storage.reading_once``."""
        found = replace(self)
        vars(found).update(client=self.client, _vended=self._vended, storage=self.storage.reading_once())
        return found

    def spark_configuration(self) -> dict[str, str]:
        """The Spark configuration of the same catalog under the same name.

        Properties are passed on under their names, as most have the same name on both sides, and those of object stores
        under Spark's names as well. ``spark_properties`` adds or overrides properties, for what else Spark calls
        differently.
        """
        prefix = f"spark.sql.catalog.{self.name}"
        kind = "jdbc" if self.properties.get("type") == "sql" else self.properties.get("type", "")
        passed = {key: value for key, value in self.properties.items() if key not in {"type", "uri"}}
        # Another engine's commit must be seen at once: Spark's table cache would hide it for 30 seconds and longer.
        translated = {"type": kind, "cache-enabled": "false", **spark_storage(self.properties), **passed}
        if kind == "jdbc":
            with self._reaching("reading its address"):
                translated |= {"jdbc.schema-version": "V1"} | _jdbc_address(self.properties["uri"])
        elif "uri" in self.properties:
            translated["uri"] = self.properties["uri"]
        translated |= self.spark_properties
        if not translated["type"] or "catalog-impl" in translated:  # Iceberg refuses a catalog that has both.
            del translated["type"]
        return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {f"{prefix}.{k}": v for k, v in translated.items()}

    def spark_extras(self) -> tuple[str, ...]:
        """Names of the extra jars that Spark needs for this catalog."""
        uri, warehouse = self.properties.get("uri", ""), self.properties.get("warehouse", "")
        is_of_aws = self.properties.get("type") == "glue" or warehouse.startswith("arn:aws")
        is_on_aws = is_on_s3(self.properties) or is_of_aws or self.properties.get("rest.sigv4-enabled") == "true"
        needs = {"aws": is_on_aws, "postgresql": uri.startswith("postgresql")}
        return tuple(extra for extra, is_needed in needs.items() if is_needed)

    @cached_property
    def storage(self) -> Storage:
        """Reads and writes the catalog's small files.

        Raises:
            CatalogUnreachableError: it is a REST catalog and did not answer.
        """
        if self.properties.get("type") != "rest":
            return Storage(self.properties, self.name, self._new_patience())
        # A REST server may have settings for its clients, such as the address of the object store.
        return Storage(self.client.properties, self.name, self._new_patience(), self._vended_for, self.icdc_location)

    def _vended_for(self, table: str) -> Vended:
        """What the server vended for ``table`` when it was last loaded; it is loaded anew before that ends.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
        """
        known = self._vended.get(parts_of(table))
        if known is None or known.has_ended():
            with self._reaching(f"asking for the credentials of {table}"), contextlib.suppress(NoSuchTableError):
                self._asked(partial(_location, self.client, table))
        return self._vended.get(parts_of(table), Vended())

    def locate(self, tables: Sequence[str]) -> Located:
        """As ``metadata_locations``; a failure for one table doesn't affect the others."""
        try:
            return Located(self.metadata_locations(tables))
        except IpsError as error:
            if len(tables) == 1:
                return Located({}, {tables[0]: error})
        # Together they fail because of one of them, so each is looked up by itself.
        parts = [self.locate([table]) for table in tables]
        found = {table: location for part in parts for table, location in part.found.items()}
        return Located(found, {table: error for part in parts for table, error in part.errors.items()})

    def metadata_locations(self, tables: Sequence[str]) -> dict[str, str]:
        """Where each of ``tables`` has its current metadata.json; tables that don't exist are left out.

        If the catalog is a database, this is one query for all of them.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
        """
        with self._reaching(f"looking up {', '.join(tables)}"):
            catalog = self.client
            if isinstance(catalog, sql.SqlCatalog):
                rows = {table: _row_of(table) for table in tables}
                namespaces = {namespace for namespace, _ in rows.values()}
                query = partial(self._locations_by_sql, catalog, sql.IcebergTables.table_namespace.in_(namespaces))
                found = self._asked(query)
                return {table: found[row] for table, row in rows.items() if row in found}
            return dict(self._locations_one_by_one(catalog, tables))

    def metadata_locations_by_prefix(self, namespace: str, start: str) -> dict[str, str]:
        """As ``metadata_locations``, for every table of ``namespace`` whose own name starts with ``start``.

        Empty if there is no such namespace.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
        """
        within = parts_of(namespace)
        with self._reaching(f"listing {namespace}.{start}*"):
            catalog = self.client
            if isinstance(catalog, sql.SqlCatalog):
                in_namespace = sql.IcebergTables.table_namespace == _stored(within)
                starts = sql.IcebergTables.table_name.startswith(start, autoescape=True)
                rows = self._locations_by_sql(catalog, sqlalchemy.and_(in_namespace, starts))
                # SQLite's LIKE doesn't distinguish upper and lower case.
                return {name_of([*within, name]): at for (_, name), at in rows.items() if name.startswith(start)}
            return dict(self._locations_one_by_one(catalog, self.names_by_prefix(namespace, start)))

    def names_by_prefix(self, namespace: str, start: str) -> list[str]:
        """The tables that ``metadata_locations_by_prefix`` locates; none of them is loaded.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
        """
        if isinstance(self.client, sql.SqlCatalog):
            return list(self.metadata_locations_by_prefix(namespace, start))
        with self._reaching(f"listing {namespace}.{start}*"):
            try:
                listed = self.client.list_tables(parts_of(namespace))
            except NoSuchNamespaceError:  # Before the first table of it, as in a database.
                return []
            return [name_of(identifier) for identifier in listed if identifier[-1].startswith(start)]

    def load(self, table: str, *, asset: str, consumed_snapshot_id: int | None = None) -> TableMetadata:
        """The table's current metadata, never from a cache.

        Raises:
            UnknownTableError: there is no such table. The error names ``asset``, and what that had consumed.
            UnsupportedTableError: it is a view, or a table of a kind that can't be captured.
            CatalogUnreachableError: the catalog did not answer.
            MetadataUnreadableError: the metadata file is missing or damaged.
        """
        found = self.find(table)
        if found is None and self._is_view(table):
            raise unsupported_view(table)
        if found is None:
            raise UnknownTableError(table, self.name, asset, consumed_snapshot_id, self._what_there_is(table))
        return found

    def find(self, table: str) -> TableMetadata | None:
        """As ``load``; None if there is no such table."""
        location = self.metadata_locations([table]).get(table)
        if location is None:
            return None
        metadata = TableMetadata.parse(table, location, self.storage.read(location, table=table))
        return metadata if self.branch is None else metadata.on_branch(self.branch)

    def _what_there_is(self, table: str) -> str:
        """A sentence about what may have been meant by a ``table`` that doesn't exist; empty if there is no hint."""
        with (
            contextlib.suppress(CatalogUnreachableError, NoSuchNamespaceError, NotImplementedError),
            self._reaching("listing tables"),
        ):
            namespaces = self.client.list_namespaces()[:_MOST_LISTED]
            names = [name_of(found) for each in namespaces for found in self.client.list_tables(each)]
            if near := difflib.get_close_matches(table, names, 3):
                return f"The catalog has {', '.join(near)}."
            if not names and (folder := self.properties.get("warehouse", "")).startswith("file:"):
                return f"The catalog has no tables at all; they would be in {folder}."
        return ""

    def _is_view(self, table: str) -> bool:
        """Whether the catalog keeps views apart from tables, and has a view of that name."""
        with self._reaching(f"asking for {table}"), contextlib.suppress(NotImplementedError):
            return self.client.view_exists(parts_of(table))
        return False

    def register(self, table: str, metadata_location: str) -> None:
        """Register a metadata.json as ``table``, in a namespace that is created if it is missing.

        Raises:
            NoRegisterError: the catalog can't do that.
        """
        self.require_register()
        self.create_namespace(namespace_of(table))
        with self._reaching(f"registering {table}"):
            try:
                self.client.register_table(parts_of(table), metadata_location)
            except NotImplementedError:
                raise NoRegisterError(self.name) from None
            except _UNREADABLE:
                # It is registered by then; only reading it back fails, for a type that PyIceberg doesn't know yet.
                if self.metadata_locations([table]).get(table) != metadata_location:
                    raise

    def require_register(self) -> None:
        """Fail unless the catalog can register a metadata file as a table, as far as the catalog says.

        Raises:
            NoRegisterError: it can't.
            CatalogUnreachableError: the catalog did not answer.
        """
        if not offers_register(self.client):
            raise NoRegisterError(self.name)

    def drop(self, table: str) -> None:
        """Remove ``table`` from the catalog; all files stay. A table that is gone already is no error."""
        with self._reaching(f"dropping {table}"), contextlib.suppress(NoSuchTableError):
            self.client.drop_table(parts_of(table))

    def keeps_branches(self, table: str, location: str) -> bool:
        """Whether a branch keeps what is written to it, and ``main`` stays: tried with ``table``, which it then purges.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
        """
        self.create_namespace(namespace_of(table))
        name, catalog = parts_of(table), self.client
        with self._reaching(f"trying a branch of {table}"):
            field = types.NestedField(1, "id", types.LongType(), required=False)
            made = catalog.create_table(name, schema.Schema(field), location=location)
            try:
                nothing = made.schema().as_arrow().empty_table()
                made.append(nothing)
                head = made.refs()["main"].snapshot_id
                made.manage_snapshots().create_branch(head, _TRIED).commit()
                made = catalog.load_table(name)
                if _TRIED not in made.refs():
                    return False
                made.append(nothing, branch=_TRIED)
                refs = catalog.load_table(name).refs()
                return refs["main"].snapshot_id == head and _TRIED in refs and refs[_TRIED].snapshot_id != head
            finally:
                catalog.purge_table(name)

    def commit(
        self,
        table: TableMetadata,
        requirements: Sequence[Mapping[str, Any]],
        updates: Sequence[Mapping[str, Any]],
        write: Callable[[], str],
    ) -> None:
        """Change a table whose current metadata is ``table``, in one step.

        A REST server makes the ``updates`` if it finds the ``requirements``, both in its words. Elsewhere, the file
        that ``write`` writes replaces ``table``.

        Raises:
            CommitFailedException: the requirements aren't met, or ``table`` is no longer the current metadata.
            CatalogUnreachableError: the catalog did not answer, and may have done it.
        """
        with self._reaching(f"committing to {table.table}"):
            if isinstance(self.client, sql.SqlCatalog):
                self._swap_by_sql(self.client, table, write())
            else:
                found = self.client.load_table(parts_of(table.table))
                commit_or_swap(
                    self.client,
                    found,
                    requirements=requirements,
                    updates=updates,
                    metadata_location=table.metadata_location,
                    write=write,
                )

    def _swap_by_sql(self, catalog: SqlCatalog, table: TableMetadata, metadata_location: str) -> None:
        """As PyIceberg does it, which can't read all types of columns that Spark writes.

        Raises:
            CommitFailedException: ``table`` is no longer the current metadata.
        """
        rows, (namespace, name) = sql.IcebergTables, _row_of(table.table)
        swap = (
            sqlalchemy.update(rows)
            .where(rows.catalog_name == catalog.name, rows.table_namespace == namespace, rows.table_name == name)
            .where(rows.metadata_location == table.metadata_location)
            .values(metadata_location=metadata_location, previous_metadata_location=table.metadata_location)
        )
        with catalog.engine.begin() as connection:
            if connection.execute(swap).rowcount != 1:
                raise CommitFailedException

    def commits_tables_together(self) -> bool:
        """Whether it can change several tables at once, all or none.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
        """
        return commits_tables_together(self.client)

    def fast_forward_together(self, tables: Sequence[TableMetadata], branch: str, *, pin: str) -> None:
        """Make the head of ``branch`` the head of ``main`` in each of ``tables`` and tag it as ``pin``, or in none.

        Raises:
            CommitFailedException: ``main`` of a table isn't what its metadata says any more, or isn't an ancestor of
                ``branch``; none was changed.
            CatalogUnreachableError: the catalog did not answer, and may have done it.
        """
        for each in tables:
            head = each.head_snapshot_id()
            if head is None or each.ancestry(branch).find(head) is None:
                apart = f"main of {each.table} isn't an ancestor of {branch}"
                raise CommitFailedException(apart)
        with self._reaching("publishing several tables"):
            commit_tables_together(self.client, [_fast_forward(each, branch, pin) for each in tables])

    def create_namespace(self, namespace: str) -> None:
        """Create the namespace unless it exists. Only then must the catalog allow that."""
        with self._reaching(f"creating namespace {namespace}"):
            if not self.client.namespace_exists(parts_of(namespace)):
                self.client.create_namespace_if_not_exists(parts_of(namespace))

    @cached_property
    def client(self) -> Catalog:
        """PyIceberg's catalog with this configuration.

        Raises:
            DeclarationError: the configuration can't work.
            CatalogUnreachableError: the catalog did not answer.
        """
        require_catalog(self.name, self.properties)
        with self._reaching("connecting to it"):
            self._create_embedded_folder()
            client = self._asked(self._connected)
            on_vended(client, self._hear_vended)
            return client

    def _connected(self) -> Catalog:
        connection = _CONNECTION if self.properties.get("type") == "sql" else {}
        try:
            return pyiceberg_catalog.load_catalog(self.name, **{**connection, **self.properties})
        except Exception as error:
            if (mistake := mistake_behind(self.name, error)) is not None:
                raise mistake from None
            raise

    def _hear_vended(
        self, identifier: tuple[str, ...], config: Mapping[str, str], credentials: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._vended[identifier] = Vended(config, credentials)

    def _asked(self, call: Callable[[], _Answer]) -> _Answer:
        return self._patience.ask(call) if self._patience else call()

    def _new_patience(self) -> Patience | None:
        return Patience(self.patience_seconds) if self.patience_seconds is not None else None

    def _create_embedded_folder(self) -> None:
        uri = self.properties.get("uri", "")
        if uri.startswith(_SQLITE):
            with self._reaching("creating the folder of its database file"):
                Path(uri.removeprefix(_SQLITE).partition("?")[0]).parent.mkdir(parents=True, exist_ok=True)

    def _locations_by_sql(self, catalog: SqlCatalog, which: ColumnElement[bool]) -> dict[_Row, str]:
        rows = sql.IcebergTables
        query = sqlalchemy.select(rows.table_namespace, rows.table_name, rows.metadata_location).where(
            rows.catalog_name == catalog.name, which
        )
        with catalog.engine.connect() as connection:
            return {(ns, name): location for ns, name, location in connection.execute(query) if location}

    def other_names_of(self, table: str, location: str) -> list[str]:
        """Under which other names the catalog's database has a table of this name whose files are in ``location``."""
        catalog = self.client
        if not isinstance(catalog, sql.SqlCatalog):
            return []
        rows, name = sql.IcebergTables, parts_of(table)
        query = sqlalchemy.select(rows.catalog_name, rows.metadata_location).where(
            rows.catalog_name != catalog.name,
            rows.table_namespace == _stored(name[:-1]),
            rows.table_name == name[-1],
        )
        with self._reaching(f"asking for {table}"), catalog.engine.connect() as connection:
            return sorted(other for other, at in connection.execute(query) if (at or "").startswith(f"{location}/"))

    def require_own_folder(self, table: str, location: str) -> None:
        """Fail if another name of the catalog's database has a table of this name whose files are in ``location``.

        Raises:
            SharedFolderError: it has.
        """
        if others := self.other_names_of(table, location):
            raise SharedFolderError(table, tuple(others), location)

    def _locations_one_by_one(self, catalog: Catalog, tables: Sequence[str]) -> Iterator[tuple[str, str]]:
        for table in tables:
            try:
                yield table, self._asked(partial(_location, catalog, table))
            except NoSuchTableError:
                continue
            except _UNREADABLE as error:
                problem = f"PyIceberg, which is used to query the catalog, can't read it ({_problems(error)})"
                remedy = "Upgrade PyIceberg, or remove the feature that it doesn't support from the table."
                raise UnsupportedTableError(table=table, problem=problem, remedy=remedy) from None

    @contextlib.contextmanager
    def _reaching(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if _is_answer(error):
                raise
            # Drivers put addresses with passwords into their messages, so only the kind of error is passed on.
            cause = str(error) if isinstance(error, NoAnswerError) else kind_of(error)
            if type(error).__name__ == "TApplicationException" and (method := _METHOD.search(str(error))):
                raise HiveTooNewError(catalog=self.name, doing=doing, cause=method[0]) from None
            raise CatalogUnreachableError(catalog=self.name, doing=doing, cause=cause) from None


@dataclass(frozen=True, slots=True)
class Located:
    """Where tables have their current metadata.json, without those that don't exist; and why others are unknown."""

    found: Mapping[str, str]
    errors: Mapping[str, IpsError] = field(default_factory=dict)


def _fast_forward(table: TableMetadata, branch: str, pin: str) -> dict[str, Any]:
    """A change of one table, in the REST catalog's words."""
    *namespace, name = parts_of(table.table)
    refs = table.raw.get("refs", {})
    head = {"action": "set-snapshot-ref", "snapshot-id": table.head_snapshot_id(branch)}
    return {
        "identifier": {"namespace": namespace, "name": name},
        "requirements": [
            {"type": "assert-table-uuid", "uuid": table.uuid},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.head_snapshot_id()},
        ],
        "updates": [
            {"type": "branch", **refs.get("main", {}), "ref-name": "main", **head},
            {"type": "tag", **refs.get(pin, {}), "ref-name": pin, **head},
        ],
    }


def _with_configured(name: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """The properties with those that PyIceberg would add from its own configuration, so that everyone has the same.

    Nested ones are left out: only PyIceberg has them. A class can't be configured there; PyIceberg ignores it as well.
    """
    known: Any = config.Config().get_catalog_config(name) or {}
    merged = config.merge_config({key: value for key, value in known.items() if key != CLASS}, dict(properties))
    return {key: value for key, value in merged.items() if isinstance(value, str)}


def _with_type(properties: Mapping[str, str]) -> Mapping[str, str]:
    """The properties with the catalog's type, which PyIceberg infers from the address if it isn't given.

    Others, such as Spark, don't infer it. Unchanged if it can't be inferred, or if a class is given instead.
    """
    if "type" in properties:
        return {**properties, "type": properties["type"].lower()}
    with contextlib.suppress(ValueError):
        if "uri" in properties and CLASS not in properties:
            found = pyiceberg_catalog.infer_catalog_type("", dict(properties))
            return {**properties, **({"type": found.value} if found else {})}
    return properties


def _row_of(table: str) -> _Row:
    *namespace, name = parts_of(table)
    return _stored(namespace), name


def _stored(namespace: Sequence[str]) -> str:
    """A namespace as databases store it: dots within a part look like dots between parts."""
    return ".".join(namespace)


def _is_answer(error: Exception) -> bool:
    """Whether the catalog answered, even if only that something doesn't exist or exists already."""
    answers = (NoSuchTableError, NoSuchNamespaceError, TableAlreadyExistsError, NamespaceAlreadyExistsError)
    return isinstance(error, (*answers, CommitFailedException, ValidationError, IpsError))


def _problems(error: Exception) -> str:
    """What PyIceberg doesn't know, without the values that its message quotes."""
    cause = error if isinstance(error, ResponseError) else error.__cause__
    if not isinstance(cause, ResponseError):
        return type(error).__name__
    return "; ".join(sorted({problem["msg"] for problem in cause.errors(include_input=False, include_url=False)}))


def _location(catalog: Catalog, table: str) -> str:
    try:
        return catalog.load_table(parts_of(table)).metadata_location
    except (NoSuchPropertyException, ValueError) as error:
        if isinstance(error, NoSuchPropertyException) or "missing Parameters" in str(error):
            problem, remedy = "its entry in Glue names no Iceberg metadata", "Name another table, or create it again."
            raise UnsupportedTableError(table=table, problem=problem, remedy=remedy) from None
        raise


def _jdbc_address(uri: str) -> dict[str, str]:
    """A database's address as Spark takes it, parsed as PyIceberg parses it.

    What the address says besides the place (``sslmode=verify-full``, ``options=-csearch_path=…``) decides who gets the
    password and which tables are seen. JDBC drivers know it under the same names, or ignore it.
    """
    url = sqlalchemy.make_url(uri)
    if url.get_backend_name() == "sqlite":
        return {"uri": f"jdbc:sqlite:{url.database or ''}?busy_timeout=30000"}
    said = {key: value if isinstance(value, str) else ",".join(value) for key, value in url.query.items()}
    host, port = said.pop("host", url.host) or "", said.pop("port", url.port)
    place = (f"[{host}]" if host == url.host and ":" in host else host) + (f":{port}" if port else "")
    said |= {key: value for key, value in (("user", url.username), ("password", url.password)) if value}
    address = f"jdbc:{url.get_backend_name()}://{place}/{url.database or ''}"
    return {"uri": address} | {f"jdbc.{key}": value for key, value in said.items()}
