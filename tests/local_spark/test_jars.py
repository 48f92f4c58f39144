import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_ips.local_spark import jars
from dagster_ips.local_spark.jars import (
    SQLITE,
    JarChecksumError,
    JarsError,
    Package,
    UnknownExtraError,
    UnsupportedSparkError,
    needed_packages,
    spark_jars,
)
from dagster_ips.local_spark.private_files import SparkFolderUnusableError

SMALL = b"a small jar"
NAMES = [package.file_name for package in needed_packages()]


def jars_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "jars").iterdir() if not path.name.startswith("."))


def copied_to(folder: Path) -> list[Path]:
    folder.mkdir(parents=True)
    return [
        folder.joinpath(jar.name) for jar in spark_jars() if folder.joinpath(jar.name).write_bytes(jar.read_bytes())
    ]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of jars that Spark's resolver uses instead of any repository."""
    jars = tmp_path / "mirror"
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        f"""<ivysettings>
          <settings defaultResolver="mirror"/>
          <resolvers>
            <filesystem name="mirror"><artifact pattern="{jars}/[artifact]-[revision].[ext]"/></filesystem>
          </resolvers>
        </ivysettings>"""
    )
    monkeypatch.setenv("DAGSTER_IPS_IVY_SETTINGS", str(settings))
    return jars


@pytest.fixture
def no_resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "no-spark-here"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Package:
    """An extra jar that is small."""
    package = Package("org.example", "small", "1.0", len(SMALL), hashlib.sha256(SMALL).hexdigest())
    monkeypatch.setattr(jars, "EXTRAS", {"small": package})
    return package


def test_content_is_kept_only_if_it_is_the_pinned_one(
    tmp_path: Path, small: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = SMALL.upper()

    def deliver(packages: tuple[Package, ...], ivy: Path, _: Path) -> str:
        (ivy / "jars").mkdir(parents=True)
        for each in packages:
            (ivy / "jars" / f"{each.group}_{each.file_name}").write_bytes(delivered)
        return ""

    monkeypatch.setattr(jars, "_run_resolver", deliver)
    copied_to(tmp_path / "jars")
    with pytest.raises(JarChecksumError, match="run again") as caught:
        spark_jars(tmp_path, extras=["small"])
    assert (caught.value.coordinate, jars_in(tmp_path)) == (small.coordinate, NAMES)
    delivered = SMALL
    for _ in range(2):
        *_, jar = spark_jars(tmp_path, extras=["small"])
        assert jar.read_bytes() == SMALL
        jar.write_bytes(SMALL[:3])  # cut short


@pytest.mark.slow
def test_four_processes_at_once_on_an_empty_cache_all_get_the_jars(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from dagster_ips.local_spark.jars import spark_jars;"
        "print(len(spark_jars(Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(process.communicate()[0], process.returncode) for process in processes] == [("2\n", 0)] * 4
    assert jars_in(tmp_path) == NAMES


@pytest.mark.usefixtures("no_resolver")
def test_jars_that_are_already_resolved_need_no_resolver(tmp_path: Path) -> None:
    copied_to(tmp_path / "jars")
    assert [jar.name for jar in spark_jars(tmp_path)] == NAMES


@pytest.mark.usefixtures("no_resolver")
def test_a_resolver_that_cannot_run_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(JarsError, match="no-spark-here"):
        spark_jars(tmp_path)
    assert jars_in(tmp_path) == []


def test_a_mirror_without_the_jars_is_an_error_that_shows_what_the_resolver_said(tmp_path: Path, mirror: Path) -> None:
    mirror.mkdir()
    with pytest.raises(JarsError, match="unresolved dependency") as caught:
        spark_jars(tmp_path)
    assert caught.value.coordinates == tuple(package.coordinate for package in needed_packages())
    assert jars_in(tmp_path) == []
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.slow
def test_a_jar_cut_short_in_the_cache_is_resolved_again(tmp_path: Path, mirror: Path) -> None:
    copied_to(mirror)
    _, cut = copied_to(tmp_path / "jars")
    cut.write_bytes(cut.read_bytes()[:1000])
    assert [jar.stat().st_size for jar in spark_jars(tmp_path)] == [package.size_bytes for package in needed_packages()]


@pytest.mark.slow
def test_a_jar_whose_content_differs_from_the_pinned_one_is_refused(tmp_path: Path, mirror: Path) -> None:
    _, tampered = copied_to(mirror)
    tampered.write_bytes(tampered.read_bytes()[:-1] + b"!")
    with pytest.raises(JarChecksumError, match="run again") as caught:
        spark_jars(tmp_path)
    assert caught.value.coordinate == SQLITE.coordinate
    assert jars_in(tmp_path) == []
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.slow
def test_extra_jars_are_resolved_when_they_are_requested(tmp_path: Path, mirror: Path, small: Package) -> None:
    copied_to(tmp_path / "jars")
    mirror.mkdir()
    with pytest.raises(JarsError, match=small.artifact):
        spark_jars(tmp_path, extras=["small"])
    (mirror / small.file_name).write_bytes(SMALL)
    assert [jar.name for jar in spark_jars(tmp_path, extras=["small"])] == [*NAMES, small.file_name]


def test_an_unknown_extra_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownExtraError, match="aws, postgresql") as caught:
        spark_jars(tmp_path, extras=["gcs"])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_cache_that_cannot_be_written_is_an_error_that_says_how_to_choose_another() -> None:
    with pytest.raises(SparkFolderUnusableError, match=r"/proc/nowhere/jars.*DAGSTER_IPS_CACHE") as caught:
        spark_jars(Path("/proc/nowhere"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_missing_java_is_named_as_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java-here"))
    with pytest.raises(JarsError, match=r"(?s)Java \(17 or newer\) is installed.*no-java-here"):
        spark_jars(tmp_path)


def test_the_command_line_prints_an_error_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert jars.main(["gcs"]) == 1
    said = capsys.readouterr()
    assert (said.out, "Choose from aws, postgresql" in said.err) == ("", True)
    assert jars.main([]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == NAMES


@pytest.mark.parametrize("version", ["3.5.6", "4.2.0", "5.0.0.dev1"])
def test_an_unsupported_spark_is_an_error_that_names_the_supported_ones(version: str) -> None:
    with pytest.raises(UnsupportedSparkError, match=f"PySpark {version} .* supports 4.0 and 4.1"):
        needed_packages(spark=version)


def test_each_supported_spark_has_its_own_iceberg() -> None:
    assert [needed_packages(spark=f"{version}.3")[0].artifact for version in ("4.0", "4.1")] == [
        "iceberg-spark-runtime-4.0_2.13",
        "iceberg-spark-runtime-4.1_2.13",
    ]
