"""Frames that can be recognized in Spark's plans, and the analyzed plan of a frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ips._compat import explained, origins_of_rdds
from dagster_ips.core import varying
from dagster_ips.core.lineage import RESULT
from dagster_ips.core.ranges import quoted
from dagster_ips.core.spark_plan import Node, PlanUnreadableError, elements, parse_plan
from dagster_ips.spark.error_text import first_line
from dagster_ips.spark.late import F, errors
from dagster_ips.spark.settings import ALL_FIELDS, with_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Otherwise Spark computes twice only what costs nothing: SELECT a + 1 AS b, b + 1 AS c would have another plan.
_INLINED = {"spark.sql.optimizer.collapseProjectAlwaysInline": "true"}
_CUT = "it is truncated"
_GIVEN = {"ParallelCollectionRDD", "EmptyRDD"}
_DRAWN = re.compile(r"(?P<depth>[ :+-]*)(?P<operator>[A-Za-z]\w*)(?P<rest>.*)", re.DOTALL)
_COLUMNS = re.compile(r" \[(?P<columns>.*)\]", re.DOTALL)
# The name of a LATERAL VIEW, which nothing refers to any more.
_GENERATOR = re.compile(r"(Generate [^\n]*, (?:true|false), )\w*, (?=\[)")
_NUMBER = re.compile(r"#\d+L?")
# The conditions that a scan applies by itself, as on partitions: only the physical plan shows them.
_OF_SCANS = re.compile(r"\bfilters=(.*?)(?:, runtimeFilters=|, groupedBy=|$)", re.MULTILINE)
# An expression as name#1 or name#1L, by the number; columns that the text gives no name are called by their text.
_NUMBERED = re.compile(r"[\w.]*#(?P<number>\d+)L?")


def marked(frame: DataFrame, mark: str, *, name: str, columns: Sequence[str] | None = None) -> DataFrame:
    """``frame``, shown by plans as ``mark``, with columns that no other frame has; ``name`` qualifies them in SQL.

    ``columns`` are its columns; if they aren't given, Spark is asked for them.
    """
    columns = frame.columns if columns is None else columns
    return frame.select(*[F.col(quoted(column)).alias(column) for column in columns]).alias(mark).alias(name)


def has_only_given_rows(frame: DataFrame) -> bool:
    """Whether the RDDs in the frame's plan hold rows that Python passed to Spark, and not rows computed from a frame.

    False over Spark Connect, where such rows are no RDD, but a checkpoint is.
    """
    origins = origins_of_rdds(frame)
    return origins is not None and origins <= _GIVEN


def are_alike(one: DataFrame, other: DataFrame) -> bool:
    """Whether Spark plans both frames alike, and so gives the same rows; runs no job.

    False as well where that can't be seen.
    """
    if one.sameSemantics(other):
        return True
    with with_settings(one.sparkSession, ALL_FIELDS | _INLINED):
        optimized = [_optimized(frame) for frame in (one, other)]
    return optimized[0] == optimized[1]


def _optimized(frame: DataFrame) -> str:
    """The optimized plan, with expressions numbered in the order in which they appear, and its scans' conditions."""
    try:
        text = explained(frame)
    except errors.PySparkException as error:  # It may compute what is constant.
        raise PlanUnreadableError(first_line(error)) from error
    tree, _, physical = text.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")
    if not physical:
        raise PlanUnreadableError(_CUT)
    numbers: dict[str, int] = {}
    ordered = _GENERATOR.sub(r"\1", _with_columns_in_order(tree))
    numbered = _NUMBERED.sub(lambda found: f"#{numbers.setdefault(found['number'], len(numbers))}", ordered)
    return "\n".join([numbered, *(", ".join(sorted(each.split(", "))) for each in _OF_SCANS.findall(physical))])


def _with_columns_in_order(tree: str) -> str:
    """``tree`` with the columns of a Project in alphabetical order, if only their numbers matter to those above it."""
    lines, above = [], list[tuple[int, str]]()
    for line in tree.strip("\n").split("\n"):
        lines.append(line)
        drawn = _DRAWN.fullmatch(line)
        if drawn is None:
            continue
        depth, operator = len(drawn["depth"]), drawn["operator"]
        above = [each for each in above if each[0] < depth]
        by_position = next((each for _, each in reversed(above) if each in ("Project", "Aggregate", "Union")), "Union")
        listed = _COLUMNS.fullmatch(drawn["rest"]) if operator == "Project" and by_position != "Union" else None
        if listed and (columns := elements(listed["columns"])):
            in_order = sorted(columns, key=lambda each: _NUMBER.sub("", each).lower())
            lines[-1] = f"{drawn['depth']}Project [{', '.join(in_order)}]"
        above.append((depth, operator))
    return "\n".join(lines)


def result_plan(frame: DataFrame) -> Node:
    """The analyzed plan of ``frame``, with its columns numbered as ``core.lineage`` expects; runs no job.

    Raises:
        PlanUnreadableError: Spark can't print it, or does so in an unknown way, or two columns have the name that the
            error gives.
    """
    columns = frame.columns
    lowered = [column.lower() for column in columns]  # Spark ignores case
    if len(set(lowered)) < len(columns):
        twice = next(column for column in columns if lowered.count(column.lower()) > 1)
        named = f"two columns are named {twice}"
        raise PlanUnreadableError(named)
    numbered = [F.col(quoted(column)).alias(f"{RESULT}{at}") for at, column in enumerate(columns)]
    return parse_plan(_analyzed(frame.select(*numbered)))


def varies(selected: DataFrame) -> bool:
    """Whether what was ``selected`` last depends on the clock or on chance; runs no job.

    Raises:
        PlanUnreadableError: Spark can't print its plan.
    """
    drawn = next(line for line in _analyzed(selected).split("\n") if "Project [" in line)
    return varying.IN_PLANS.search(drawn.lower()) is not None


def _analyzed(frame: DataFrame) -> str:
    """The analyzed plan of ``frame``, of no rows: Spark has nothing to plan beyond this part, then."""
    empty = frame.limit(0)
    try:
        with with_settings(frame.sparkSession, ALL_FIELDS):
            text = explained(empty)
    except errors.PySparkException as error:  # Over Connect, an overflow of Spark's stack has no message.
        deep = "Spark failed to print it, perhaps because it is too deep"
        raise PlanUnreadableError(deep) from error
    analysed, end, _ = text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")
    if not end:
        raise PlanUnreadableError(_CUT)
    _schema, _, tree = analysed.strip("\n").partition("\n")
    return tree
