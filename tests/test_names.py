"""One name, one thing: no two files and no two classes of the package share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import dagster_ips

ROOT = Path(dagster_ips.__file__).parent
SAME_ON_PURPOSE = {
    "__init__": "a room says what it is for",
    "late": "a library that is imported late, once for each room that may import one",
}


def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}


def shared(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that occur in several places, with those places. Each pair in ``named`` is a name and a place."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, where in named:
        found[name].append(where)
    return {name: sorted(places) for name, places in found.items() if len(places) > 1}


def classes(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every class and every type alias, without the underscore that makes it private to its file."""
    for path, source in files.items():
        for node in ast.walk(tree := ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                yield node.name.lstrip("_"), path
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
                yield from ((name, path) for name in names if name[:1].isupper() and not name.isupper())


def test_no_two_files_have_the_same_name() -> None:
    found = shared((Path(path).stem, path) for path in sources())
    assert {name: paths for name, paths in found.items() if name not in SAME_ON_PURPOSE} == {}


def test_no_two_classes_have_the_same_name() -> None:
    assert shared(classes(sources())) == {}


def test_a_second_class_or_alias_of_the_same_name_is_found() -> None:
    files = sources() | {"core/stray.py": "class _Watermark: ...\nEdge = dict[str, int]\n"}
    assert shared(classes(files)) == {
        "Watermark": ["core/stray.py", "core/watermark.py"],
        "Edge": ["core/edge.py", "core/stray.py"],
    }
