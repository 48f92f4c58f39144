import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dagster_ips.local_spark.process import ProcessIdentity, identity_of, launch_detached


def test_a_dead_child_that_nobody_reaped_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    identity = identity_of(child.pid)
    assert identity is not None
    assert identity.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    while identity.is_alive():
        time.sleep(0.01)
    assert child.wait() == -signal.SIGKILL  # it could still be reaped


def test_another_process_with_the_same_id_is_not_mistaken_for_it_and_not_stopped() -> None:
    own = identity_of(os.getpid())
    assert own is not None
    earlier = ProcessIdentity(own.pid, "long ago")
    assert not earlier.is_alive()
    assert earlier.stop() is False


def test_a_launched_process_survives_its_starter_and_stops_when_told(tmp_path: Path) -> None:
    starter = (
        "import os, sys; from pathlib import Path; from dagster_ips.local_spark.process import launch_detached;"
        "print(launch_detached(['sleep', '60'], env=os.environ, cwd=Path.cwd(), log=Path(sys.argv[1])).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", starter, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True, check=True
    )
    identity = identity_of(int(done.stdout))
    assert identity is not None
    assert identity.stop() is True
    assert not identity.is_alive()


def test_a_process_receives_the_stop_request_though_its_starter_ignores_that_signal(tmp_path: Path) -> None:
    hearing = "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.05; done"  # nothing traps ignored signals
    starter = (
        "import os, signal, sys; from pathlib import Path; from dagster_ips.local_spark.process import launch_detached;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(launch_detached(['sh', '-c', sys.argv[2]], env=os.environ, cwd=Path.cwd(), log=Path(sys.argv[1])).pid)"
    )
    log = tmp_path / "log"
    command = [sys.executable, "-c", starter, str(log), hearing]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    identity = identity_of(int(done.stdout))
    assert identity is not None
    while "ready" not in log.read_text():
        time.sleep(0.01)
    assert identity.stop(grace_seconds=5) is True
    assert log.read_text().split() == ["ready", "asked"]


def test_a_process_that_ignores_the_stop_request_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    identity = launch_detached([sys.executable, "-c", stubborn], env=os.environ, cwd=tmp_path, log=log)
    while "deaf" not in log.read_text():
        time.sleep(0.01)
    assert identity.stop(grace_seconds=0.2) is True
    assert not identity.is_alive()
