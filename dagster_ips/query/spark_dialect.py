"""Spark SQL as Spark reads it: a query that is rewritten for changed rows must keep its meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, UnsupportedError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from dagster_ips.core.installed_spark import installed_version, minor_version
from dagster_ips.query.deterministic_sql import SCALAR, SYNTAX

__all__ = ["AS_GIVEN", "DIALECT", "WRITTEN", "SparkSql", "UnsupportedError", "in_spark", "written_again"]

AS_GIVEN = "ips_as_given"
"""What the meta of a call has whose function is known to be deterministic, but is written back only by its name."""
WRITTEN = "ips_written"
"""What the meta of a name has that is written in another case than it is compared in: the name as it is written."""

# Other names for the same functions.
_SAME = """
    CEILING CHAR_LENGTH CHARACTER_LENGTH IFNULL INSTR LCASE LEN NVL POW SHA1 SIGNUM SUBSTR UCASE
    BINARY BOOLEAN DATE DECIMAL DOUBLE FLOAT INT STRING STRUCT TIMESTAMP TIMESTAMP_LTZ TIMESTAMP_NTZ
"""
_SYNONYMS = frozenset(_SAME.split())
# Functions whose first argument is a unit of time, and no column, if there are so many.
_WITH_UNIT = dict.fromkeys(("DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF", "TIMESTAMPADD", "TIMESTAMPDIFF"), 3)
# The types of calls that are kept as they were given, where they are often keys.
_TYPES = {
    "DATE_SUB": exp.DType.DATE,
    "DATE_TRUNC": exp.DType.TIMESTAMP,
    "TO_DATE": exp.DType.DATE,
    "TRUNC": exp.DType.DATE,
}


def _kept(name: str, build: Callable[..., exp.Expr]) -> Callable[..., exp.Expr]:
    """Reads a call of the function ``name`` as ``build`` does, if that is written back as it was given.

    sqlglot also reads into its classes what these don't hold: the format of ``to_date``, that a unit is a column. Other
    calls keep their name and arguments, whatever these are.
    """

    def read(args: Sequence[Any]) -> exp.Expr:
        found = _built(build, args)
        given = {id(node) for each in args for node in each.walk()}
        # What it reads into a call may also be the time of the run.
        kinds = {type(node).__name__ for node in found.walk() if id(node) not in given}
        if name in _SYNONYMS or not kinds <= SCALAR | SYNTAX:
            return found
        arguments = [each.copy() for each in args]
        if name in _WITH_UNIT and len(args) == _WITH_UNIT[name] and isinstance(args[0], exp.Column):
            arguments[0] = exp.var(args[0].name)
        as_given = exp.Anonymous(this=name, expressions=arguments)
        if _text(found) == _text(as_given):
            return found
        as_given.meta[AS_GIVEN] = True
        return as_given

    return read


def _built(build: Callable[..., exp.Expr], args: Sequence[Any]) -> exp.Expr:
    try:
        return build(args)
    except TypeError:
        return build(args, dialect=SparkSql())


def _text(call: exp.Expr) -> str:
    text = call.sql(SparkSql, identify=True, unsupported_level=ErrorLevel.IGNORE)
    name, bracket, rest = text.partition("(")
    return f"{name.upper()}{bracket}{rest}"


# The value is one of the operands', which Spark converts to one type by its own rules and settings.
_GIVES_AN_OPERAND = (
    *(exp.Array, exp.Case, exp.Coalesce, exp.Greatest, exp.If, exp.Lag, exp.Lead, exp.Least, exp.Nullif),
)
_COMPUTES = (
    *(exp.Abs, exp.Add, exp.BitwiseAnd, exp.BitwiseNot, exp.BitwiseOr, exp.BitwiseXor, exp.Div, exp.Mod, exp.Mul),
    *(exp.Neg, exp.Negative, exp.Sub, exp.Sum),
)
_TAKES_A_PART = (exp.Left, exp.Overlay, exp.Reverse, exp.Substring)
_NUMBERS = exp.DataType.NUMERIC_TYPES


def _typed_as_in_spark(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """How sqlglot infers an expression's type, but only if Spark doesn't convert the operands first.

    The type of any other is unknown: a wrong one would let a column stand for another one that it isn't identical to.
    """
    annotate = metadata["annotator"]

    def annotated(annotator: Any, call: exp.Expr) -> exp.Expr:  # noqa: ANN401  # sqlglot's
        found: exp.Expr = annotate(annotator, call)
        if not _is_as_in_spark(call, _operands(call)):
            annotator._set_type(call, exp.DType.UNKNOWN)  # noqa: SLF001  # as sqlglot's own annotators do
        return found

    return {**metadata, "annotator": annotated}


def _operands(call: exp.Expr) -> list[exp.Expr]:
    """The operands that the value is made of."""
    found = [call.args.get(key) for key in ("this", "expression", "true", "false", "default")]
    found = found[2:] if isinstance(call, exp.If | exp.Case) else found
    found = [*found, *call.expressions, *(each.args["true"] for each in call.args.get("ifs") or [])]
    return [each for each in found if isinstance(each, exp.Expr)]


def _is_as_in_spark(call: exp.Expr, operands: Sequence[exp.Expr]) -> bool:
    kinds = [each.type or exp.DataType.build("unknown") for each in operands]
    if isinstance(call, _GIVES_AN_OPERAND):
        families = {_family(kind) for kind in kinds if not kind.is_type("null")}
        return len(families) == 1 or (not isinstance(call, exp.Array) and _are_exact(operands))
    if isinstance(call, _TAKES_A_PART):
        return kinds[0].this not in _NUMBERS | exp.DataType.TEMPORAL_TYPES | {exp.DType.BOOLEAN, exp.DType.BINARY}
    first, *others = kinds
    if first.this in exp.DataType.TEMPORAL_TYPES and isinstance(call, exp.Add | exp.Sub):
        if first.is_type("date") and others[0].is_type("interval"):  # A date plus hours is a timestamp.
            return isinstance(added := operands[1].unnest(), exp.Interval) and isinstance(added.unit, exp.Var)
        return all(other.this in exp.DataType.INTEGER_TYPES or other.is_type("interval") for other in others)
    return all(kind.this in _NUMBERS for kind in kinds) and (
        not any(each.is_type("decimal") for each in operands) or _are_exact(operands)
    )


def _are_exact(operands: Sequence[exp.Expr]) -> bool:
    """Whether Spark computes with them as integers or decimals; a literal with a point is a decimal."""
    literals = [
        isinstance(each, exp.Literal) and not each.is_string and "E" not in each.name.upper() for each in operands
    ]
    exact = {*exp.DataType.INTEGER_TYPES, exp.DType.DECIMAL}
    return all(is_literal or each.is_type(*exact) for each, is_literal in zip(operands, literals, strict=True))


def _family(kind: exp.DataType) -> str:
    """What types have in common between which Spark doesn't convert, or only widens an integer."""
    families = {"integer": exp.DataType.INTEGER_TYPES, "text": exp.DataType.TEXT_TYPES, "timestamp": _INSTANTS}
    return next((name for name, kinds in families.items() if kind.this in kinds), kind.sql(Spark))


def _literal(annotator: Any, literal: exp.Literal) -> exp.Expr:  # noqa: ANN401  # as above
    found: exp.Expr = Spark.EXPRESSION_METADATA[exp.Literal]["annotator"](annotator, literal)
    if literal.is_int and abs(int(literal.name)) > _GREATEST_INT:
        annotator._set_type(literal, exp.DType.BIGINT)  # noqa: SLF001  # as above
    return found


def _extract(annotator: Any, call: exp.Extract) -> exp.Expr:  # noqa: ANN401  # as above
    is_decimal = call.name.upper() in ("S", "SEC", "SECS", "SECOND", "SECONDS")
    found: exp.Expr = annotator._set_type(call, exp.DType.UNKNOWN if is_decimal else exp.DType.INT)  # noqa: SLF001
    return found


def _joined(annotator: Any, call: exp.DPipe) -> exp.Expr:  # noqa: ANN401  # as above
    """A text if it is known that the operands are no arrays, which are joined to an array, and none is binary."""
    sides = call.this, call.expression
    is_binary = any(each.is_type("binary") for each in sides)
    is_text = any(each.is_type(*exp.DataType.TEXT_TYPES) for each in sides)
    is_text = is_text or all(each.is_type(*_NUMBERS, *exp.DataType.TEMPORAL_TYPES, "boolean") for each in sides)
    kind = exp.DType.TEXT if is_text and not is_binary else exp.DType.UNKNOWN
    found: exp.Expr = annotator._set_type(call, kind)  # noqa: SLF001  # as above
    return found


def _of_key(annotator: Any, call: exp.Bracket) -> exp.Expr:  # noqa: ANN401  # as above
    """Spark gives all values of a map one type; sqlglot, the one that the value of this key has by itself."""
    found: exp.Expr = Spark.EXPRESSION_METADATA[exp.Bracket]["annotator"](annotator, call)
    if isinstance(call.this, exp.Map | exp.VarMap) and call.this.is_type("unknown"):
        annotator._set_type(call, exp.DType.UNKNOWN)  # noqa: SLF001  # as above
    return found


def _later(annotator: Any, call: exp.TimestampAdd) -> exp.Expr:  # noqa: ANN401  # as above
    has_zone = not call.this.is_type("timestampntz")
    kind = exp.DType.TIMESTAMP if has_zone else exp.DType.TIMESTAMPNTZ
    found: exp.Expr = annotator._set_type(call, kind)  # noqa: SLF001  # as above
    return found


_INSTANTS = {exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ}
_GREATEST_INT = 2**31 - 1
_INTS = {"returns": exp.DType.INT}


class SparkSql(Spark):
    """sqlglot's dialect, corrected where it understands SQL differently from Spark."""

    class Tokenizer(Spark.Tokenizer):
        """Since Spark 4.1 ``'it''s'`` is ``it's``, and not the two strings ``it`` and ``s``."""

        STRING_ESCAPES = ["\\"] if minor_version(installed_version()) < (4, 1) else ["\\", "'", '"']

    EXPRESSION_METADATA = {  # noqa: RUF012  # the base class says that it is an instance's
        **Spark.EXPRESSION_METADATA,
        **{
            kind: _typed_as_in_spark(Spark.EXPRESSION_METADATA[kind])
            for kind in (*_GIVES_AN_OPERAND, *_COMPUTES, *_TAKES_A_PART)
        },
        exp.Literal: {"annotator": _literal},
        exp.Extract: {"annotator": _extract},
        exp.DPipe: {"annotator": _joined},
        exp.Bracket: {"annotator": _of_key},
        exp.TimestampAdd: {"annotator": _later},
        **dict.fromkeys((exp.Day, exp.WeekOfYear, exp.Year), _INTS),
        exp.Quantile: {"returns": exp.DType.DOUBLE},
        exp.DateTrunc: {"returns": exp.DType.DATE},  # whatever the type of its argument
        exp.TimestampTrunc: {"returns": exp.DType.TIMESTAMP},
        exp.Anonymous: {"annotator": lambda self, call: self._set_type(call, _TYPES.get(call.name.upper()))},
    }

    class Parser(SparkParser):
        """Keeps what is given: calls of functions, and a comma between tables, which isn't CROSS JOIN to Spark."""

        JOINS_HAVE_EQUAL_PRECEDENCE = False
        FUNCTIONS: ClassVar = {name: _kept(name, build) for name, build in SparkParser.FUNCTIONS.items()}

    class Generator(SparkGenerator):
        """Writes IS NOT NULL, which is no NOT to Spark before it optimizes, and names in the case they are given.

        sqlglot writes percentiles WITHIN GROUP as approximate ones, which older releases of Spark have instead.
        """

        TRANSFORMS: ClassVar = {k: each for k, each in SparkGenerator.TRANSFORMS.items() if k is not exp.WithinGroup}

        def identifier_sql(self, expression: exp.Identifier) -> str:
            """``expression`` as text."""
            written = expression.meta.get(WRITTEN)
            return str(super().identifier_sql(exp.to_identifier(written, quoted=True) if written else expression))

        def not_sql(self, expression: exp.Not) -> str:
            """``expression`` as text."""
            inner = expression.this
            if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
                return f"{self.sql(inner, 'this')} IS NOT NULL"
            return str(super().not_sql(expression))

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """``path`` unchanged: if it were parsed, it would be written in the form of another engine."""
        return path


DIALECT = SparkSql


def in_spark(expression: exp.Expr) -> str:
    """``expression`` as Spark SQL, with every name quoted.

    Raises:
        UnsupportedError: it can't be written without leaving out a part.
    """
    return expression.sql(DIALECT, identify=True, unsupported_level=ErrorLevel.RAISE)


def written_again(text: str) -> str:
    """``text`` as it is read here: what Spark must take for the same query, or nothing can be derived from it.

    Raises:
        UnsupportedError: as ``in_spark``.
    """
    return in_spark(sqlglot.parse_one(text, dialect=DIALECT))
