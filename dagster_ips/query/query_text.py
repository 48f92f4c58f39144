"""Read a query: which tables it reads, and whether it always gives the same rows for the same rows of these tables.

Queries that can be refused by their text alone are refused here, when definitions load. Columns and types are checked
later, by ``MaintenancePlan``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import sqlglot
from sqlglot import exp

from dagster_ips.core.ranges import quoted
from dagster_ips.core.varying import OF_THE_MOMENT, SETTINGS_IN_SQL
from dagster_ips.query.deterministic_sql import AGGREGATES, BY_NAME, COLLECTED, SCALAR, SYNTAX, WINDOWED
from dagster_ips.query.query_tree import above, within
from dagster_ips.query.spark_dialect import AS_GIVEN, DIALECT

_TIME_WINDOW = re.compile(r"\b(window|session_window|window_time)\s*\(", re.IGNORECASE)
_REFERENCES = re.compile(
    r"""
    \b[rR](?:'[^']*' | "[^"]*") | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | --[^\n]* | /\*.*?\*/ |
    \{(?P<key>[^{}\s'"`]+)\}
    """,
    re.VERBOSE | re.DOTALL,
)
_SYNONYMS = {"mean": exp.Avg, "every": exp.LogicalAnd, "some": exp.LogicalOr, "std": exp.Stddev}
_CASTS = {name: name for name in ("bigint", "binary", "smallint", "tinyint")} | {"decimal": "decimal(10, 0)"}
"""Functions that cast, and what to."""
_AGGREGATES_BY_NAME = ("try_avg", "try_sum")
_TIMES = ("date", "timestamp", "timestampltz", "timestampntz", "timestamptz", "datetime")


class RefusedQueryError(ValueError):
    """The query can't be a table's definition; the text says why."""


@dataclass(frozen=True, slots=True)
class NameSpan:
    """Where a table's name is in the text (both ends inclusive), which source it is, and the alias it needs there.

    ``source`` is None in the name of a column that is qualified by several parts of its table's name: the span is what
    precedes the last part, and is removed. ``alias`` is None if the text has one.
    """

    start: int
    end: int
    source: int | None
    alias: str | None = None


@dataclass(frozen=True, eq=False)
class Query:
    """A query that is known to be deterministic.

    ``sources`` are the tables that it reads, each once, as the parts of their names; ``{a/b}`` is the asset key a/b.
    In its syntax tree ``tree``, a table has the name ``named(its number in sources)``, common table expressions are
    inlined where they are used, and a final ORDER BY without LIMIT is removed. Of ``SELECT * FROM (query)``, only the
    query is left. ``notes`` say which parts of the result depend on the order of rows.
    """

    text: str
    sources: tuple[tuple[str, ...], ...]
    spans: tuple[NameSpan, ...]
    tree: exp.Query
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """The text without comments, line breaks and spaces: it differs if the query may differ."""
        found = sqlglot.tokenize(self.text, read=DIALECT)
        return " ".join(f"{token.token_type.name} {token.text!r}" for token in found)

    @property
    def grouped_by(self) -> tuple[str, ...]:
        """The columns of the result that the outermost GROUP BY names; empty if it names something else, too.

        As several subtotals, or a column of another table, may have the same values, these may repeat.

        Example:
            >>> read("SELECT p.day AS d, lower(a) AS b, count(*) AS n FROM plays AS p GROUP BY day, 2").grouped_by
            ('d', 'b')
            >>> read("SELECT day, count(*) AS n FROM plays GROUP BY day, account").grouped_by
            ()
        """
        group = self.tree.args.get("group") if isinstance(self.tree, exp.Select) else None
        columns = [_column_grouped_by(each, self.tree.selects) for each in group.expressions] if group else []
        return () if None in columns else tuple(name for name in columns if name)

    @cached_property
    def compared_columns(self) -> frozenset[str]:
        """The names of the columns that it compares with others for equality, of whichever table, in lower case.

        Example:
            >>> text = "SELECT a FROM t JOIN u ON t.K = u.i JOIN v USING (w) WHERE (b, c) IN (SELECT d, e FROM x)"
            >>> sorted(read(text).compared_columns)
            ['b', 'c', 'd', 'e', 'i', 'k', 'w']
        """
        names = [each.name for join in self.tree.find_all(exp.Join) for each in join.args.get("using") or ()]
        for each in self.tree.find_all(exp.EQ, exp.NullSafeEQ):
            if isinstance(each.left, exp.Column) and isinstance(each.right, exp.Column):
                names += [each.left.name, each.right.name]
        for found in self.tree.find_all(exp.In):
            if query := found.args.get("query"):
                columns = found.this.expressions if isinstance(found.this, exp.Tuple) else [found.this]
                names += [*(each.name for each in columns), *query.unnest().named_selects]
        return frozenset(name.lower() for name in names)

    def over(self, names: Mapping[int, str]) -> str:
        """The text as it was given, but over other tables: ``names`` has the name for each source."""
        text, at = [], 0
        for span in self.spans:
            text += [self.text[at : span.start], "" if span.source is None else names[span.source]]
            text += [f" AS {quoted(span.alias)}"] if span.alias else []
            at = span.end + 1
        return "".join([*text, self.text[at:]])


def _column_grouped_by(expression: exp.Expr, columns: Sequence[exp.Expr]) -> str | None:
    """The name of the column that an expression in GROUP BY stands for; None if there is none."""
    for place, column in enumerate(columns, start=1):
        value = column.unalias()
        is_named = isinstance(expression, exp.Column) and expression.name.lower() in (
            column.alias_or_name.lower(),
            value.name.lower() if isinstance(value, exp.Column) else None,
        )
        if is_named or value == expression or expression == exp.Literal.number(place):
            return column.alias_or_name or None
    return None


def named(source: int) -> str:
    """The name of a source in trees."""
    return f"ips_source_{source}"


def read(text: str) -> Query:
    """The query in ``text``, which is Spark SQL.

    Raises:
        RefusedQueryError: it isn't a single query that reads tables, or it may give different rows for the same rows
            of its tables.

    Example:
        >>> read("SELECT day, count(*) AS n FROM {media/plays} JOIN title USING (id) GROUP BY day").sources
        (('media', 'plays'), ('title',))
    """
    try:
        return _read(text)
    except RecursionError:
        message = "it is nested too deeply, or has too many conditions or sides in a row, to be read"
        raise RefusedQueryError(message) from None


def _read(text: str) -> Query:
    if setting := SETTINGS_IN_SQL.search(text):
        message = f"Spark replaces {setting[0]} by one of its settings, which may differ between runs: write the value"
        raise RefusedQueryError(message)
    text = _REFERENCES.sub(lambda found: f"`{{{found['key']}}}`" if found["key"] else found[0], text)
    text, tree = _parsed(text)
    for call in list(tree.find_all(exp.Anonymous, exp.Any)):
        _use_one_name(call)
    for hint in list(tree.find_all(exp.Hint)):
        hint.pop()
    for select in tree.find_all(exp.Select):
        _define_windows(select)
    _require_known(tree)
    notes = tuple(dict.fromkeys(_notes(tree)))
    sources: dict[tuple[str, ...], int] = {}
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    spans: list[NameSpan] = []
    unaliased: set[tuple[str, ...]] = set()
    _require_no_asset_key_before_a_column(tree)
    for table in list(_tables(tree, frozenset())):
        parts = _key(table)
        as_spelled_first = known.setdefault(_regardless_of_case(table, parts), parts)
        source = sources.setdefault(as_spelled_first, len(sources))
        places = [part.meta for part in table.parts]
        alias = None if table.alias else parts[-1]
        if alias is not None and len(table.parts) > 1:
            unaliased.add(tuple(part.name.lower() for part in table.parts))
        spans.append(NameSpan(places[0]["start"], places[-1]["end"], source, alias))
        given = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(parts[-1], quoted=True))
        joined = table.args.get("joins")
        table.replace(_source(named(source), given, joined))
    if not sources:
        message = "it reads no table"
        raise RefusedQueryError(message)
    spans += _without_qualifiers(tree, unaliased)
    _inline(tree, {})
    return Query(text, tuple(sources), tuple(sorted(spans, key=lambda each: each.start)), _unwrapped(tree), notes)


def _parsed(text: str) -> tuple[str, exp.Query]:
    """``text`` without semicolons at its end, and what it says."""
    try:
        text = _without_semicolon(text.strip())
        statements = sqlglot.parse(text, dialect=DIALECT)
    except sqlglot.errors.SqlglotError as error:
        windowed = _TIME_WINDOW.search(text)
        message = _instead_of(windowed[1]) if windowed else f"it can't be parsed: {_where_it_fails(error)}"
        raise RefusedQueryError(message) from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # sqlglot takes it for granted that calls have all of their arguments.
        message = f"it can't be parsed: a function may lack an argument ({type(error).__name__}: {error})"
        raise RefusedQueryError(message) from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        message = "it isn't a single SELECT"
        raise RefusedQueryError(message)
    return text, statements[0]


def _use_one_name(call: exp.Expr) -> None:
    """Replace a function by the one that it is another name of, or by an aggregate if it is one."""
    if isinstance(call, exp.Any):
        if isinstance(call.this, exp.Paren) and not isinstance(call.parent, exp.Like | exp.ILike):
            call.replace(exp.LogicalOr(this=call.this.this))
        return
    name, arguments = call.name.lower(), call.expressions
    if len(arguments) != 1:
        return
    if kind := _SYNONYMS.get(name):
        call.replace(kind(this=arguments[0]))
    elif name in _AGGREGATES_BY_NAME:
        call.replace(exp.AnonymousAggFunc(this=name, expressions=arguments))
    elif name in _CASTS:
        call.replace(exp.Cast(this=arguments[0], to=exp.DataType.build(_CASTS[name], dialect=DIALECT)))


def _without_semicolon(text: str) -> str:
    """The text without the semicolons at its end, and without comments that follow them."""
    end = None
    for token in reversed(sqlglot.tokenize(text, read=DIALECT)):
        if token.token_type is not sqlglot.TokenType.SEMICOLON:
            break
        end = token.start
    return text[:end].rstrip()


def _define_windows(select: exp.Select) -> None:
    """Write the definition of a window, from the clause WINDOW, wherever its name is used."""
    named = {each.name.lower(): each for each in select.args.get("windows") or []}
    select.set("windows", None)
    for window in within(select, exp.Window):
        if found := named.get(window.alias.lower()):
            definition = found.copy()
            window.set("alias", None)
            for part in ("partition_by", "order", "spec"):
                window.set(part, definition.args.get(part))


def _without_qualifiers(tree: exp.Query, tables: Collection[tuple[str, ...]]) -> Iterator[NameSpan]:
    """Qualify columns only by the last part of their table's name, its alias, and yield where the other parts were."""
    for column in list(tree.find_all(exp.Column)):
        parts = column.parts
        for length in range(len(parts) - 1, 1, -1):
            prefix = tuple(part.name.lower() for part in parts[:length])
            meant = {table for table in tables if table[-length:] == prefix}
            if not meant:
                continue
            if len({table for table in tables if table[-1] == prefix[-1]}) > 1:
                message = f"{column.sql(DIALECT)}: several of its tables are called {prefix[-1]}; give each an alias"
                raise RefusedQueryError(message)
            left = parts[length - 1 :]
            yield NameSpan(parts[0].meta["start"], left[0].meta["start"] - 1, None)
            names = dict(zip(("this", "table", "db", "catalog"), reversed(left), strict=False))
            column.replace(exp.Column(**{kind: part.copy() for kind, part in names.items()}))
            break


def _require_no_asset_key_before_a_column(tree: exp.Query) -> None:
    """Refuse ``{media/plays}.day``: the table is called ``plays``, as no table has a slash in its name."""
    aliases = {each.this.name for each in tree.find_all(exp.TableAlias) if each.this}
    keys = {each.name: _key(each)[-1] for each in tree.find_all(exp.Table) if _is_asset_key(each)}
    for column in tree.find_all(exp.Column):
        first = column.parts[0].name
        if len(column.parts) > 1 and first in keys.keys() - aliases:
            message = (
                f"{_shown(column)}: before a column, write {quoted(keys[first])} or an alias instead of an asset key"
            )
            raise RefusedQueryError(message)


def _key(table: exp.Table) -> tuple[str, ...]:
    parts = tuple(part.name for part in table.parts)
    return tuple(parts[0][1:-1].split("/")) if _is_asset_key(table) else parts


def _is_asset_key(table: exp.Table) -> bool:
    return len(table.parts) == 1 and table.name.startswith("{")


def _regardless_of_case(table: exp.Table, parts: tuple[str, ...]) -> tuple[str, ...]:
    """The form in which all names of one source are equal: case matters in an asset key, but not in SQL."""
    return parts if _is_asset_key(table) else tuple(part.lower() for part in parts)


def _tables(node: exp.Expr, hidden: frozenset[str]) -> Iterator[exp.Table]:
    """The tables that aren't common table expressions; ``hidden`` has the names of these expressions."""
    with_ = node.args.get("with_")
    if with_ is not None:
        for each in with_.expressions:
            yield from _tables(each.this, hidden)
            hidden |= {each.alias.lower()}
    if isinstance(node, exp.Table) and not is_function(node) and (node.db or node.name.lower() not in hidden):
        yield node
    for child in node.iter_expressions():
        if child is not with_:
            yield from _tables(child, hidden)


def is_function(table: exp.Table) -> bool:
    """Whether it is a call of a table function, such as ``range(10)``; a name of four parts and more isn't one."""
    return not all(isinstance(part, exp.Identifier) for part in table.parts)


def _inline(query: exp.Expr, known: Mapping[str, exp.Expr]) -> None:
    """Put a derived table wherever ``query`` names a common table expression."""
    with_ = query.args.get("with_")
    if with_ is not None:
        known = dict(known)
        for each in with_.expressions:
            _inline(each.this, known)
            known[each.alias.lower()] = _named(each)
        with_.pop()
    for child in list(query.iter_expressions()):
        if isinstance(child, exp.Table) and not child.db and child.name.lower() in known:
            alias = exp.TableAlias(this=exp.to_identifier(child.alias_or_name, quoted=True))
            columns = child.args["alias"].args.get("columns") if child.args.get("alias") else None
            alias.set("columns", columns)
            inlined = exp.Subquery(this=known[child.name.lower()].copy(), alias=alias, joins=child.args.get("joins"))
            child.replace(inlined)
            for join in inlined.args["joins"] or []:
                _inline(join, known)
        else:
            _inline(child, known)


def _source(name: str, alias: exp.TableAlias, joins: list[exp.Join] | None) -> exp.Expr:
    """The table ``name``; as a derived table if the alias renames its columns."""
    table = exp.Table(this=exp.to_identifier(name), alias=alias, joins=joins)
    if not alias.args.get("columns"):
        return table
    table.set("alias", exp.TableAlias(this=alias.this.copy()))
    table.set("joins", None)
    every = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))
    return exp.Subquery(this=every, alias=alias, joins=joins)


def _named(expression: exp.CTE) -> exp.Query:
    """The body of ``WITH name (columns) AS (body)``, with its columns renamed to ``columns``."""
    body: exp.Query = expression.this
    columns = expression.args["alias"].args.get("columns")
    if not columns:
        return body
    alias = exp.TableAlias(this=exp.to_identifier("ips_named"), columns=[column.copy() for column in columns])
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=body, alias=alias)))


def _unwrapped(tree: exp.Query) -> exp.Query:
    """``tree`` without its ORDER BY; of ``SELECT * FROM (query)``, in which many dbt models end, only the query."""
    _drop_order(tree)
    wrapped = tree.args["from_"].this if _selects_everything(tree) else None
    if not isinstance(wrapped, exp.Subquery) or _given(wrapped) - {"this", "alias"} or wrapped.alias_column_names:
        return tree
    query = wrapped.this
    if not isinstance(query, exp.Select | exp.SetOperation) or _given(query) & {"limit", "offset"}:
        return tree
    return _unwrapped(query.pop())


def _selects_everything(tree: exp.Query) -> bool:
    """Whether it is only ``SELECT * FROM`` something."""
    is_plain = isinstance(tree, exp.Select) and _given(tree) == {"expressions", "from_"}
    return is_plain and len(tree.selects) == 1 and isinstance(tree.selects[0], exp.Star) and not _given(tree.selects[0])


def _given(node: exp.Expr) -> set[str]:
    return {name for name, value in node.args.items() if value}


def _drop_order(tree: exp.Query) -> None:
    if not tree.args.get("limit") and not tree.args.get("offset"):
        for part in ("order", "sort", "cluster", "distribute"):
            tree.set(part, None)


def _require_known(tree: exp.Expr) -> None:
    for node in tree.walk():
        if problem := _problem(node):
            raise RefusedQueryError(problem)


def _problem(node: exp.Expr) -> str | None:  # noqa: PLR0911  # one return per kind of refusal
    match node:
        case exp.With() if node.args.get("recursive"):
            return "recursive queries aren't supported"
        case exp.Qualify():
            return "Spark has no QUALIFY: select the window function's value in a subquery, and filter by it outside"
        case exp.Table():
            return _problem_of_table(node)
        case exp.Limit() | exp.Offset() | exp.Fetch():
            return _problem_of_limit(node)
        case exp.Join() if node.args.get("on") and node.args["on"].find(exp.Query):
            return f"{_shown(node)}: subqueries in ON aren't supported"
        case exp.Cast() if _is_of_the_moment(node):
            return f"{_shown(node)} depends on the day of the run"
        case exp.Column() if not node.table and node.name.lower() == "current_time":
            return f"{_shown(node)} is the time of the run, unless a table is named before it"
        case exp.Any() | exp.All() if isinstance(node.parent, exp.Like | exp.ILike):
            return None
        case exp.Anonymous():
            return None if AS_GIVEN in node.meta else _problem_of_name(node.name)
        case _:
            return _problem_of_form(node) or _problem_of_relation(node) or _problem_of_kind(node)


def _problem_of_name(function: str) -> str | None:
    if _TIME_WINDOW.match(f"{function}("):
        return _instead_of(function)
    known = function.lower() in BY_NAME
    return None if known else f"the function {function} isn't known to give the same value each time"


def _instead_of(window: str) -> str:
    """Why a ``window`` of time isn't supported, and what is."""
    if window.lower() == "session_window":
        return f"{window}() puts rows together by how near they are to each other, so any row may change all groups"
    return (
        f"{window}() isn't supported: Spark makes rows and groups of it that the query doesn't show. Group by "
        "date_trunc('HOUR', ts), or by timestamp_seconds(unix_seconds(ts) DIV 900 * 900) for 15 minutes"
    )


def _problem_of_form(node: exp.Expr) -> str | None:
    match node:
        case exp.TableAlias() if not node.this and isinstance(node.parent, exp.Table | exp.Subquery):
            columns = ", ".join(each.name for each in node.columns)
            return f"AS ({columns}) in it names columns, but lacks a name for the relation before them"
        case exp.Select() if not node.expressions:
            return "a SELECT in it names no columns"
        case exp.ArgMax() | exp.ArgMin() if node.expression is None:
            return f"{_shown(node)} lacks an argument"
        case exp.Any() | exp.All():
            return f"{_shown(node)}: Spark compares so only with LIKE; use IN, min or max"
        case exp.Pivot():
            return f"{_shown(node)} isn't supported"
    return None


def _problem_of_relation(node: exp.Expr) -> str | None:
    """Why a table isn't found where one is read: sqlglot takes ``TABLE x`` for a column with an alias."""
    match node:
        case exp.From() if isinstance(node.this, exp.TableAlias):
            return f"|> AS {_shown(node.this)} isn't supported: name the table where it is read, FROM x AS y"
        case exp.SetOperation(args={"this": left, "expression": right}):
            is_found = isinstance(left.unnest(), exp.Query) and isinstance(right.unnest(), exp.Query)
        case exp.Paren():
            is_found = not isinstance(node.this, exp.Alias)
        case _:
            return None
    return None if is_found else f"{_shown(node)}: write SELECT * FROM x instead of TABLE x"  # noqa: S608  # no SQL


def _problem_of_kind(node: exp.Expr) -> str | None:
    name = type(node).__name__
    if name in SYNTAX or name in SCALAR or name in AGGREGATES:
        return None
    if name in COLLECTED and _is_without_order(node):
        return None
    if isinstance(node, exp.GroupConcat) and _is_ordered_by_itself(node):
        return None
    if name not in WINDOWED:
        shown = _shown(node)
        if isinstance(node, exp.Func) and "(" not in shown:  # sqlglot writes some calls without their names
            shown = f"{node.sql_name().lower()}({shown})"
        return f"{shown} may give different results for the same rows"
    window = _window(node)
    if window is None:
        return f"{_shown(node)} takes whichever row comes first, which may differ between runs: use min or max instead"
    return None if window.args.get("order") else f"{_shown(node)} depends on an order, but its OVER has no ORDER BY"


def _is_without_order(collected: exp.Expr) -> bool:
    """Whether the order of the array doesn't matter, because the array is sorted at once, counted or searched."""
    array = collected.parent if isinstance(collected.parent, exp.Filter) else collected
    match array.parent:
        case exp.ArraySize() | exp.ArrayMax() | exp.ArrayMin():
            return True
        case exp.ArrayContains() as search:
            return search.this is array
        case exp.Anonymous() as call:
            return call.name.lower() in ("array_size", "cardinality")
        case exp.ArraySort() as sort:
            return sort.this is array and not sort.expression
    return False


def _is_ordered_by_itself(joined: exp.GroupConcat) -> bool:
    """Whether texts are joined in their own order: those that tie are equal."""
    order = joined.this
    if not isinstance(order, exp.Order) or joined.args.get("separator") is None:
        return False  # Without a separator, it isn't written back as it was given.
    values = order.this.expressions if isinstance(order.this, exp.Distinct) else [order.this]
    return isinstance(values[0], exp.Column) and order.expressions[0].this == values[0]


def _is_of_the_moment(cast: exp.Cast) -> bool:
    return cast.is_type(*_TIMES) and is_of_the_moment(cast.this)


def is_of_the_moment(text: exp.Expr) -> bool:
    """Whether it is a string, such as ``today`` or ``now UTC``, that as a time means another one on another day."""
    is_string = isinstance(text, exp.Literal) and text.is_string
    return is_string and next(iter(text.name.lower().split()), "") in OF_THE_MOMENT


_OF_TABLE = ("this", "db", "catalog", "alias", "joins", "pivots")


def _problem_of_table(table: exp.Table) -> str | None:
    more = sorted(key for key, value in table.args.items() if value and key not in _OF_TABLE)
    if more == ["sample"]:
        return f"{_shown(table)}: SAMPLE takes other rows each time"
    return f"{_shown(table)}: {more[0].rstrip('s').upper()} isn't supported" if more else None


def _problem_of_limit(node: exp.Expr) -> str | None:
    query = node.parent
    if isinstance(node, exp.Limit) and node.expression.name.upper() == "ALL":
        return None
    if isinstance(node, exp.Limit) and isinstance(query, exp.Query) and isinstance(query.parent, exp.Exists):
        return None  # Whichever rows it takes, there is one or there is none.
    order = query.args.get("order") if isinstance(query, exp.Query) else None
    by = [each.this for each in order.expressions] if order else []
    if isinstance(query, exp.Select) and by and _orders_all(query, by):
        return None
    if isinstance(query, exp.SetOperation) and by and _orders_all_of_sides(query, by):
        return None
    return "LIMIT without an ORDER BY of every column of the result: it takes arbitrary rows"


def _orders_all(select: exp.Select, by: Sequence[exp.Expr]) -> bool:
    """Whether ``by`` has each column of the result: by its name or its place, or as it is computed.

    A name that isn't qualified is one of the result, if that has it, and a qualified one is never an alias. With joins,
    it may be another column than the one of that name in the result. By anything but the table's name, it may be a
    field of a struct.
    """
    from_, joins = select.args.get("from_"), select.args.get("joins")
    table = from_.this.alias_or_name.lower() if from_ and not joins else None
    columns = [(each.table.lower(), each.name.lower()) for each in by if isinstance(each, exp.Column)]
    places = {each.name for each in by if isinstance(each, exp.Literal) and not each.is_string}
    aliases = {each.alias.lower() for each in select.expressions if each.alias}

    def is_ordered(place: int, selected: exp.Expr) -> bool:
        value = selected.unalias()
        if ("", selected.alias_or_name.lower()) in columns or str(place) in places:
            return True
        if not isinstance(value, exp.Column):
            return value in by
        given, name = value.table.lower(), value.name.lower()
        is_of_table = given in ("", table) and (table, name) in columns
        return is_of_table or (value in by and (given != "" or name not in aliases))

    return not any(each.is_star for each in select.expressions) and all(
        is_ordered(place, each) for place, each in enumerate(select.expressions, start=1)
    )


def _orders_all_of_sides(query: exp.SetOperation, by: Sequence[exp.Expr]) -> bool:
    """Whether ``by`` has the name of each column of a set operation, which are those of its first side."""
    names = {each.name.lower() for each in by if isinstance(each, exp.Column) and not each.table}
    return not query.is_star and {each.lower() for each in query.named_selects} <= names


def _window(node: exp.Expr) -> exp.Window | None:
    found = above(node, exp.IgnoreNulls, exp.RespectNulls)
    return found if isinstance(found, exp.Window) else None


def _notes(tree: exp.Expr) -> Iterator[str]:
    for window in tree.find_all(exp.Window):
        if depends_on_ties(window):
            yield f"{_shown(window)}: rows that tie in its ORDER BY come in any order"
    for call in tree.find_all(exp.ArgMax, exp.ArgMin):
        yield f"{_shown(call)}: it takes any of the rows that tie in {_shown(call.expression)}"


def depends_on_ties(window: exp.Window) -> bool:
    """Whether the window's values depend on the order of rows that tie in its ORDER BY."""
    spec = window.args.get("spec")
    by_rows = spec is not None and str(spec.args.get("kind") or "").upper() == "ROWS"
    return by_rows or type(window.this.unnest()).__name__ in ("RowNumber", "Lag", "Lead", "Ntile", *_FIRST)


_FIRST = ("FirstValue", "LastValue", "NthValue", "First", "Last", "AnyValue", "IgnoreNulls")


def _shown(node: exp.Expr) -> str:
    text = node.sql(DIALECT)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 80


def _where_it_fails(error: sqlglot.errors.SqlglotError) -> str:
    """What the parser found and where, with the text around it."""
    if not isinstance(error, sqlglot.errors.ParseError) or not error.errors:
        return re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()[0].rstrip(".")
    found = error.errors[0]
    what = re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", str(found["description"]))
    near = f"{str(found['start_context'])[-30:]}{found['highlight']}{str(found['end_context'])[:30]}"
    return f"{what} at line {found['line']}, column {found['col']}, near {' '.join(near.split())!r}"
