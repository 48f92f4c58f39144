"""What a frame over Spark Connect computes, as normalized text: read from the plan that its client sends to the server.

That plan is data, and not yet analyzed: it has no expression ids, types or snapshots. Places in files are left out, and
numbers that the client counts up are replaced.
"""

from __future__ import annotations

import datetime as dt
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dagster_ips.core.plan_version import PlanVersion
from dagster_ips.core.run_values import RunValues
from dagster_ips.core.sql_tokens import sql_tokens
from dagster_ips.spark.python_code import UnknownValueError, shortened, value_text
from dagster_ips.spark.session_names import NamedView, SessionNames

_KIND = "connect"
# They give the same rows, whatever a session counts by them or plans for them.
_WITHOUT_EFFECT = {"hint", "collect_metrics"}
_SAME_COLUMNS = {*_WITHOUT_EFFECT, "filter", "sort", "limit", "offset", "tail", "sample", "repartition"} | {
    "repartition_by_expression",
    "subquery_alias",
    "deduplicate",
}
_NAMING = {"project", "aggregate"}
_LEFT_OUT = {"common", "plan_id", "python_ver", "additional_includes", "resolution_id"}
# By options like these, a snapshot is read.
_OF_SNAPSHOTS = {"versionasof", "timestampasof", "snapshot-id", "as-of-timestamp"}
# Their last argument is a seed, which the client draws if it isn't given.
_SEEDED = {"rand", "randn", "randstr", "shuffle", "uniform", "uuid"}
_DRAWN = 2**31
_NUMBERED = re.compile(r"_pyspark_connect_temp_view_[0-9a-f]{32}")
_PLAIN_NAME = re.compile(r"`([A-Za-z_]\w*)`")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*")
_EPOCH = dt.date(1970, 1, 1)


def connect_plan(relation: Any, values: RunValues, names: SessionNames, given: Mapping[int, str]) -> PlanVersion:  # noqa: ANN401  # PySpark's messages have no public type
    """The version of the plan whose root is ``relation``; ``given`` are frames of the library, by plan id."""
    walk = _ConnectWalk(values, names, given)
    walk.number(relation)
    walk.relation(relation, 0)
    walk.lines += sorted(values.ranges)
    kind = f"{_KIND}-{sys.version_info[0]}.{sys.version_info[1]}" if walk.has_functions else _KIND
    return PlanVersion(kind, tuple(walk.lines), tuple(dict.fromkeys(walk.unknown)))


@dataclass
class _ConnectWalk:
    """``numbers`` are the places of relations in the plan, by plan id; ``drawn`` are names that the client made up.

    ``sides`` are as in ``_sides``. Python functions of an expression without an alias give a column its name, so there
    their ``names_count``.
    """

    values: RunValues
    names: SessionNames
    given: Mapping[int, str]
    lines: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    drawn: dict[str, str] = field(default_factory=dict)
    sides: Mapping[int, str] = field(default_factory=dict)
    has_functions: bool = False
    with_arguments: bool = True
    names_count: bool = True

    def number(self, relation: Any) -> None:  # noqa: ANN401  # a message
        """Number the relation and those below it."""
        if (number := _number_of(relation)) is not None:
            self.numbers.setdefault(number, len(self.numbers))
        if self._leaf(relation) is None:
            for _, below in _children(relation):
                self.number(below)

    def relation(self, relation: Any, depth: int, place: str = "") -> None:  # noqa: ANN401  # a message
        """Add the lines of the relation and of those below it."""
        if leaf := self._leaf(relation):
            self._add(depth, place, f"«{leaf}»")
            return
        operator = relation.WhichOneof("rel_type") or ""
        message: Any = getattr(relation, operator, None)
        if operator in _WITHOUT_EFFECT:
            self.relation(message.input, depth, place)
            return
        if operator == "with_relations" and not message.references:
            self.relation(message.root, depth, place)
            return
        below = list(_children(relation))
        outer, self.sides = self.sides, _sides(below)
        self.names_count = operator in _NAMING
        views = list[NamedView]()
        self._add(depth, place, f"{operator}({self._content(operator, message, views)})")
        self.sides = outer
        for name, child in below:
            self.relation(child, depth + 1, f"{name}: " if len(below) > 1 else "")
        for at, view in enumerate(views):
            now, self.names = self.names, view.names
            self.number(view.relation)
            self.relation(view.relation, depth + 1, f"view {at}: ")
            self.names = now
        if operator in _OPAQUE:
            self.unknown.append(_OPAQUE[operator])

    def _leaf(self, relation: Any) -> str | None:  # noqa: ANN401  # a message
        """The frame of the library that the relation is, in words; None if it is none."""
        if (number := _number_of(relation)) in self.given:
            return self.given[number]
        if relation.WhichOneof("rel_type") != "subquery_alias":
            return None
        return self.values.leaves.get(relation.subquery_alias.alias)

    def _content(self, operator: str, message: Any, views: list[NamedView]) -> str:  # noqa: ANN401, PLR0911  # as below
        """What an operator does, without the relations below it; ``views`` get those that its names stand for."""
        match operator:
            case "local_relation":
                return f"{_rows(message.data)}, {message.schema}"
            case "read" if message.WhichOneof("read_type") == "named_table":
                return self._table(message, views)
            case "sql":
                args = self._fields(message, without=("query",))
                return ", ".join(filter(None, [self._sql(message.query, views), args]))
            case "sample":
                seed = "seed" if message.seed >= _DRAWN else str(message.seed)
                return f"{self._fields(message, without=('seed', 'input'))}, seed={seed}"
            case "filter":
                return self._message(message.condition)
            case "subquery_alias":
                return self._name(message.alias)
            case "map_partitions" | "group_map" | "co_group_map":
                # They are given every column that there is.
                self.with_arguments = False
                shown = self._fields(message)
                self.with_arguments = True
                return shown
            case "unresolved_table_valued_function":
                self._functions([message.function_name])
                return self._fields(message)
            case _:
                return self._fields(message) if message is not None else ""

    def _table(self, message: Any, views: list[NamedView]) -> str:  # noqa: ANN401  # a message
        name = message.named_table.unparsed_identifier
        if (view := self.names.view(name)) is not None:
            views.append(view)
            return "view"
        if "." not in name and not self.names.is_complete:
            self.unknown.append(f"whether {name} is a temporary view that was made before the run")
        options = {key: each for key, each in message.named_table.options.items() if key.lower() not in _OF_SNAPSHOTS}
        shown = [f"{key}={self.values.in_text(each)}" for key, each in sorted(options.items())]
        return ", ".join([f"table {self.values.in_text(name)}", *shown, *["streaming"] * message.is_streaming])

    def _sql(self, text: str, views: list[NamedView]) -> str:
        """A query's tokens; temporary views stand for the frames that they were made of."""
        shown = list[str]()
        for token in sql_tokens(self.values.in_text(text)):
            view = None if token.startswith(("'", '"')) else self.names.view(token)
            if view is not None:
                if view not in views:
                    views.append(view)
                shown.append(f"«view {views.index(view)}»")
            else:
                shown.append(self._name(token))
        self._functions(shown)
        return self.values.in_sql(" ".join(shown))

    def _functions(self, tokens: list[str]) -> None:
        """Add what functions do that the session knows by the names among ``tokens``."""
        for token in dict.fromkeys(tokens):
            function = self.names.function(token)
            if function is not None:
                self._add(0, "", f"function {token.lower()}: {self._python(function)}")

    def _add(self, depth: int, place: str, text: str) -> None:
        self.lines.append(f"{' ' * depth}{place}{text}")

    def _message(self, message: Any) -> str:  # noqa: ANN401, C901, PLR0911, PLR0912  # one return for each kind
        match message.DESCRIPTOR.name:
            case "Expression":
                kind = message.WhichOneof("expr_type")
                return self._message(getattr(message, kind)) if kind else "nothing"
            case "Literal":
                return self._literal(message)
            case "UnresolvedAttribute":
                plain = not message.HasField("plan_id")
                name = _identifier(_PLAIN_NAME.sub(r"\1", self._name(message.unparsed_identifier)))
                hidden = "hidden " * message.is_metadata_column
                return f"{hidden}{name}{'' if plain else self._of_plan(message.plan_id)}"
            case "UnresolvedFunction":
                self._functions([message.function_name])
                return self._function(message)
            case "CallFunction":
                self._functions([message.function_name])
                return f"{message.function_name.lower()}({', '.join(map(self._message, message.arguments))})"
            case "Alias":
                outer, self.names_count = self.names_count, False
                of = self._message(message.expr)
                self.names_count = outer
                extra = f" {message.metadata}" if message.metadata else ""
                return f"{of} AS {', '.join(map(_identifier, message.name))}{extra}"
            case "ExpressionString":
                tokens = sql_tokens(self.values.in_text(message.expression))
                self._functions(tokens)
                return self.values.in_sql(" ".join(map(self._name, tokens)))
            case "UnresolvedNamedLambdaVariable":
                return ".".join(self._drawn(each) for each in message.name_parts)
            case "CommonInlineUserDefinedFunction":
                return self._inline(message, message.WhichOneof("function"))
            case "SubqueryExpression" | "UnresolvedStar" | "UnresolvedRegex":
                of = self._of_plan(message.plan_id) if _has(message, "plan_id") else ""
                return f"{message.DESCRIPTOR.name}({self._fields(message)}){of}"
            case "PythonUDTF" | "PythonDataSource":
                return f"{self._python(_loaded(message.command))}, {self._fields(message, without=('command',))}"
            case "ScalarScalaUDF":
                self.unknown.append("a function of Scala")
                return "scala"
            case _:
                return f"{message.DESCRIPTOR.name}({self._fields(message)})"

    def _function(self, message: Any) -> str:  # noqa: ANN401  # a message
        name, arguments = message.function_name, [self._message(each) for each in message.arguments]
        if name.lower() in _SEEDED and message.arguments:
            last = message.arguments[-1].literal
            if last.WhichOneof("literal_type") == "long" and last.long >= _DRAWN:
                arguments[-1] = "seed"
        if len(arguments) == 2 and not re.search(r"\w", name):  # noqa: PLR2004  # the two sides of an operator
            return f"({arguments[0]} {name} {arguments[1]})"
        distinct = "DISTINCT " * message.is_distinct
        return f"{name.lower()}({distinct}{', '.join(arguments)})"

    def _inline(self, message: Any, kind: str) -> str:  # noqa: ANN401  # a message
        function = getattr(message, kind)
        if kind == "python_udf":
            name = f"{message.function_name} " * self.names_count
            body = self._python(_loaded(function.command))
            said = f"{name}{function.eval_type} {body} {self._message(function.output_type)}"
        elif kind == "java_udf":
            said = self._fields(function)
        else:
            said = self._message(function)
        varying = "" if message.deterministic else "not deterministic "
        arguments = ", ".join(map(self._message, message.arguments)) if self.with_arguments else "every column"
        return f"{varying}python[{said}]({arguments})"

    def _python(self, function: object) -> str:
        self.has_functions = True
        try:
            return value_text(function, self.values.own)
        except (UnknownValueError, RecursionError) as error:
            name = getattr(function, "__name__", type(function).__name__)
            self.unknown.append(f"the Python function {name}: {error}")
            return "a function"

    def _literal(self, message: Any) -> str:  # noqa: ANN401, PLR0911  # as above
        kind = message.WhichOneof("literal_type")
        value: Any = getattr(message, kind) if kind else None
        if kind == "string" and value in self.values.texts:
            return f"«{self.values.texts[value]}»"
        for bound, meaning in self.values.others:
            if _is_literal_of(bound, kind, value):
                return f"«{meaning}»"
        match kind:
            case "string":
                return repr(self.values.in_text(value))
            case "date":
                return f"DATE {_EPOCH + dt.timedelta(days=value)}" if abs(value) < 700_000 else f"DATE {value}"  # noqa: PLR2004  # Python's calendar
            case "integer":
                return str(value)
            case "null":
                return f"NULL {self._message(value)}"
            case "array" | "map" | "struct" | "specialized_array" | "decimal" | "calendar_interval" | "time":
                return f"{kind}({self._fields(value)})"
            case _:
                return f"{value!r} {kind}"

    def _fields(self, message: Any, *, without: tuple[str, ...] = ()) -> str:  # noqa: ANN401  # a message
        """The fields of a message, except for the relations below it."""
        shown = list[str]()
        for each, value in message.ListFields():
            if each.name in _LEFT_OUT or each.name in without or value is False:
                continue
            if (text := self._field(each, value)) is not None:
                shown.append(f"{each.name}={text}")
        return ", ".join(shown)

    def _field(self, each: Any, value: Any) -> str | None:  # noqa: ANN401  # a field
        if each.enum_type is not None:
            return str(each.enum_type.values_by_number[value].name)
        if each.message_type is None:
            return ", ".join(map(self._scalar, value)) if _is_repeated(each) else self._scalar(value)
        if each.message_type.GetOptions().map_entry:
            of_map = {
                str(key): self._message(one) if hasattr(one, "DESCRIPTOR") else self._scalar(one)
                for key, one in value.items()
            }
            return f"{{{', '.join(f'{key}: {text}' for key, text in sorted(of_map.items()))}}}"
        if each.message_type.name == "Relation":
            return None
        if _is_repeated(each):
            return f"[{', '.join(self._message(one) for one in value)}]"
        return self._message(value)

    def _scalar(self, value: object) -> str:
        return _identifier(self._name(self.values.in_text(value))) if isinstance(value, str) else str(value)

    def _name(self, text: str) -> str:
        return _NUMBERED.sub(lambda found: self._drawn(found.group()), text)

    def _drawn(self, name: str) -> str:
        return self.drawn.setdefault(name, f"_{len(self.drawn)}")

    def _of_plan(self, plan: int) -> str:
        """Which frame below it a column is taken from, unless it is the only one."""
        return self.sides.get(plan, f"@{self.numbers.get(plan, 'elsewhere')}")


_OPAQUE = dict.fromkeys(("", "extension", "unknown"), "an operator that isn't Spark's own") | {
    "cached_remote_relation": "what a checkpoint was made of"
}


def _number_of(relation: Any) -> Any:  # noqa: ANN401  # a message
    """The number that the client gave a relation; None if the server made it."""
    return relation.common.plan_id if relation.common.HasField("plan_id") else None


def _children(relation: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  # a message
    """The relations directly below a relation, with the names of their fields."""
    operator = relation.WhichOneof("rel_type")
    for each, value in getattr(relation, operator).ListFields() if operator else ():
        if each.message_type is not None and each.message_type.name == "Relation":
            yield from ((each.name, one) for one in (value if _is_repeated(each) else [value]))


def _sides(below: list[tuple[str, Any]]) -> dict[int, str]:
    """For each frame that has the columns of a relation below: which side of a join that is; empty without another."""
    found = dict[int, str]()
    for name, relation in reversed(below):
        each = relation
        side = f"@{name}" if len(below) > 1 else ""
        found[_number_of(each)] = side
        while (operator := each.WhichOneof("rel_type")) in _SAME_COLUMNS:
            each = getattr(each, operator).input
            found[_number_of(each)] = side
    return found


def _is_literal_of(bound: object, kind: str, value: Any) -> bool:  # noqa: ANN401, PLR0911  # one for each type
    match bound:
        case bool():
            return False
        case int():
            return kind in ("integer", "long", "short", "byte") and value == bound
        case float():
            return kind in ("double", "float") and value == bound
        case Decimal():
            return kind == "decimal" and Decimal(value.value) == bound
        case dt.datetime() if kind in ("timestamp", "timestamp_ntz"):
            naive = bound.replace(tzinfo=dt.UTC) if bound.tzinfo is None else bound
            local = bound.astimezone() if bound.tzinfo is None else bound
            return value in {round(each.timestamp() * 1_000_000) for each in (naive, local)}
        case dt.datetime():
            return False
        case dt.date():
            return kind == "date" and value == (bound - _EPOCH).days
        case _:
            return False


def _rows(data: bytes) -> str:
    """The rows that Python gave to Spark, as text."""
    if not data:
        return "no rows"
    import pyarrow as pa  # noqa: PLC0415  # slow to import

    table = pa.ipc.open_stream(data).read_all()
    return f"{table.num_rows} rows {shortened(repr(table.to_pydict()))}"


def _identifier(name: str) -> str:
    """A name as it is, unless it could be taken for something else."""
    return name if _IDENTIFIER.fullmatch(name) else repr(name)


def _loaded(command: bytes) -> object:
    """The function that the client has pickled, with the type of what it returns."""
    made = pickle.loads(command)  # noqa: S301  # this process has just written it
    return made[0] if isinstance(made, tuple) else made


def _has(message: Any, name: str) -> bool:  # noqa: ANN401  # a message
    try:
        return bool(message.HasField(name))
    except ValueError:  # A field that is always set.
        return True


def _is_repeated(each: Any) -> bool:  # noqa: ANN401  # a field
    found = getattr(each, "is_repeated", None)  # protobuf 6.31 warns of the label.
    return bool(each.label == each.LABEL_REPEATED if found is None else found)
