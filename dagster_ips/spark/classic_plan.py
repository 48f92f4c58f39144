"""What a frame of a classic session computes, as normalized text: read from its analyzed plan in this process's JVM.

Spark's text of it shows the operators, but neither what is a literal, nor its type, nor the code of Python functions,
nor rows that Python gave. These are read from the plan itself.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster_ips._compat import AnalyzedPlan
from dagster_ips.core.plan_version import PlanVersion
from dagster_ips.core.run_values import RunValues
from dagster_ips.core.spark_plan import Node, parse_plan
from dagster_ips.spark.python_code import UnknownValueError, shortened, value_text

_KIND = "classic"
_LITERAL = "org.apache.spark.sql.catalyst.expressions.Literal"
_ALIAS = "org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias"
_NUMBER = re.compile(r"#\d+L?")
_TABLE = re.compile(r"RelationV2\[.*?\] (?P<name>(?:`(?:[^`]|``)+`|\S)+).*", re.DOTALL)
_WITHOUT_EFFECT = ("View", "ResolvedHint", "CollectMetrics")
_ZONE = re.compile(r"\(Some\([A-Za-z]+(?:/[\w+-]+)*\)\)")
_OBJECT = re.compile(r"(\[B|[a-z]+(\.\w+)+)@[0-9a-f]+")


def classic_plan(plan: AnalyzedPlan, values: RunValues) -> PlanVersion:
    """The version of an analyzed plan.

    Raises:
        PlanUnreadableError: Spark prints it in an unknown way.
    """
    walk = _ClassicWalk(values)
    walk.node(parse_plan(plan.text), 0)
    literals = list(_literals(json.loads(plan.json), values.leaves))
    walk.lines += [walk.literal(each) for each in literals]
    kind = _KIND
    for command in plan.commands(values.leaves):
        kind = f"{_KIND}-{sys.version_info[0]}.{sys.version_info[1]}"
        walk.lines.append(walk.function(command))
    for rows in plan.rows(values.leaves):
        if rows is None:
            walk.unknown.append("rows of an RDD")
        else:
            walk.lines.append(f"rows {shortened(rows)}")
    if values.predicates:
        walk.unknown.append("which conditions on changed values it has: a classic session's plan has only the values")
    return PlanVersion(kind, tuple(walk.lines), tuple(dict.fromkeys(walk.unknown)), varies=bool(values.predicates))


@dataclass
class _ClassicWalk:
    values: RunValues
    lines: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)

    def node(self, node: Node, depth: int) -> None:
        """Add the lines of the node and of those below it."""
        mark = node.text.removeprefix("SubqueryAlias ")
        if node.operator == "SubqueryAlias" and mark in self.values.leaves:
            self.lines.append(f"{' ' * depth}«{self.values.leaves[mark]}»")
            return
        is_named_view = node.operator == "SubqueryAlias" and [each.operator for each in node.children] == ["View"]
        if node.operator in _WITHOUT_EFFECT or is_named_view:
            for child in node.children:
                self.node(child, depth)
            return
        if node.operator == "LogicalRDD":
            text = "LogicalRDD"
        elif found := _TABLE.fullmatch(node.text):
            text = f"table {found['name']}"
        else:
            text = _NUMBER.sub(self._number, self.values.in_text(_ZONE.sub("(zone)", node.text)))
            for value, meaning in self.values.bounds:
                if str(value) in text:
                    said = f"«{meaning}»".replace("\\", r"\\")
                    text = re.sub(rf"(?<![\w.-]){re.escape(str(value))}(?![\w.-])", said, text)
        self.lines.append(f"{' ' * depth}{text}")
        for each in (*node.children, *node.subqueries):
            self.node(each, depth + 1)

    def _number(self, found: re.Match[str]) -> str:
        return self.numbers.setdefault(found.group().rstrip("L"), f"#{len(self.numbers)}")

    def literal(self, literal: Mapping[str, Any]) -> str:
        """A literal and its type."""
        value, kind = literal.get("value"), json.dumps(literal.get("dataType"))
        if isinstance(value, str) and _OBJECT.fullmatch(value):
            value = "as in the text"
        for bound, meaning in self.values.bounds:
            if value == str(bound):
                return f"«{meaning}»: {kind}"
        return f"{json.dumps(self.values.in_text(value) if isinstance(value, str) else value)}: {kind}"

    def function(self, command: bytes) -> str:
        """A Python function, and the type of what it returns."""
        made = pickle.loads(command)  # noqa: S301  # this process has just written it
        function, *returned = made if isinstance(made, tuple) else (made,)
        try:
            return f"python {value_text(function, self.values.own)} {', '.join(map(str, returned))}"
        except (UnknownValueError, RecursionError) as error:
            self.unknown.append(
                f"the Python function {getattr(function, '__name__', type(function).__name__)}: {error}"
            )
            return "python"


def _literals(found: Any, leaves: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401  # JSON
    """The literals in plans and expressions, in order, except for those below frames of the library."""
    if isinstance(found, dict):
        if found.get("class") == _LITERAL:
            yield found
        for each in found.values():
            yield from _literals(each, leaves)
    elif isinstance(found, list):
        at = 0
        while at < len(found):
            if _is_leaf(found[at], leaves):
                at = _end_of(found, at)
            else:
                yield from _literals(found[at], leaves)
                at += 1


def _is_leaf(node: Any, leaves: Mapping[str, str]) -> bool:  # noqa: ANN401  # JSON
    return isinstance(node, dict) and node.get("class") == _ALIAS and node["identifier"]["name"] in leaves


def _end_of(nodes: Sequence[Mapping[str, Any]], at: int) -> int:
    """The place after the tree whose root is ``at``: a parent comes before its children."""
    left = 1
    while left:
        left += nodes[at]["num-children"] - 1
        at += 1
    return at
