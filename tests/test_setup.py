import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
TOOLS = ["bash", "cut", "env", "grep", "head", "id", "paste", "sed"]


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """A PATH with a Python and the shell's tools, but without Java or a package manager that could install it."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        path.joinpath(tool).symlink_to(found)
    path.joinpath("python3").symlink_to(sys.executable)
    return path


def add_tool(path: Path, name: str, script: str) -> None:
    path.joinpath(name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    path.joinpath(name).chmod(0o755)


def preflight(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CHECKOUT / "scripts" / "preflight.sh")],
        env={"PATH": str(path), "HOME": os.environ["HOME"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def only_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def test_without_java_one_line_says_what_to_do(bare_machine: Path) -> None:
    done = preflight(bare_machine)
    assert done.returncode == 1
    assert only_line(done.stderr).startswith("Missing: Java 17 or later. To fix it: ")
    assert done.stdout == ""


def test_an_old_java_is_named_with_its_version(bare_machine: Path) -> None:
    add_tool(bare_machine, "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    assert "java is 11). To fix it: " in only_line(preflight(bare_machine).stderr)


def test_a_java_that_cannot_start_spark_is_refused(bare_machine: Path) -> None:
    add_tool(
        bare_machine,
        "java",
        """case $1 in -version) echo 'openjdk version "17.0.1"' >&2;; *) echo java.base@17.0.1;; esac""",
    )
    assert "jdk.incubator.vector" in only_line(preflight(bare_machine).stderr)


def test_the_message_about_a_java_home_without_java_says_to_correct_it(bare_machine: Path, tmp_path: Path) -> None:
    done = preflight(bare_machine, JAVA_HOME=str(tmp_path))
    assert f"point JAVA_HOME (now {tmp_path}) to a Java 17, or unset it" in only_line(done.stderr)


def test_when_python_and_java_are_missing_one_line_names_both(bare_machine: Path) -> None:
    bare_machine.joinpath("python3").unlink()
    line = only_line(preflight(bare_machine).stderr)
    assert line.startswith("Missing: Python 3.11 or later and Java 17 or later. To fix it: ")


def test_missing_java_is_installed_if_no_password_is_needed(bare_machine: Path) -> None:
    add_tool(bare_machine, "id", "echo 0")
    java = bare_machine / "java"
    works = 'echo "openjdk version \\\\"17.0.1\\\\"" >&2; echo jdk.incubator.vector@17'
    pretend = f"printf '#!/bin/sh\\n{works}\\n' > {java}"
    add_tool(
        bare_machine,
        "apt-get",
        f"""case $* in *install*openjdk-17*) {pretend}; {shutil.which("chmod")} +x {java};; esac""",
    )
    done = preflight(bare_machine)
    assert done.returncode == 0
    assert only_line(done.stderr).startswith("Installing openjdk-17-jre-headless with apt-get")
    assert done.stdout == f"{bare_machine / 'python3'}\n"


def test_a_failed_preflight_downloads_nothing(bare_machine: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "scripts", checkout / "scripts")
    add_tool(bare_machine, "dirname", "echo scripts")
    done = subprocess.run(
        [str(checkout / "scripts" / "setup.sh")],
        env={"PATH": str(bare_machine)},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [path.name for path in checkout.iterdir()] == ["scripts"]


@pytest.mark.slow
def test_packages_whose_commands_run_another_checkouts_python_are_installed_anew(tmp_path: Path) -> None:
    made, checkout = tmp_path / "made here", tmp_path / "moved here"
    venv = made / ".local" / "venv"
    shutil.copytree(CHECKOUT / "scripts", made / "scripts")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    add_tool(venv / "bin", "pip", f"exec '{venv}/bin/python' -m pip")
    (venv / "made").touch()
    for name in ("pyproject.toml", "constraints.txt"):
        (made / name).write_text("[")  # Pip refuses both, so that nothing is downloaded.
    made.rename(checkout)
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([str(checkout / "scripts" / "setup.sh")], env=environment, check=False, capture_output=True)
    assert done.returncode == 1
    assert not (checkout / ".local" / "venv" / "made").exists()
