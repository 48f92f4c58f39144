"""The rules by which a plan is derived, each with a text that makes it and one that breaks it.

``python -m tests.query.broken_rules`` breaks each in a copy of the library and says whether random queries find it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KEYS, LIMITS, TERMS = "affected_keys", "key_restriction", "delta_terms"
TREE, GROUPS, PLAN = "query_tree", "top_grouping", "maintenance_plan"
RULES = {
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
    "keys are in every PARTITION BY": (TREE, "for w in block.windows)]", "for w in block.windows[:0])]"),
    "one group and LIMIT have no keys": (TREE, "if block.unkeyed or any(", "if any("),
    "an IN that isn't under WHERE tells no key": (TREE, "if not isinstance(up, exp.Where | exp.Having) or", "if"),
    "of an IN each value stands for itself": (
        TREE,
        "column, value, up = plain(parent.this), key_expression(inner, 0), parent.parent",
        "column, value, up = plain(parent.this), plain(query).selects[0].unalias(), parent.parent",
    ),
    "a RIGHT JOIN begins with its right side": (TREE, 'first.set("this", preserved.copy())', "pass"),
    "only legal equalities limit": (
        LIMITS,
        "return relation.role is Role.INNER if equality.owner is None else equality.owner is relation",
        "return relation is not None",
    ),
    "keys are compared null-safe": (LIMITS, "exp.NullSafeEQ(", "exp.EQ("),
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
    "HAVING isn't combined": (GROUPS, '("having", "distinct", "qualify")', '("distinct", "qualify")'),
    "every place that changed reaches keys": (
        PLAN,
        "for scan in scans:\n            columns",
        "for scan in scans[:1]:\n            columns",
    ),
    "rows are appended only if none went": (PLAN, "if why is None and not any(", "if why is None or not any("),
}


def is_found(rule: str, seed: int = 7, queries: int = 250, changes: int = 6) -> bool:
    """Whether random queries and changes show that the library is wrong without ``rule``."""
    module, right, wrong = RULES[rule]
    with tempfile.TemporaryDirectory() as folder:
        for part in ("dagster_ips", "tests"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder) / "dagster_ips" / "query" / f"{module}.py"
        text = file.read_text()
        if right not in text:
            message = f"the rule {rule!r} isn't made by {right!r} any more"
            raise AssertionError(message)
        file.write_text(text.replace(right, wrong))
        words = [sys.executable, "-m", "tests.query.differential", str(seed), str(queries), str(changes)]
        done = subprocess.run(words, cwd=folder, env={"PYTHONPATH": folder}, check=False, capture_output=True)
        return done.returncode != 0


if __name__ == "__main__":
    for each in RULES:
        print("found    " if is_found(each) else "NOT FOUND", each, flush=True)
