"""The catalog and the Spark session, as Dagster resources."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_ips.errors import DeclarationError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.spark.session import classic_configuration, is_secret

KNOWN_SETTINGS = ConfigDict(extra="forbid", hide_input_in_errors=True)
"""A misspelt setting is an error, in which no value is shown."""
_Setting = TypeVar("_Setting", str, str | None, int, int | None, float)


class IcebergCatalog(dg.ConfigurableResource):  # type: ignore[type-arg]  # its value is the resource itself
    """One Iceberg catalog for PyIceberg and Spark, under one name.

    Either ``folder``: a local one, for the embedded default, a SQLite file and a warehouse. Or ``properties``:
    PyIceberg's, such as ``{"type": "rest", "uri": …}``; they are passed to Spark as well, and ``spark_properties`` adds
    properties that have other names in Spark (without the ``spark.sql.catalog.<name>.`` prefix). Use ``dg.EnvVar`` for
    secrets.

    Metadata of ICDC tables is written under ``icdc_location``. By default it is written next to the table whose changes
    it describes, where runs then need write access.

    Sensors and conditions wait up to ``patience_seconds`` for the catalog or its storage to answer, then continue with
    other catalogs.

    Example:
        >>> IcebergCatalog(folder="/data/lake").spark_config()["spark.sql.catalog.lake.type"]
        'jdbc'
    """

    model_config = KNOWN_SETTINGS
    name: str = "lake"
    folder: str | None = None
    properties: dict[str, str] = Field(default_factory=dict, repr=False)
    spark_properties: dict[str, str] = Field(default_factory=dict, repr=False)
    icdc_location: str | None = None
    patience_seconds: float = 10.0

    def open(self) -> LakeCatalog:
        """The catalog itself; one object per configuration and process, so that connections are shared.

        Raises:
            DeclarationError: it has neither ``folder`` nor ``properties``, or both; or tables can't be in its folder.
        """
        return self._open(patience_seconds=None)

    def open_for_ticks(self) -> LakeCatalog:
        """Like ``open``, for callers that check many catalogs and can't wait long for any of them.

        Raises:
            DeclarationError: as for ``open``.
        """
        return self._open(patience_seconds=self.patience_seconds)

    def _open(self, *, patience_seconds: float | None) -> LakeCatalog:
        self.require_place()
        folder = setting(self.folder)
        if folder is not None:
            _require_folder(folder)
        properties, spark = _resolved(self.properties), _resolved(self.spark_properties)
        name, location = setting(self.name), setting(self.icdc_location)
        _require_name(name)
        if location is not None:
            _require_location(location)
        return _open(name, folder, properties, spark, patience_seconds, location)

    def require_place(self) -> None:
        """Fail unless the catalog can have its name and place, as far as they are known before environment variables.

        Raises:
            DeclarationError: it has neither ``folder`` nor ``properties``, or both; or tables can't be in its folder,
                or those of captures at its ``icdc_location``.
        """
        if (self.folder is None) == (not self.properties):
            remedy = "Give IcebergCatalog either folder=... or properties=..., not both."
            raise DeclarationError(asset="IcebergCatalog", problem="it is unclear where the catalog is.", remedy=remedy)
        if not isinstance(self.name, dg.EnvVar):
            _require_name(self.name)
        if self.folder is not None and not isinstance(self.folder, dg.EnvVar):
            _require_folder(self.folder)
        if self.icdc_location is not None and not isinstance(self.icdc_location, dg.EnvVar):
            _require_location(self.icdc_location)

    def name_of(self, table: str) -> tuple[object, ...]:
        """A name of ``table`` that is unique across catalogs. Glue and Hive ignore case."""
        is_caseless = _known(self.properties.get("type", "")).lower() in ("glue", "hive")
        where = (self.name, self.folder, *sorted(self.properties.items()))
        return (*where, table.lower() if is_caseless else table)

    @property
    def shown_name(self) -> str:
        """Its name for people; if that is an environment variable that isn't set, the variable's name."""
        return _known(self.name)

    def spark_config(self) -> dict[str, str]:
        """What a Spark session needs for this catalog, jars included, except secrets.

        For a session in the run's own process: ``LazyPySparkResource(spark_config=catalog.spark_config())``. Dagster
        stores and shows the settings of such a resource, so passwords, tokens, headers and values of environment
        variables are left out. They are set when the IO manager first uses the session. To use your own jars, override
        ``spark.jars``.
        """
        from dagster_ips.local_spark.jars import spark_jars  # noqa: PLC0415  # see LocalSparkConnect.spark_session

        lake = self.open()
        given = [*self.properties.values(), *self.spark_properties.values()]
        from_environment = {value.get_value() for value in given if isinstance(value, dg.EnvVar)}
        public = {
            key: value
            for key, value in lake.spark_configuration().items()
            if not is_secret(key) and value not in from_environment
        }
        return classic_configuration(spark_jars(extras=lake.spark_extras())) | public


def setting(value: _Setting) -> _Setting:
    """A resource's setting. Sensors and commands use resources before Dagster resolves environment variables.

    Raises:
        DeclarationError: it is an environment variable that isn't set.
    """
    # Dagster's class for numbers isn't public.
    if not isinstance(value, dg.EnvVar | type(dg.EnvVar.int("_"))):
        return value
    found: _Setting | None = value.get_value()
    if found is None:
        raise DeclarationError(
            asset="IcebergCatalog, IcdcIOManager and LocalSparkConnect",
            problem=f"the environment variable {value.env_var_name}, which holds one of their settings, isn't set.",
            remedy="Set it also where the definitions are loaded: sensors and commands need it there.",
        )
    return found


def _known(value: str) -> str:
    """A setting as far as it is known: of an environment variable that isn't set, the variable's name."""
    return value.get_value(value.env_var_name) or "" if isinstance(value, dg.EnvVar) else value


def _resolved(properties: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, setting(value)) for key, value in properties.items()))


def _require_name(name: str) -> None:
    if not name or "." in name:
        problem = f"its name {name!r} can't be that of a catalog in Spark, where a dot ends a name."
        raise DeclarationError(asset="IcebergCatalog", problem=problem, remedy="Give it a name without a dot.")


def _require_folder(folder: str) -> None:
    if not folder or folder.startswith("~") or "://" in folder:
        raise DeclarationError(
            asset="IcebergCatalog",
            problem=f"its folder {folder!r} isn't a path on this machine.",
            remedy='Give one, for example str(Path(__file__).parent / "lake"); or, for an object store, '
            "properties=... instead.",
        )
    if {"#", "?"} & set(str(path := Path(folder).absolute())):
        problem = f"its folder {path} contains # or ?, from where on PyIceberg ignores a path."
        raise DeclarationError(asset="IcebergCatalog", problem=problem, remedy="Give it another folder.")


def _require_location(location: str) -> None:
    if not re.match(r"/|[a-z][a-z0-9+.-]*:/", location, re.IGNORECASE):
        raise DeclarationError(
            asset="IcebergCatalog",
            problem=f"its icdc_location {location!r} is a relative path, which is another folder for each process.",
            remedy="Give an absolute one, such as /data/icdc or s3://ours/icdc.",
        )


@lru_cache(maxsize=32)
def _open(  # noqa: PLR0913, PLR0917  # together they are the cache key
    name: str,
    folder: str | None,
    properties: tuple[tuple[str, str], ...],
    spark: tuple[tuple[str, str], ...],
    patience_seconds: float | None,
    icdc_location: str | None,
) -> LakeCatalog:
    known = LakeCatalog.embedded(name, Path(folder)).properties if folder is not None else dict(properties)
    return LakeCatalog(name, known, dict(spark), patience_seconds, icdc_location=icdc_location)


class SparkResource(Protocol):
    """A resource that provides a Spark session: ``LocalSparkConnect``, or dagster-pyspark's ``LazyPySparkResource``."""

    @property
    def spark_session(self) -> Any:  # noqa: ANN401  # classic and Connect sessions have no class in common
        """The run's own session."""


class LocalSparkConnect(dg.ConfigurableResource):  # type: ignore[type-arg]  # as for IcebergCatalog
    """A local Spark that stays warm between runs: a Spark Connect server, started by the first run that needs it.

    Each run is a separate process, and starting a JVM for it would cost ten seconds or more. The server outlives the
    runs; stop it with ``python -m dagster_ips.local_spark.connect_server stop``. The log of the run that starts it
    shows the progress. ``spark_config`` configures the run's own session, ``server_config`` the server at start.
    ``extra_jars`` adds jars for other catalogs: ``"aws"`` for S3, ``"postgresql"`` for a catalog in PostgreSQL. Use
    ``dg.EnvVar`` for secrets in ``server_config``.
    """

    model_config = KNOWN_SETTINGS
    spark_config: dict[str, Any] = Field(default_factory=dict, repr=False)
    server_config: dict[str, str] = Field(default_factory=dict, repr=False)
    extra_jars: list[str] = Field(default_factory=list)
    server_folder: str | None = None
    driver_memory: str = "2g"
    cores: int | None = None
    _server: Any = PrivateAttr(default=None)
    _session: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> Any:  # noqa: ANN401  # as in SparkResource
        """The run's own session on the server, which is started again if it has ended."""
        # Both modules have a command line. If the package imported them, `python -m` would warn of running them twice.
        from dagster_ips.local_spark.connect_server import ensure_connect_server  # noqa: PLC0415

        if self._session is None or not self._server.process.is_alive():
            self._server = ensure_connect_server(**self.server_options(), say=dg.get_dagster_logger().info)
            self._session = self._server.session({key: str(setting(v)) for key, v in self.spark_config.items()})
        return self._session

    def server_options(self) -> dict[str, Any]:
        """What `ensure_connect_server` starts the server with, also where Dagster hasn't resolved the settings.

        Raises:
            DeclarationError: one of them is an environment variable that isn't set.
        """
        folder = setting(self.server_folder)
        return {
            "folder": Path(folder) if folder else None,
            "driver_memory": setting(self.driver_memory),
            "cores": setting(self.cores),
            "conf": {key: setting(value) for key, value in self.server_config.items()},
            "extra_jars": [setting(each) for each in self.extra_jars],
        }
