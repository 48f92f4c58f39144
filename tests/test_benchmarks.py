"""Each benchmark is imported, so that what it uses of the package and of the tests exists; they run by hand."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import benchmarks

ROOT = Path(benchmarks.__path__[0])
MODULES = sorted(".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in ROOT.rglob("*.py"))


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_a_benchmark_can_be_imported(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYBACK_BENCHMARK", str(tmp_path))
    importlib.import_module(module)
