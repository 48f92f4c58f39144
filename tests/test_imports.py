"""A process that only declares assets, or only asks for help, imports no library that it doesn't use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dagster_ips
from dagster_ips import public

HEAVY = ("numpy", "pandas", "pyarrow", "pyiceberg.catalog", "pyiceberg.types", "pyspark", "sqlalchemy")
COMMAND = "from dagster_ips.cli.main import main; main()"
DECLARED = """
import dagster as dg
import dagster_ips as ips

@dg.asset(ins=dict(playback=ips.incremental()), metadata=ips.append() | ips.table("media.daily"))
def daily(playback: ips.IcdcView): ...

@ips.audit(asset="daily")
def is_not_empty(rows): ...

io_manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder={lake!r}), spark=ips.LocalSparkConnect())
playback = ips.iceberg_asset("playback", table="media.playback")
checks = [is_not_empty]
defs = ips.with_incremental(
    dg.Definitions([playback, daily], asset_checks=checks, resources=dict(io_manager=io_manager))
)
"""


def imported(program: str, *words: str) -> set[str]:
    """The modules that a new process has imported when ``program``, run with the arguments ``words``, has ended."""
    said = f"import contextlib, sys\nwith contextlib.suppress(SystemExit):\n    {program}\n"
    said += "print('', *sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", said, *words], check=True, capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.fixture
def definitions(tmp_path: Path) -> str:
    file = tmp_path / "its_definitions.py"
    file.write_text(DECLARED.format(lake=str(tmp_path / "lake")))
    return str(file)


def test_declaring_incremental_assets_imports_nothing_heavy_but_dagster(definitions: str) -> None:
    found = imported(f"import runpy; runpy.run_path({definitions!r})")
    assert "dagster_ips.orchestration.run.io_manager" in found
    assert sorted(found & set(HEAVY)) == []


@pytest.mark.parametrize("words", [("--help",), ("status", "--help"), ("capture", "--help"), ("no_such_command",)])
def test_help_and_a_mistyped_command_import_not_even_dagster(words: tuple[str, ...]) -> None:
    found = imported(COMMAND, *words)
    assert "dagster_ips.cli.main" in found
    assert sorted(found & {"dagster", *HEAVY}) == []


def test_the_status_of_all_consumers_is_printed_without_importing_spark(
    definitions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    found = imported(COMMAND, "status", "-f", definitions)
    assert "pyiceberg.catalog" in found  # The command has read the catalog.
    assert sorted(found & {"pandas", "pyspark"}) == []


def test_the_package_exports_the_objects_of_its_public_module() -> None:
    assert set(public.__all__) <= set(dir(dagster_ips))
    assert all(getattr(dagster_ips, name) is getattr(public, name) for name in public.__all__)
    with pytest.raises(AttributeError):
        _ = dagster_ips.no_such_name
