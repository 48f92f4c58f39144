"""Spark's jars for Iceberg: resolved once, by Spark's own resolver, and checked; later starts need no network.

``spark.jars.packages`` would resolve them in every process. If several Sparks start at once with an empty cache, they
download over each other, and one of them dies with nothing but ``JAVA_GATEWAY_EXITED``. Here one process resolves the
jars under a lock and checks the files against pinned checksums, and each process gets plain paths for ``spark.jars``.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyspark

from dagster_ips.errors import IpsError
from dagster_ips.local_spark.launch import cache_folder, exclusive_lock, last_lines, spark_environment, spark_home

RESOLVE_SECONDS = 1800
"""A resolver that hasn't finished after this long is stopped: at 1 Mbit/s, the 62 MB take about ten minutes."""


@dataclass(frozen=True)
class Package:
    """A Maven artifact, pinned to its content."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def coordinate(self) -> str:
        """The artifact as ``spark.jars.packages`` takes it.

        >>> SQLITE.coordinate
        'org.xerial:sqlite-jdbc:3.50.3.0'
        """
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """The jar's name in the cache.

        >>> SQLITE.file_name
        'sqlite-jdbc-3.50.3.0.jar'
        """
        return f"{self.artifact}-{self.version}.jar"


RUNTIMES: Mapping[str, Package] = MappingProxyType(
    {
        "4.0": Package(
            "org.apache.iceberg",
            "iceberg-spark-runtime-4.0_2.13",
            "1.11.0",
            47_926_285,
            "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc",
        ),
        "4.1": Package(
            "org.apache.iceberg",
            "iceberg-spark-runtime-4.1_2.13",
            "1.12.0",
            48_309_426,
            "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
        ),
    }
)
"""Iceberg for each supported Spark, by the first two parts of its version. Iceberg 1.12 has none for Spark 4.0."""
SQLITE = Package(
    "org.xerial",
    "sqlite-jdbc",
    "3.50.3.0",
    14_346_720,
    "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
)
"""The driver for a catalog in SQLite."""
_AWS: Mapping[str, Package] = MappingProxyType(
    {
        "1.11.0": Package(
            "org.apache.iceberg",
            "iceberg-aws-bundle",
            "1.11.0",
            63_613_165,
            "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f",
        ),
        "1.12.0": Package(
            "org.apache.iceberg",
            "iceberg-aws-bundle",
            "1.12.0",
            69_034_612,
            "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
        ),
    }
)
"""S3's client by Iceberg's version: the two are only tested together in the same version."""
_NEWEST = RUNTIMES[max(RUNTIMES)]
EXTRAS: Mapping[str, Package] = MappingProxyType(
    {
        "aws": _AWS[RUNTIMES.get(".".join(pyspark.__version__.split(".")[:2]), _NEWEST).version],
        "postgresql": Package(
            "org.postgresql",
            "postgresql",
            "42.7.7",
            1_098_916,
            "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460",
        ),
    }
)
"""What some catalogs need besides: Iceberg for S3, and the driver for a catalog in PostgreSQL."""


@dataclass(eq=False)
class JarsError(IpsError):
    """Spark's resolver did not deliver the jars; ``output`` is what it printed."""

    coordinates: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return (
            f"Spark's resolver could not download {' and '.join(self.coordinates)}. Without them Spark can't read "
            "Iceberg tables, so nothing was started. Check that Java (17 or newer) is installed, and that this machine "
            "can reach a Maven repository; for a mirror, point DAGSTER_IPS_IVY_SETTINGS to an Ivy settings file. Then "
            f"run again. The resolver's last lines:\n{last_lines(self.output)}"
        )


@dataclass(eq=False)
class JarChecksumError(IpsError):
    """A resolved jar is not the pinned one."""

    coordinate: str
    expected_sha256: str
    actual_sha256: str

    def __str__(self) -> str:
        return (
            f"{self.coordinate} was downloaded with sha256 {self.actual_sha256}, but {self.expected_sha256} is pinned. "
            "Its code would run on your data, so it was not kept. The usual cause is a broken download or a mirror "
            "with different content: run again, and if it persists, compare the mirror's file with the publisher's."
        )


@dataclass(eq=False)
class UnsupportedSparkError(IpsError):
    """Iceberg has no runtime for the Spark that is installed, or this library doesn't work with it."""

    version: str

    def __str__(self) -> str:
        return (
            f"PySpark {self.version} is installed, but this library supports {' and '.join(RUNTIMES)}, so Spark was "
            f"not started. Install a supported version: pip install 'pyspark[connect]=={max(RUNTIMES)}.*'."
        )


@dataclass(eq=False)
class UnknownExtraError(IpsError):
    """There are no such jars."""

    extra: str

    def __str__(self) -> str:
        return (
            f"There are no extra jars named {self.extra!r}, so Spark was not started. Choose from {', '.join(EXTRAS)}; "
            "for your own jars, set spark.jars in server_config."
        )


def spark_jars(
    cache: Path | None = None, *, extras: Collection[str] = (), say: Callable[[str], None] = lambda _: None
) -> tuple[Path, ...]:
    """The local jars that Spark needs for Iceberg, in the order of `needed_packages`, as absolute paths.

    The first call with an empty cache resolves them (62 MB, some seconds); any number of processes may call it at once.
    Later calls check only names and sizes, and need no network. A jar with the wrong size is resolved again.

    Args:
        cache: The folder whose subfolder ``jars`` has them; `cache_folder` if None.
        extras: Which of `EXTRAS` are needed as well.
        say: Called with a sentence about what takes long.

    Example:
        >>> [jar.name for jar in spark_jars()]
        ['iceberg-spark-runtime-4.1_2.13-1.12.0.jar', 'sqlite-jdbc-3.50.3.0.jar']

    Raises:
        UnsupportedSparkError: there are none for the installed PySpark.
        UnknownExtraError: an extra is none of `EXTRAS`.
        SparkFolderUnusableError: the cache can't be created or written to.
        JarsError: they could not be resolved. Nothing was kept.
        JarChecksumError: the repository delivered other content than what is pinned. Nothing was kept.
    """
    cache, jars = (cache or cache_folder()).absolute(), jar_paths(cache, extras=extras)
    missing = _missing(cache, extras)
    if not missing:
        return jars
    megabytes = round(sum(package.size_bytes for package in missing) / 1e6)
    say(f"Downloading Spark's jars for Iceberg ({megabytes} MB) into {cache / 'jars'}, once per machine.")
    with exclusive_lock(cache / "jars" / ".lock"):
        if missing := _missing(cache, extras):  # Another process may have brought them while this one waited.
            _resolve(missing, cache)
    return jars


def jar_paths(cache: Path | None = None, *, extras: Collection[str]) -> tuple[Path, ...]:
    """Where the jars are, or will be."""
    folder = (cache or cache_folder()).absolute() / "jars"
    return tuple(folder / package.file_name for package in needed_packages(extras))


def missing_jars(*, extras: Collection[str]) -> tuple[str, ...]:
    """The names of the jars that `spark_jars` would have to download; downloads nothing."""
    return tuple(package.file_name for package in _missing(cache_folder(), extras))


def needed_packages(extras: Collection[str] = (), *, spark: str = pyspark.__version__) -> tuple[Package, ...]:
    """What the embedded default needs: Iceberg for a version of Spark, the driver for SQLite, and ``extras``.

    Raises:
        UnsupportedSparkError: there is no Iceberg for that version.
        UnknownExtraError: an extra is none of `EXTRAS`.
    """
    runtime = RUNTIMES.get(".".join(spark.split(".")[:2]))
    if runtime is None:
        raise UnsupportedSparkError(spark)
    for extra in extras:
        if extra not in EXTRAS:
            raise UnknownExtraError(extra)
    return (runtime, SQLITE, *(package for extra, package in EXTRAS.items() if extra in extras))


def _missing(cache: Path, extras: Collection[str]) -> tuple[Package, ...]:
    def size_bytes(package: Package) -> int | None:
        path = cache / "jars" / package.file_name
        return path.stat().st_size if path.is_file() else None

    return tuple(package for package in needed_packages(extras) if size_bytes(package) != package.size_bytes)


def _resolve(packages: tuple[Package, ...], cache: Path) -> None:
    """Bring ``packages`` into the cache: each file appears whole and checked, or not at all."""
    for abandoned in (cache / "jars").glob(".resolving-*"):  # Left by a killed process: this one has the lock now.
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".resolving-", dir=cache / "jars") as scratch:
        ivy = Path(scratch, "ivy")
        output = _run_resolver(packages, ivy, Path(scratch))
        # Ivy's file names carry the group in front; its folder holds nothing but what was asked for.
        found = {
            package: path for package in packages for path in ivy.glob(f"jars/{package.group}_{package.file_name}")
        }
        if len(found) < len(packages):
            raise JarsError(tuple(package.coordinate for package in packages), output)
        for package, path in found.items():
            with path.open("rb") as jar:
                actual = hashlib.file_digest(jar, "sha256").hexdigest()
            if actual != package.sha256:
                raise JarChecksumError(package.coordinate, package.sha256, actual)
        for package, path in found.items():
            with path.open("rb") as jar:
                os.fsync(jar.fileno())
            shutil.move(path, cache / "jars" / package.file_name)


def _run_resolver(packages: tuple[Package, ...], ivy: Path, scratch: Path) -> str:
    """Run ``spark-submit --packages`` on a script that does nothing; return its output.

    It is spark-submit so that the resolver, its mirrors and its credentials are those that the user configured for
    Spark.
    """
    script = scratch / "resolve.py"
    script.write_text("# spark-submit has resolved its packages by the time it runs this.\n")
    coordinates = tuple(package.coordinate for package in packages)
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]", "--packages", ",".join(coordinates), "--conf", f"spark.jars.ivy={ivy}"),
    ]
    if settings := os.environ.get("DAGSTER_IPS_IVY_SETTINGS"):
        command += ["--conf", f"spark.jars.ivySettings={settings}"]
    try:
        done = subprocess.run(
            [*command, str(script)],
            env=spark_environment(),
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=RESOLVE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsError(coordinates, str(error)) from error
    if done.returncode != 0:
        raise JarsError(coordinates, done.stdout)
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: downloads the jars that are missing, and prints where all of them are."""
    parser = argparse.ArgumentParser(
        prog="python -m dagster_ips.local_spark.jars", description="Download Spark's jars for Iceberg."
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"one of the extra jars: {', '.join(EXTRAS)}")
    given = parser.parse_args(arguments)
    try:
        found = spark_jars(extras=given.extras, say=lambda said: print(said, file=sys.stderr, flush=True))
    except IpsError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
