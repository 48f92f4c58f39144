"""Finds durable writes in source code: calls that change a table, a file or a cursor, even behind other functions.

A function writes if it makes such a call outside ``with effect(...)``, or calls a function that writes outside one.
Only names decide, not types: a method call counts as a call of any method of that name in the package. That finds too
much rather than too little. What it can't see, such as a write inside another library, shows when a pipeline runs;
see ``test_effects``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# Methods by name, for any object.
# fmt: off
_METHODS = frozenset(
    (
        "register_table", "create_table", "create_table_if_not_exists", "create_table_transaction",
        "drop_table", "purge_table", "rename_table", "commit_table", "create_namespace",
        "create_namespace_if_not_exists", "drop_namespace", "update_namespace_properties", "create_view",
        "drop_view", "register_view", "transaction", "manage_snapshots", "update_schema", "update_spec",
        "upsert", "add_files", "set_cursor_values", "overwrite", "overwritePartitions", "createOrReplace",
        "saveAsTable", "insertInto", "save", "mergeInto", "unlink", "rmdir", "write_text", "write_bytes",
        "mkdir", "touch", "rmtree", "copyfile", "copytree", "makedirs", "symlink_to", "hardlink_to", "truncate",
        "executescript", "report_runless_asset_event", "store_event", "add_dynamic_partitions",
        "delete_dynamic_partition", "wipe_assets", "add_backfill", "update_backfill", "cancel_run",
    )
)
# fmt: on
# Methods that are a write only without arguments: a list's append and a text's replace have arguments.
_WITHOUT_ARGUMENTS = frozenset(("append", "create", "replace", "merge"))
# Functions of these modules.
_OF_MODULES = {"os": frozenset(("remove", "unlink", "rename", "replace", "makedirs", "mkdir", "rmdir", "truncate"))}
_READING_SQL = ("SELECT", "WITH", "DESCRIBE", "SHOW", "VALUES")
_EFFECT = "effect"


@dataclass
class _Function:
    """A function's durable calls, and the functions that it calls, with their lines; both only outside of effects."""

    where: str
    name: str
    durable: list[tuple[int, str]] = field(default_factory=list)
    called: list[tuple[int, str]] = field(default_factory=list)


def durable_calls(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The durable calls outside of effects, as ``line: call``, by ``file function``."""
    functions = [function for name, text in sources.items() for function in _functions(name, ast.parse(text))]
    writers: set[str] = set()
    while True:
        found = {each.name for each in functions if each.durable or any(name in writers for _, name in each.called)}
        if found <= writers:
            break
        writers |= found
    calls: dict[str, list[str]] = {}
    for each in functions:
        if made := each.durable + [call for call in each.called if call[1] in writers]:
            calls.setdefault(f"{each.where} {each.name}", []).extend(f"{line}: {call}" for line, call in made)
    return calls


def _functions(where: str, tree: ast.Module) -> Iterator[_Function]:
    """Every function. The module's own statements count as a function that nobody calls."""
    body = _Function(where, "<module>")
    _Calls(body).visit_all(tree.body)
    yield body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = _Function(where, node.name)
            _Calls(function).visit_all(node.body)
            yield function


class _Calls(ast.NodeVisitor):
    """Collects the calls of one function, except those inside effects and inside nested functions."""

    def __init__(self, function: _Function) -> None:
        self._function = function

    def visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Skipped: ``_functions`` visits nested functions separately."""

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if _called_name(item.context_expr) == _EFFECT:
                return
        self.visit_all(node.body)

    def visit_Call(self, node: ast.Call) -> None:
        name = _called_name(node)
        if _is_durable(node):
            self._function.durable.append((node.lineno, ast.unparse(node.func)))
        elif name is not None and not _is_of_python_or_spark(node):
            self._function.called.append((node.lineno, name))
        self.generic_visit(node)


def _called_name(node: ast.expr) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return None


def _is_durable(node: ast.Call) -> bool:
    if _is_of_python_or_spark(node):
        return False
    match node.func:
        case ast.Name(id="open"):
            return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax") for mode in node.args[1:2])
        case ast.Attribute(attr=name) if name in _WITHOUT_ARGUMENTS:
            found = not node.args and (not node.keywords or name == "create")
        case ast.Attribute(attr="delete"):
            found = bool(node.args)  # The delete of a merge has no argument, and does nothing without the merge.
        case ast.Attribute(attr="sql"):
            found = not _reads(node)
        case ast.Attribute(attr=name, value=owner):
            found = name in _METHODS or (isinstance(owner, ast.Name) and name in _OF_MODULES.get(owner.id, ()))
        case _:
            found = False
    return found


def _reads(node: ast.Call) -> bool:
    text = node.args[0] if node.args else None
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    return isinstance(text, ast.Constant) and str(text.value).lstrip().upper().startswith(_READING_SQL)


def _is_of_python_or_spark(node: ast.Call) -> bool:
    """``set()``, a session's ``conf.set``, building a session, a frame's ``drop``: the package has the same names."""
    match node.func:
        case ast.Name(id="set") | ast.Attribute(value=ast.Attribute(attr="conf")):
            return True
        case ast.Attribute(attr="register", value=ast.Name(id="atexit")):
            return True
        case ast.Attribute(attr="create", value=builder) if ".builder." in ast.unparse(builder):
            return True
        case ast.Attribute(attr="drop", value=ast.Call(func=ast.Attribute(attr="where"))):
            return True
        case ast.Attribute(attr="drop"):
            return not all(isinstance(argument, ast.Name | ast.Attribute) for argument in node.args)
    return False
