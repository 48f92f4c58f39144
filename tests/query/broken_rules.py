"""The rules by which a plan is derived, each with the code that implements it and code that breaks it.

``python -m tests.query.broken_rules [RULE ...]`` breaks each rule as it imports the library, and prints what finds it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parent.parent.parent
KEYS, LIMITS, NEAR, TERMS = "affected_keys", "key_restriction", "near_rows", "delta_terms"
TREE, GROUPS, BODY, PLAN = "query_tree", "top_grouping", "body_keys", "maintenance_plan"
NONE = "nothing is broken, and nothing is found"
RULES = {
    NONE: (KEYS, "[after(scan.source), *went]", "[after(scan.source), *went]"),
    "other places hold removed rows, too": (KEYS, "[after(scan.source), *went]", "[after(scan.source)]"),
    "rows that went reach keys": (KEYS, "tables = [*came, *went]", "tables = [*(came or went)]"),
    "filters on what may be null are left out": (KEYS, "each.role is Role.INNER and each in", "each in"),
    "an equality holds where its owner is": (
        KEYS,
        "(equality.owner is None or equality.owner in found)",
        "(equality.owner is None or equality.owner)",
    ),
    "no key may be null for want of a relation": (
        TREE,
        "relation.role is not Role.INNER for relation in relations",
        "relation.role is Role.HIDDEN for relation in relations",
    ),
    "keys are in every PARTITION BY": (TREE, "for window in block.windows]", "for window in block.windows[:0]]"),
    "one group and LIMIT have no keys": (TREE, "if block.unkeyed or any(", "if any("),
    "a constant that is grouped by is null in subtotals": (
        TREE,
        "return None if block.has_subtotals else expression",
        "return expression",
    ),
    "of no rows, there is one group": (
        KEYS,
        "if start is None or (scan is None and block.is_one_group):",
        "if not start:",
    ),
    "sqlglot doesn't know how many digits a computed decimal has": (TREE, " and _has_known_type(side, place):", ":"),
    "an IN that isn't under WHERE tells no key": (
        TREE,
        "if not isinstance(clause, exp.Where | exp.Having):",
        "if False:",
    ),
    "of an IN each value stands for itself": (
        TREE,
        "value = key_expression(inner, place)",
        "value = plain(query).selects[place].unalias()",
    ),
    "a RIGHT JOIN begins with its right side": (TREE, 'first.set("this", preserved.copy())', "pass"),
    "only legal equalities limit": (
        LIMITS,
        "return relation.role is Role.INNER if equality.owner is None else equality.owner is relation",
        "return relation is not None",
    ),
    "keys are compared null-safe": (LIMITS, "exp.NullSafeEQ(", "exp.EQ("),
    "places alike share their columns": (
        LIMITS,
        "for each in alike for name in self._columns[each]",
        "for each in alike[:1] for name in self._columns[each]",
    ),
    "only scans with the same limits are alike": (
        LIMITS,
        "if self._reads(each) == self._reads(scan)",
        "if self._reads(each)[0] == self._reads(scan)[0]",
    ),
    "rows that came are in the current state": (NEAR, "after(source): [added(source)],", "after(source): [],"),
    "rows that went were in the earlier state": (NEAR, "[removed(source)] if loses_rows.get(source) else []", "[]"),
    "only columns that are equated hold the same values": (
        KEYS,
        "if mine == each and its not in found]",
        "if its not in found]",
    ),
    "the right side of a LEFT JOIN isn't linear": (TERMS, "if relation.role is Role.LEFT:", "if False:"),
    "a subquery isn't linear": (TERMS, "if relation.role is Role.HIDDEN:", "if False:"),
    "of several places, later ones are as they were": (TERMS, "number in later", "number in ()"),
    "the other side of a UNION ALL is empty": (TERMS, "other.replace(empty)", "pass"),
    "EXCEPT isn't linear": (
        TERMS,
        'case Sides() if not isinstance(node.tree, exp.Union) or node.tree.args.get("distinct"):',
        'case Sides() if node.tree.args.get("distinct"):',
    ),
    "DISTINCT isn't linear": (TERMS, 'if block.tree.args.get("distinct"):', "if False:"),
    "windows aren't linear": (TERMS, '"a window function looks at other rows" if block.windows else None', "None"),
    "HAVING isn't combined": (GROUPS, '("having", "distinct")', '("distinct",)'),
    "every place that changed reaches keys": (
        PLAN,
        "for scan in scans\n        ]",
        "for scan in scans[:1]\n        ]",
    ),
    "rows are appended only if none went": (PLAN, "if why is None and not any(", "if why is None or not any("),
    "what can't be read any more is not read": (PLAN, "if is_lost else None", "if False else None"),
    "the right side of EXCEPT reaches keys": (TREE, "if scan in self.left.scans else self.right", "or self.right"),
    "an equality of a LEFT JOIN holds where its right side is": (
        TREE,
        "elif equality := _equality(block, condition, relation):",
        "elif equality := _equality(block, condition, None):",
    ),
    "a FULL JOIN isn't followed": (TREE, 'if side in ("RIGHT", "FULL"):', 'if side == "RIGHT":'),
    "a RIGHT JOIN after another isn't followed": (TREE, 'if side in ("RIGHT", "FULL"):', 'if side == "FULL":'),
    "a column with a subquery is no key": (TREE, "exp.Lambda) or expression.find(exp.Query):", "exp.Lambda):"),
    "equal values of two types are two": (TREE, "or not _are_alike(left, right):", "or False:"),
    "USING's coalesce is the right column in a RIGHT JOIN": (PLAN, 'right if side == "RIGHT" else left', "left"),
    "what is below is linear, too": (TERMS, "if why := why_not_linear(relation.node, changed):", "if why := None:"),
    "groups aren't linear": (TERMS, "if block.group or block.unkeyed:", "if False:"),
    "no aggregate of distinct values is combined": (
        GROUPS,
        "if within(expression, exp.Query, exp.Distinct, exp.Window)",
        "if within(expression, exp.Query, exp.Window)",
    ),
    "an aggregate of some rows counts no others": (GROUPS, "_where(expression.expression.this, found[1])", "found[1]"),
    "ROLLUP isn't combined": (GROUPS, "if block.unkeyed and (block.group or", "if block.unkeyed and (False or"),
    "the result has all that it is grouped by": (
        GROUPS,
        "if lacking := [each for each in node.group if each not in selected]:",
        "if lacking := []:",
    ),
    "extremes need the rows that are left": (GROUPS, "in (Function.MIN, Function.MAX) for", "in () for"),
    "rows of several places may cancel": (PLAN, "any(changed[scan.source].removes for scan in scans[1:])", "False"),
    "keys of what is grouped are there in every row": (
        BODY,
        "if relation is not None and relation.role is Role.INNER:",
        "if relation is not None:",
    ),
    "keys of what is grouped are of a type that keys may have": (
        BODY,
        'if selected.unalias().meta.get("kind"):',
        "if True:",
    ),
    "every place that changed reaches keys of what is grouped": (
        PLAN,
        "for scan in scans], distinct=True)",
        "for scan in scans[:1]], distinct=True)",
    ),
    "what was grouped is taken off as it was": (LIMITS, "(before if source in changed else after)", "after"),
    "what was grouped is read as it was only where it can be": (PLAN, "if is_known else None", "if True else None"),
    "no extreme is made of keys of what is grouped": (PLAN, "if not keys or found.has_extremes:", "if not keys:"),
    "a group's column is computed of kept ones alone": (
        GROUPS,
        "is_made = not made.find(exp.AggFunc) and all(each.meta.get(_KEPT) for each in made.find_all(exp.Column))",
        "is_made = True",
    ),
}


_NAMES = ("dagster_ips.query", "tests.query.differential", "tests.query.random_queries", "tests.query.test_derivation")


class _Breaking(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Imports the library without ``rule``."""

    def __init__(self, rule: str) -> None:
        module, self._right, self._wrong = RULES[rule]
        super().__init__(f"dagster_ips.query.{module}", str(ROOT / "dagster_ips" / "query" / f"{module}.py"))

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002  # Python's signature
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  # as above
        text = Path(self.path).read_text()
        if self._right not in text:
            message = f"the rule isn't made by {self._right!r} any more"
            raise AssertionError(message)
        return compile(text.replace(self._right, self._wrong), self.path, "exec")


def is_found(rule: str) -> str | None:
    """What finds that the library is wrong without ``rule``: random queries, or else those by hand; None if nothing."""
    for name in [name for name in sys.modules if name.startswith(_NAMES)]:
        del sys.modules[name]
    breaking = _Breaking(rule)
    sys.meta_path.insert(0, breaking)
    try:
        if _is_wrong(lambda: importlib.import_module("tests.query.differential").run(7, 250, 6).wrong):
            return "by random queries"
        by_hand = importlib.import_module("tests.query.test_derivation")
        cases = [lambda case=case: by_hand.test_the_smallest_change_that_needs_a_rule(*case) for case in by_hand.CASES]
        cases += [
            lambda plan=plan: by_hand.test_a_plan_names_its_strategy_and_why_no_better_one_is_possible(*plan)
            for plan in by_hand.PLANS
        ]
        cases += [
            by_hand.test_floats_are_no_keys_and_equal_values_of_two_types_are_not_interchangeable,
            by_hand.test_earlier_rows_are_needed_if_several_places_change_and_are_not_guessed,
        ]
        return "by hand" if any(_is_wrong(case) for case in cases) else None
    finally:
        sys.meta_path.remove(breaking)


def _is_wrong(check: Callable[[], object]) -> bool:
    try:
        return bool(check())
    except Exception:  # noqa: BLE001  # a library that fails counts as found
        return True


if __name__ == "__main__":
    for each in sys.argv[1:] or RULES:
        found = is_found(each)
        is_right = (found is None) is (each == NONE)
        print(f"{'' if is_right else 'WRONG: '}{found or 'not found':17} {each}", flush=True)
