"""A query that is rewritten for the changed rows means what the given one means to Spark."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from pyspark.errors import AnalysisException, PySparkException
from sqlglot import exp

from dagster_ips.query.maintenance_plan import MaintenancePlan, QueryColumn
from dagster_ips.query.query_text import read
from dagster_ips.query.query_tree import kind_of, may_fail
from dagster_ips.query.spark_dialect import DIALECT
from dagster_ips.spark.plans import are_alike
from tests.support.lake import Lake

COLUMNS = [QueryColumn("one", "int"), QueryColumn("word", "string"), QueryColumn("day", "date")]
EXPRESSIONS = r"""
'it''s'
"q""q"
'a'''
'a' 'b'
"it''s"
'say "" x'
'it\'s'
'a\\b'
'a\db'
r'a\d'
'a\%b'
'a%b' LIKE 'a\%b'
'a\nb'
'\u00dc\101'
'ÜÖ€😀'
'a--b/*c*/'
word = 'it''s'
word IN ('it''s', "x")
concat_ws('''', word, 'b')
get_json_object('{"a":{"b":1}}', '$.a.b')
get_json_object('{"a":1}', 'a')
get_json_object('{"a b":1}', '$[\'a b\']')
get_json_object('{"a:b":1, "a":{"b":2}}', '$.a:b')
get_json_object('{"a":[1, 2]}', '$.a[*]')
get_json_object('{"a":[{"b":1}]}', '$.a[0].b')
get_json_object('{"a":1}', '$.*')
get_json_object('{"0":1}', '$.0')
try_cast('x' AS int)
cast('12' AS int)
1.50
15e-1
1.5BD
1.5F
7 div 2
-7 % 3
pmod(-7, 3)
1 / 3
2 ^ 3
1 << 3
'a' || 1
NOT true AND false
one <=> null
word RLIKE '^i\\w'
word REGEXP r'^i\w'
word ILIKE 'I%'
word LIKE 'it/_s' ESCAPE '/'
word LIKE ANY ('x%', 'i%')
word ILIKE ALL ('i%', '%S')
'x' NOT IN ('abc', null)
decode(null, null, 'a', 'z')
day + INTERVAL 1 MONTH
day - 1
TIMESTAMP'2020-01-31 10:00:00' - INTERVAL '2:30' HOUR TO MINUTE
TIMESTAMP'2020-01-31 10:00:00' - TIMESTAMP'2020-01-01 10:00:00'
TIMESTAMP'2020-01-31 10:00:00 Europe/Berlin'
TIMESTAMP_NTZ'2020-01-31 10:00:00'
date_add('2020-01-31', 1)
datediff(MONTH, DATE'2020-01-31', DATE'2020-03-31')
timestampdiff(MONTH, TIMESTAMP'2020-01-31 10:00:00', TIMESTAMP'2020-03-30 09:00:00')
date_trunc('WEEK', TIMESTAMP'2020-01-31 10:00:00')
date_trunc('week', day)
trunc('2020-01-31', 'YEAR')
to_date('01/02/2020', 'dd/MM/yyyy')
to_timestamp('2020-02-01T10:00:00.123', "yyyy-MM-dd'T'HH:mm:ss.SSS")
date_format(day, 'EEEE, MMMM d')
date_format(TIMESTAMP'2020-02-01 13:05:06', "yyyy'Q'q hh:mm a")
from_unixtime(0, 'yyyy-MM-dd')
unix_timestamp('2020-02-01', 'yyyy-MM-dd')
weekofyear(day)
weekday(day)
dayofweek(day)
extract(DOW FROM day)
extract(YEAROFWEEK FROM day)
extract(SECOND FROM TIMESTAMP'2020-02-01 00:00:01.5')
from_utc_timestamp(TIMESTAMP'2020-07-01 00:00:00', 'Europe/Berlin')
to_utc_timestamp('2020-07-01', 'CET')
convert_timezone('UTC', 'CET', TIMESTAMP_NTZ'2020-02-01 00:00:00')
timestamp_seconds(1)
make_dt_interval(1, 2)
round(2.567, 2)
bround(2.5)
ceil(1.234, 1)
log(2, 8)
hex(17)
conv('100', 2, 10)
bin(5)
substring(word, -2, 2)
locate('s', word, 2)
position('s' IN word)
split('a1b2', '[0-9]', 2)
split_part('a.b.c', '.', -1)
rtrim('x', 'xaxx')
trim(LEADING 'x' FROM 'xax')
btrim('xax', 'x')
lpad('a', 3)
regexp_replace('ab', '(a)(b)', '$2$1')
regexp_extract('100-200', '(\\d+)-(\\d+)', 2)
base64('a')
unbase64('YQ==')
format_string('%d-%s', 1, 'a')
octet_length(word)
hash(one, word)
xxhash64(one, word)
to_number('12.5', '99.9')
array(1, 2)[one]
element_at(array(1, 2), one)
get(array(1, 2), 5)
named_struct('a', 1, 'b', 'x').b
struct(one AS q, word)
struct(one, one + 1)
cast(named_struct('a', 1) AS struct<a: string>)
to_json(named_struct('a', one))
to_json(struct(one AS oneAndOnly, Word))
to_json(cast(named_struct('a', 1) AS struct<Aa: int>))
to_json(transform(array(1), x -> struct(x AS xOfOne)))
to_json((One, Word))
typeof(struct(One))
str_to_map('Ab=1', ',', '=').Ab
from_json('{"Ab":1}', 'map<string, int>').Ab
from_json('{"a":1}', 'a INT').a
aggregate(array(1, 2), one, (a, x) -> a + x, a -> a * 10)
zip_with(array(1), array(2), (x, y) -> x + y + one)
transform(array(1, 2), (x, i) -> x + i)
forall(array(1, 2), x -> x > one)
array_sort(array(3, 1), (a, b) -> b - a)
sort_array(array(3, 1, null), false)
array_union(array(1), array(2))
arrays_zip(array(1), array(2))
sequence(1, 5, 2)
slice(array(1, 2, 3), -2, 2)
map_filter(map('a', 1), (k, v) -> v > 1)
map_contains_key(map('a', 1), 'a')
map_concat(map('a', 1), map('b', 2))
str_to_map('a=1;b=2', ';', '=')
try_add(one, 1)
negative(one)
json_object_keys('{"a":1}')
elt(1, 'a', 'b')
to_char(12.5, '99.9')
log10(1000)
floor(log10(one * 1000))
date_trunc(word, TIMESTAMP'2020-01-31 10:00:00')
date_trunc(CASE WHEN one = 1 THEN 'MONTH' END, day)
trunc(day, upper('year'))
to_date('2020-01-02', 'yyyy-MM-dd')
date_sub(day, one + 1)
dateadd(MONTH, one, day)
date_diff(WEEK, day, DATE'2020-03-31')
array_size(array(one))
unix_date(day)
regexp_like(word, 'i') = false
named_struct('A', one)
named_struct(concat('a', 'b'), one)
overlay('abc' PLACING 'x' FROM 2 FOR 2)
x'1F'
""".strip().splitlines()
AGGREGATES = r"""
count(DISTINCT one, word)
count_if(one > 0)
sum(one) FILTER (WHERE word = 'it''s')
std(one)
every(one > 0)
percentile(one, 0.5)
approx_count_distinct(one, 0.1)
max(named_struct('a', one)).a
sort_array(collect_set(word))
percentile_cont(0.25) WITHIN GROUP (ORDER BY one DESC)
percentile_disc(0.25) WITHIN GROUP (ORDER BY one) FILTER (WHERE word IS NOT NULL)
max_by(word, one)
min_by(one, word) FILTER (WHERE one > 0)
sort_array(collect_list(word), false)
array_sort(collect_set(one))
size(collect_set(word))
sort_array(collect_list(one) FILTER (WHERE word = 'it''s'))
regr_slope(one, one)
array_size(collect_set(word))
array_max(collect_list(one))
array_contains(collect_set(word) FILTER (WHERE one = 1), 'x')
any(one > 1)
try_sum(one)
try_avg(one) FILTER (WHERE word = 'it''s')
""".strip().splitlines()


# In these, a name may be an alias or a column, a column of one table or another, of this query or the one around it.
SOURCES = {
    "t": "(1, 2, 3, 'a'), (1, 3, 2, 'b'), (2, null, 1, 'a'), (null, 1, 1, null), (5, 2, 3, 'c') AS t(a, b, c, s)",
    "u": "(1, 5, 'a'), (3, 6, 'b'), (null, 7, 'a'), (1, 5, 'a'), (6, 2, null) AS u(a, d, s)",
    "v": "(1, 9), (2, 8), (3, 4), (null, 1), (7, 2) AS v(a, x)",
}
NAMES = r"""
SELECT a, sum(b) AS b FROM t GROUP BY a HAVING b > 1
SELECT a, max(b) AS c, c + 1 AS e FROM t GROUP BY a, c
SELECT a + 1 AS b, b + 1 AS x FROM t
SELECT a AS x, x + 1 AS y, y + 1 AS z FROM t
SELECT coalesce(a, 0) AS a, count(*) AS n FROM t GROUP BY a
SELECT a + 1 AS k, count(*) AS n FROM t GROUP BY k
SELECT 1 AS k, a, count(*) AS n FROM t GROUP BY 1, 2
SELECT a, 1 AS k, count(*) AS n FROM t GROUP BY k, a
SELECT 1 AS x FROM t HAVING 1 = 1
SELECT * FROM t JOIN u USING (a, s)
SELECT s, b, d FROM t RIGHT JOIN u USING (s)
SELECT a, d FROM t LEFT JOIN u USING (a)
SELECT a, d FROM t RIGHT JOIN u USING (a)
SELECT t.a, u.a AS ua, a AS x FROM t RIGHT JOIN u USING (a)
SELECT a, x FROM t RIGHT JOIN u USING (a) JOIN v USING (a)
SELECT a, x FROM t JOIN u USING (a) LEFT JOIN v USING (a)
SELECT a, x FROM t LEFT JOIN u USING (a) LEFT JOIN v USING (a)
SELECT a, x FROM t LEFT JOIN u USING (a) JOIN v USING (a)
SELECT a, x FROM t FULL JOIN u USING (a) LEFT JOIN v USING (a)
SELECT a FROM t LEFT SEMI JOIN u USING (a)
SELECT a FROM t LEFT ANTI JOIN u USING (a)
SELECT b FROM t WHERE EXISTS (SELECT 1 FROM u WHERE a = 1 AND c = 3)
SELECT b FROM t WHERE b IN (SELECT a FROM u WHERE d > c)
SELECT s, (SELECT max(d) FROM u WHERE a = b) AS m FROM t
FROM t |> WHERE a > 0 |> AGGREGATE sum(b) AS n GROUP BY a
SELECT a FROM t EXCEPT SELECT a FROM u UNION ALL SELECT a FROM v
SELECT a FROM t UNION ALL SELECT a FROM u INTERSECT SELECT a FROM v
SELECT a = b IS NULL AS k FROM t
SELECT a, rank() OVER w AS r FROM t WINDOW w AS (PARTITION BY s ORDER BY b)
SELECT a FROM t WHERE NOT a = 1 IS NULL
WITH q AS (SELECT a, b AS d FROM t) SELECT q.a, u.d FROM q JOIN u USING (a, d)
WITH t AS (SELECT a + 1 AS a FROM t) SELECT a FROM t
""".strip().splitlines()


@pytest.mark.parametrize("expressions", [EXPRESSIONS, AGGREGATES], ids=["values", "aggregates"])
def test_a_rewritten_expression_means_the_same_to_spark(lake: Lake, expressions: list[str]) -> None:
    lake.sql("SELECT 1 AS one, 'it''s' AS word, DATE'2020-01-31' AS day").createOrReplaceTempView("ips_after_0")
    query = read(f"SELECT {', '.join(f'{each} AS c{place}' for place, each in enumerate(expressions))} FROM t")
    plan = MaintenancePlan(query, [COLUMNS])
    assert plan.refused is None
    given, written = lake.sql(query.over({0: "ips_after_0"})), lake.sql(plan.text)
    assert written.dtypes == given.dtypes
    (expected,), (found,) = given.collect(), written.collect()
    same = zip(expressions, expected, found, strict=True)
    assert [(text, wanted, has) for text, wanted, has in same if wanted != has] == []


OF_TYPES = {
    "i": "int",
    "l": "bigint",
    "d": "double",
    "m": "decimal(10,2)",
    "s": "string",
    "b": "boolean",
    "bin": "binary",
    "day": "date",
    "t": "timestamp",
    "n": "timestamp_ntz",
}
TYPED = """
{} + {}
{} - {}
{} * {}
{} / {}
{} % {}
{} & {}
{} || {}
coalesce({}, {})
greatest({}, {})
nullif({}, {})
if(b, {}, {})
CASE i WHEN 1 THEN {} WHEN 2 THEN {} END
array({}, {})[0]
map('a', {}, 'b', {})['a']
array({}) || array({})
concat({}, {})
""".strip().splitlines()
TYPED_ALONE = """
-{}
abs({})
reverse({})
left({}, 2)
substring({}, 1, 2)
ceil({})
year({})
month({})
day({})
weekofyear({})
dayofyear({})
hour({})
extract(YEAR FROM {})
extract(SECOND FROM {})
last_day({})
date_add({}, 1)
date_add(HOUR, 1, {})
date_format({}, 'yyyy-MM')
date_trunc('HOUR', {})
trunc({}, 'MONTH')
to_date({})
hex({})
from_unixtime({})
unix_timestamp({})
upper({})
length({})
typeof({})
""".strip().splitlines()


@pytest.mark.slow
def test_an_expression_whose_type_a_key_may_have_has_that_type_in_spark(lake: Lake) -> None:
    listed = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in OF_TYPES.items())
    lake.sql(f"SELECT {listed}").createOrReplaceTempView("typed")
    columns = [QueryColumn(*each) for each in OF_TYPES.items()]
    operands = [*OF_TYPES, "1", "1.5", "3000000000", "'2026-01-01'", "INTERVAL 1 DAY", "INTERVAL '1 2' DAY TO HOUR"]
    texts = [each.format(one, other) for each in TYPED for one in operands for other in operands]
    texts += [each.format(one) for each in TYPED_ALONE for one in operands]
    known, wrong = 0, []
    for text in texts:
        plan = MaintenancePlan(read(f"SELECT k FROM (SELECT {text} AS k FROM t) AS q"), [columns])
        kind = None if plan.refused else plan._tree.selects[0].unalias().meta["kind"]
        if kind is None:
            continue
        try:
            ((_, of_spark),) = lake.sql(f"SELECT {text} AS k FROM typed").dtypes
        except AnalysisException:
            continue
        known += 1
        if of_spark.startswith("interval") or kind_of(exp.DataType.build(of_spark, dialect=DIALECT)) != kind:
            wrong.append((text, kind, of_spark))
    assert wrong == []
    assert known > 500


@pytest.mark.parametrize(
    ("expression", "fails"),
    [
        ("quarter(s)", True),
        ("CASE s WHEN 1 THEN 'a' END", True),
        ("CASE WHEN a = 1 THEN s ELSE 0 END", True),
        ("if(a = 1, s, 0)", True),
        ("nvl2(a, s, 0)", True),
        ("array_max(array(s, 0))", True),
        ("parse_url(s, 'HOST')", True),
        ("hex(to_binary(s))", True),
        ("a % 0", True),
        ("mod(a, 0 * a)", True),
        ("size(sequence(a, -1, 1))", True),
        ("split_part(s, ' ', a - 1)", True),
        ("map_keys(map(s, 1, 'not a url', 2))", True),
        ("regexp_extract(s, 'n', a)", True),
        ("bin(s)", True),
        ("mod(a, 16)", False),
        ("CASE s WHEN 'a' THEN 1 ELSE 0 END", False),
        ("a % 16", False),
        ("floor(a / -1.5)", False),
        ("a div 10", False),
    ],
)
def test_what_may_fail_in_spark_is_known_to(lake: Lake, expression: str, fails: bool) -> None:  # noqa: FBT001  # a parameter
    columns = [QueryColumn("s", "string"), QueryColumn("a", "int")]
    plan = MaintenancePlan(read(f"SELECT {expression} AS k FROM t"), [columns])
    assert may_fail(plan._tree.selects[0].unalias()) is fails
    rows = lake.sql(f"SELECT {expression} AS k FROM VALUES ('not a url', 1) AS t(s, a)")
    with pytest.raises(PySparkException) if fails else contextlib.nullcontext():
        rows.collect()


@pytest.mark.parametrize("expression", ["levenshtein(word, 'its', 1)", "posexplode(array(one))"])
def test_a_query_that_cannot_be_rewritten_in_full_has_no_plan(expression: str) -> None:
    plan = MaintenancePlan(read(f"SELECT {expression} AS a FROM t"), [COLUMNS])
    assert plan.refused is not None


@pytest.mark.slow
@pytest.mark.everywhere
def test_names_mean_the_same_to_spark_in_a_rewritten_query(lake: Lake) -> None:
    for name, rows in SOURCES.items():
        lake.sql(f"SELECT * FROM VALUES {rows}").createOrReplaceTempView(name)
    full, wrong = set(), []
    for text in NAMES:
        query = read(text)
        frames = [lake.session.table(name) for (name,) in query.sources]
        plan = MaintenancePlan(query, [[QueryColumn(*each) for each in frame.dtypes] for frame in frames])
        if plan.refused is not None:
            full.add(text)
            continue
        for place, frame in enumerate(frames):
            frame.createOrReplaceTempView(f"ips_after_{place}")
        given, written = (Counter(map(tuple, lake.sql(each).collect())) for each in (text, plan.text))
        if given != written:
            wrong.append((text, given, written))
    assert wrong == []
    assert full == {text for text in NAMES if "FULL JOIN" in text or "RIGHT JOIN u USING (a) JOIN v" in text}


# In these, a name is resolved to something else than in Spark.
MISREAD = r"""
SELECT a, filter(array(b), A -> a > 1) AS f FROM t
SELECT a FROM t WHERE EXISTS (SELECT u.a AS b FROM u WHERE u.d = t.c AND b > 1)
SELECT a FROM t WHERE c IN (SELECT u.a AS b FROM u WHERE u.d = b)
SELECT a, b, c FROM t UNION ALL SELECT * FROM (SELECT x FROM v), (SELECT d, a FROM u) JOIN (SELECT a FROM t) USING (a)
SELECT t.a FROM (SELECT a, b, struct(a, b) AS u FROM t) AS t LEFT SEMI JOIN u ON t.b = u.a
SELECT u.a FROM u WHERE EXISTS (SELECT 1 FROM (SELECT a, struct(b AS a) AS u FROM t) AS q WHERE u.a = q.a)
SELECT s AS user, upper(user) AS x FROM t
""".strip().splitlines()


@pytest.mark.slow
def test_a_name_that_spark_resolves_otherwise_is_noticed_and_others_are_not(lake: Lake) -> None:
    for name, rows in SOURCES.items():
        # Beside a range, Spark doesn't compute the rows while it plans.
        computed = lake.sql(f"SELECT q.* FROM (SELECT * FROM VALUES {rows}) AS q CROSS JOIN range(1)")
        computed.createOrReplaceTempView(name)
    noticed = []
    for text in NAMES + MISREAD:
        query = read(text)
        frames = [lake.session.table(name) for (name,) in query.sources]
        plan = MaintenancePlan(query, [[QueryColumn(*each) for each in frame.dtypes] for frame in frames])
        if plan.refused is not None:
            continue
        for place, frame in enumerate(frames):
            frame.createOrReplaceTempView(f"ips_after_{place}")
        if not are_alike(lake.sql(plan.text_as_parsed), lake.sql(plan.text)):
            noticed.append(text)
    assert noticed == MISREAD


@pytest.mark.slow
def test_a_name_is_also_noticed_if_the_scans_apply_the_conditions(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.t USING iceberg PARTITIONED BY (day) AS SELECT 1 AS a, 2 AS day")
    lake.sql("CREATE TABLE lake.media.u USING iceberg PARTITIONED BY (since) AS SELECT 1 AS a, 0 AS since")
    query = read("SELECT a FROM t WHERE EXISTS (SELECT u.since AS day FROM u WHERE u.a = t.a AND day > 1)")
    frames = [lake.session.table(f"lake.media.{name}") for (name,) in query.sources]
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in frame.dtypes] for frame in frames])
    for place, frame in enumerate(frames):
        frame.createOrReplaceTempView(f"ips_after_{place}")
    assert plan.refused is None
    assert not are_alike(lake.sql(plan.text_as_parsed), lake.sql(plan.text))
    one, other = "SELECT a FROM ips_after_0 WHERE day > 1", "SELECT a FROM (SELECT * FROM ips_after_0) WHERE day > 1"
    assert are_alike(lake.sql(one), lake.sql(other))
    assert not are_alike(lake.sql(one), lake.sql(other.replace("> 1", "> 2")))
