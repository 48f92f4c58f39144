"""Queries over a few facts and dimensions, written as different teams would write them."""

from __future__ import annotations

QUERIES = {
    "left_chain": """
        SELECT p.play_id, p.day, t.name, s.studio, a.country
        FROM play p
        LEFT JOIN title t ON p.title_id = t.title_id
        LEFT JOIN studio s ON t.studio_id = s.studio_id
        LEFT JOIN account a ON a.account_id = p.account_id
    """,
    "left_chain_sums": """
        SELECT s.region, t.genre, count(*) AS plays, sum(p.seconds) AS seconds, sum(p.price) AS price
        FROM play p
        LEFT JOIN title t ON p.title_id = t.title_id
        LEFT JOIN studio s ON t.studio_id = s.studio_id
        GROUP BY s.region, t.genre
    """,
    "left_chain_by_day": """
        SELECT p.day, coalesce(s.region, 'none') AS region, count(s.studio_id) AS known, avg(p.seconds) AS seconds
        FROM play p LEFT JOIN title t USING (title_id) LEFT JOIN studio s USING (studio_id)
        GROUP BY p.day, coalesce(s.region, 'none')
    """,
    "dbt_model": """
        WITH plays AS (SELECT * FROM play), titles AS (SELECT * FROM title),
        joined AS (SELECT plays.*, titles.genre FROM plays LEFT JOIN titles ON plays.title_id = titles.title_id),
        final AS (
            SELECT day, genre, count(*) AS plays, sum(price) AS price, max(seconds) AS longest
            FROM joined WHERE seconds IS NOT NULL GROUP BY 1, 2
        )
        SELECT * FROM final
    """,
    "case_keys": """
        SELECT CASE WHEN seconds < 60 THEN 'short' WHEN seconds >= 60 THEN 'long' ELSE 'unknown' END AS kind,
               upper(trim(device)) AS device, count(*) AS n, max(seconds) AS longest
        FROM play GROUP BY 1, 2
    """,
    "case_keys_joined": """
        SELECT CASE a.plan WHEN 'pro' THEN 1 WHEN 'free' THEN 0 END AS is_pro, sum(p.price) AS price
        FROM play p JOIN account a ON p.account_id = a.account_id
        GROUP BY CASE a.plan WHEN 'pro' THEN 1 WHEN 'free' THEN 0 END
    """,
    "coalesce_join": """
        SELECT a.country, p.status, count(*) AS n, sum(p.amount) AS amount
        FROM payment p JOIN account a ON coalesce(p.account_id, 0) = a.account_id
        GROUP BY a.country, p.status
    """,
    "coalesce_of_two_types": """
        SELECT coalesce(p.old_account_id, p.account_id) AS account, count(DISTINCT p.status) AS statuses
        FROM payment p GROUP BY coalesce(p.old_account_id, p.account_id)
    """,
    "keys_of_two_integers": """
        SELECT p.payment_id, a.country FROM payment p JOIN account a ON p.old_account_id = a.account_id
    """,
    "self_join": """
        SELECT a.account_id, a.country, r.country AS referrer_country
        FROM account a LEFT JOIN account r ON a.referrer_id = r.account_id
    """,
    "self_join_sums": """
        SELECT r.plan, count(*) AS referred, count(DISTINCT a.account_id) AS accounts
        FROM account a JOIN account r ON a.referrer_id = r.account_id GROUP BY r.plan
    """,
    "self_join_of_facts": """
        SELECT x.account_id, x.day, count(*) AS pairs FROM play x JOIN play y
        ON x.account_id = y.account_id AND x.day = y.day AND x.play_id < y.play_id GROUP BY x.account_id, x.day
    """,
    "weeks": """
        SELECT date_trunc('WEEK', started) AS week, weekofyear(day) AS number, count(*) AS n FROM play
        GROUP BY date_trunc('WEEK', started), weekofyear(day)
    """,
    "months": """
        SELECT date_trunc('month', day) AS month, date_format(day, 'yyyy-MM') AS shown, sum(amount) AS amount,
               sum(CASE WHEN status = 'refund' THEN -amount ELSE amount END) AS net
        FROM payment WHERE day >= DATE'2026-01-02' GROUP BY 1, 2
    """,
    "having": """
        SELECT account_id, day, sum(seconds) AS seconds FROM play GROUP BY account_id, day
        HAVING sum(seconds) > 60 AND count(*) > 1
    """,
    "having_joined": """
        SELECT a.country, count(DISTINCT p.account_id) AS accounts FROM play p JOIN account a USING (account_id)
        GROUP BY a.country HAVING count(DISTINCT p.account_id) >= 2
    """,
    "distinct_accounts": """
        SELECT day, count(DISTINCT account_id) AS accounts, count(DISTINCT account_id, device) AS pairs, count(*) AS n
        FROM play GROUP BY day
    """,
    "filters": """
        SELECT day, count(*) FILTER (WHERE device = 'tv') AS tv, sum(seconds) FILTER (WHERE price > 0) AS paid,
               count_if(seconds > 10) AS longer, max(price) FILTER (WHERE device IS NULL) AS most
        FROM play GROUP BY day
    """,
    "top_two": """
        SELECT account_id, play_id, seconds FROM (
            SELECT account_id, play_id, seconds,
                   row_number() OVER (PARTITION BY account_id ORDER BY seconds DESC, play_id, price, started, device) AS rn
            FROM play
        ) ranked WHERE rn <= 2 AND account_id > 0
    """,
    "latest": """
        SELECT * FROM (
            SELECT payment_id, account_id, amount, status,
                   row_number() OVER (PARTITION BY account_id ORDER BY day DESC, payment_id DESC, status, amount) AS rn
            FROM payment
        ) WHERE rn = 1
    """,
    "lag_lead": """
        SELECT account_id, play_id, seconds,
               lag(seconds) OVER (PARTITION BY account_id ORDER BY play_id, seconds) AS earlier,
               lead(seconds, 2, -1) OVER (PARTITION BY account_id ORDER BY play_id, seconds) AS later
        FROM play
    """,
    "running_sum": """
        SELECT account_id, day, amount,
               sum(amount) OVER (PARTITION BY account_id ORDER BY day RANGE UNBOUNDED PRECEDING) AS so_far
        FROM payment WHERE status <> 'open'
    """,
    "share_of_day": """
        SELECT day, device, seconds, 100 * seconds / total AS share FROM (
            SELECT day, device, sum(seconds) AS seconds, sum(sum(seconds)) OVER (PARTITION BY day) AS total
            FROM play GROUP BY day, device
        ) x
    """,
    "twice_used": """
        WITH daily AS (SELECT account_id, day, sum(seconds) AS seconds FROM play GROUP BY account_id, day)
        SELECT now.account_id, now.day, now.seconds, before.seconds AS seconds_before
        FROM daily now LEFT JOIN daily before ON now.account_id = before.account_id AND before.day = date_sub(now.day, 1)
    """,
    "chained_ctes": """
        WITH paid AS (SELECT account_id, amount FROM payment WHERE status = 'paid'),
        totals (account, total) AS (SELECT account_id, sum(amount) FROM paid GROUP BY account_id),
        big AS (SELECT account FROM totals WHERE total > 20)
        SELECT p.day, count(*) AS n FROM play p JOIN big b ON p.account_id = b.account GROUP BY p.day
    """,
    "union_of_unlike": """
        SELECT day, 'play' AS kind, play_id AS id, price AS amount FROM play WHERE price > 0
        UNION ALL
        SELECT day, 'payment', payment_id, amount FROM payment WHERE status IN ('paid', 'refund') AND amount IS NOT NULL
    """,
    "union_grouped": """
        SELECT day, kind, count(*) AS n, sum(amount) AS amount FROM (
            SELECT day, 'play' AS kind, price AS amount FROM play WHERE device LIKE '%tv'
            UNION ALL SELECT day, 'play', price FROM play WHERE seconds > 10
            UNION ALL SELECT day, status, amount FROM payment
        ) u GROUP BY day, kind
    """,
    "union_distinct": """
        SELECT account_id, day FROM play UNION SELECT account_id, day FROM payment
    """,
    "except_those": """
        SELECT account_id, day FROM play EXCEPT SELECT account_id, day FROM payment WHERE status = 'paid'
    """,
    "intersect_those": "SELECT account_id FROM play INTERSECT SELECT account_id FROM payment",
    "exists": """
        SELECT a.account_id, a.country FROM account a
        WHERE EXISTS (SELECT 1 FROM play p WHERE p.account_id = a.account_id AND p.seconds > 10)
    """,
    "not_exists": """
        SELECT a.* FROM account a WHERE NOT EXISTS (SELECT * FROM payment p WHERE p.account_id = a.account_id)
    """,
    "exists_grouped": """
        SELECT p.device, count(*) AS n, sum(p.seconds) AS seconds FROM play p
        WHERE EXISTS (SELECT 1 FROM payment x WHERE x.account_id = p.account_id AND x.day <= p.day)
        GROUP BY p.device
    """,
    "in_list_and_query": """
        SELECT play_id, day FROM play
        WHERE device IN ('tv', 'TV') AND account_id IN (SELECT account_id FROM account WHERE country = 'de')
    """,
    "pair_in": """
        SELECT payment_id, account_id, day FROM payment
        WHERE (account_id, day) IN (SELECT account_id, max(day) FROM payment GROUP BY account_id)
    """,
    "not_in": "SELECT play_id FROM play WHERE account_id NOT IN (SELECT account_id FROM account WHERE plan = 'free')",
    "anti_join": """
        SELECT p.payment_id, p.status FROM payment p LEFT ANTI JOIN play x ON p.account_id = x.account_id AND p.day = x.day
    """,
    "left_join_is_null": """
        SELECT p.day, count(*) AS orphans FROM play p LEFT JOIN account a ON p.account_id = a.account_id
        WHERE a.account_id IS NULL GROUP BY p.day
    """,
    "between_join": """
        SELECT b.band, a.country, count(*) AS n FROM play p
        JOIN account a ON p.account_id = a.account_id
        JOIN band b ON b.country = a.country AND p.seconds BETWEEN b.low AND b.high
        GROUP BY b.band, a.country
    """,
    "as_of_since": """
        SELECT p.play_id, a.plan FROM play p LEFT JOIN account a ON a.account_id = p.account_id AND p.day >= a.since
    """,
    "star": "SELECT * FROM payment WHERE status = 'paid'",
    "star_of_one": "SELECT p.*, t.genre FROM play p JOIN title t ON p.title_id = t.title_id WHERE t.genre <> 'trailer'",
    "using_two": """
        SELECT account_id, day, count(*) AS n, sum(amount) AS amount
        FROM play JOIN payment USING (account_id, day) GROUP BY account_id, day
    """,
    "using_right": "SELECT title_id, name, count(play_id) AS plays FROM play RIGHT JOIN title USING (title_id) GROUP BY 1, 2",
    "natural": "SELECT title_id, studio_id, name, region FROM title NATURAL JOIN studio",
    "comma_join": """
        SELECT t.genre, count(*) AS n FROM play p, title t, studio s
        WHERE p.title_id = t.title_id AND t.studio_id = s.studio_id AND s.region = 'eu' GROUP BY t.genre
    """,
    "odd_names": """
        SELECT P.`Play_ID`, p.DAY AS `The Day`, `p`.device AS `select`, A.Country
        FROM Play p INNER JOIN ACCOUNT AS A ON P.Account_Id = a.ACCOUNT_ID
    """,
    "qualified": """
        SELECT lake.media.play.day, sum(lake.media.play.seconds) AS seconds FROM lake.media.play
        GROUP BY lake.media.play.day
    """,
    "qualified_columns": "SELECT play.day, play.device, count(*) n FROM play GROUP BY play.device, play.day",
    "decimals": """
        SELECT account_id, sum(amount) AS total, avg(amount) AS mean, min(amount) AS low, sum(amount * 1.19) AS gross,
               CAST(sum(amount) / 3 AS DECIMAL(20,6)) AS third, round(sum(amount), 1) AS rounded
        FROM payment GROUP BY account_id
    """,
    "decimal_keys": "SELECT price, count(*) AS n, count(DISTINCT title_id) AS titles FROM play GROUP BY price",
    "ordinals": "SELECT day, device, count(*) AS n FROM play GROUP BY 1, 2 ORDER BY 3 DESC, 1",
    "aliases": "SELECT year(day) AS y, month(day) AS m, sum(seconds) AS s FROM play GROUP BY y, m ORDER BY y, m",
    "group_by_all": "SELECT day, device, count(*) AS n FROM play GROUP BY ALL",
    "group_by_all_computed": """
        SELECT upper(device) AS kind, year(p.day) AS y, a.country, sum(seconds) FILTER (WHERE price > 0) AS paid,
               count(*) FILTER (WHERE device = 'tv') / count(*) AS of_tv, min(price) FILTER (WHERE seconds > 10) AS low
        FROM play p JOIN account a ON p.account_id = a.account_id GROUP BY ALL
    """,
    "joined_texts": """
        SELECT account_id, listagg(device, ',') WITHIN GROUP (ORDER BY device) AS devices,
               listagg(DISTINCT device, '|') WITHIN GROUP (ORDER BY device DESC) AS kinds
        FROM play GROUP BY account_id
    """,
    "casts_by_name": """
        SELECT bigint(account_id) AS account, smallint(seconds) AS s, binary(device) AS b, decimal(seconds) AS d
        FROM play WHERE tinyint(title_id) > 1
    """,
    "grouping_sets": """
        SELECT day, device, grouping_id() AS level, count(*) AS n FROM play GROUP BY GROUPING SETS ((day, device), (day), ())
    """,
    "rollup": "SELECT country, plan, count(*) AS n FROM account GROUP BY country, plan WITH ROLLUP",
    "cube": "SELECT country, plan, count(*) AS n FROM account GROUP BY CUBE (country, plan)",
    "lateral_explode": """
        SELECT p.play_id, tag FROM play p LATERAL VIEW explode(p.tags) e AS tag
    """,
    "lateral_explode_grouped": """
        SELECT tag, place, count(*) AS n FROM play LATERAL VIEW OUTER posexplode(tags) e AS place, tag GROUP BY tag, place
    """,
    "latest_by": """
        SELECT account_id, max_by(device, struct(started, device)) AS last_device, min_by(day, day) AS first_day
        FROM play GROUP BY account_id
    """,
    "counted_by_the_latest": """
        SELECT last_device, count(*) AS n FROM (
            SELECT account_id, max_by(device, struct(started, device)) AS last_device FROM play GROUP BY account_id
        ) GROUP BY last_device
    """,
    "percentiles_within_groups": """
        SELECT device, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS middle,
               percentile_disc(0.9) WITHIN GROUP (ORDER BY seconds DESC) FILTER (WHERE day IS NOT NULL) AS high
        FROM play GROUP BY device
    """,
    "lateral_of_joined_rows": """
        SELECT a.country, tag, count(*) AS n, sum(seconds) AS seconds, max(day) AS last
        FROM play p JOIN account a ON p.account_id = a.account_id LATERAL VIEW explode(p.tags) e AS tag
        WHERE tag <> a.plan GROUP BY a.country, tag
    """,
    "lateral_right_of_left_join": """
        SELECT a.account_id, count(tag) AS n FROM account a LEFT JOIN play p ON p.account_id = a.account_id
        LATERAL VIEW OUTER explode(p.tags) e AS tag GROUP BY a.account_id
    """,
    "lateral_twice": """
        SELECT play_id, letter, place FROM play LATERAL VIEW explode(array(tags, array(device))) AS each
        LATERAL VIEW OUTER posexplode(each) AS place, letter
    """,
    "lateral_ranked": """
        SELECT tag, count(*) AS n FROM (
            SELECT tag, row_number() OVER (PARTITION BY account_id ORDER BY play_id, tag) AS place
            FROM play LATERAL VIEW explode(tags) e AS tag
        ) WHERE place = 1 GROUP BY tag
    """,
    "lateral_distinct": "SELECT DISTINCT day, tag FROM play LATERAL VIEW explode(tags) e AS tag",
    "explode_selected": "SELECT play_id, explode(tags) AS tag FROM play WHERE size(tags) > 0",
    "explode_grouped": """
        SELECT tag, count(*) AS n FROM (SELECT explode(tags) AS tag FROM play) GROUP BY tag
    """,
    "of_expressions": """
        SELECT day, sum(seconds * coalesce(price, 0)) / nullif(sum(seconds), 0) AS weighted,
               sum(seconds) / count(*) AS mean, count(price) - count(DISTINCT price) AS again
        FROM play GROUP BY day
    """,
    "ratio_kept": """
        SELECT day, round(100.0 * count_if(status = 'paid') / count(*), 2) AS percent, max(amount) - min(amount) AS spread
        FROM payment GROUP BY day
    """,
    "nested_aggregates": """
        SELECT n, count(*) AS accounts, max(seconds) AS longest FROM (
            SELECT account_id, count(*) AS n, sum(seconds) AS seconds FROM play GROUP BY account_id
        ) per_account GROUP BY n
    """,
    "three_levels": """
        SELECT country, avg(n) AS plays, count(*) AS accounts FROM (
            SELECT a.country, x.n FROM (SELECT account_id, count(*) AS n FROM play WHERE day IS NOT NULL GROUP BY 1) x
            LEFT JOIN account a ON a.account_id = x.account_id
        ) GROUP BY country
    """,
    "two_facts": """
        SELECT a.account_id, a.country, coalesce(p.seconds, 0) AS seconds, coalesce(m.amount, 0) AS amount
        FROM account a
        LEFT JOIN (SELECT account_id, sum(seconds) AS seconds FROM play GROUP BY account_id) p ON p.account_id = a.account_id
        LEFT JOIN (SELECT account_id, sum(amount) AS amount FROM payment GROUP BY account_id) m
        ON m.account_id = a.account_id
    """,
    "two_facts_full": """
        SELECT coalesce(p.day, m.day) AS day, p.n, m.amount
        FROM (SELECT day, count(*) AS n FROM play GROUP BY day) p
        FULL OUTER JOIN (SELECT day, sum(amount) AS amount FROM payment GROUP BY day) m ON p.day = m.day
    """,
    "correlated_value": """
        SELECT t.title_id, t.name, (SELECT max(p.seconds) FROM play p WHERE p.title_id = t.title_id) AS longest
        FROM title t
    """,
    "above_mean": """
        SELECT p.play_id, p.account_id FROM play p
        WHERE p.seconds > (SELECT avg(x.seconds) FROM play x WHERE x.account_id = p.account_id)
    """,
    "of_the_last_day": "SELECT play_id, day FROM play WHERE day = (SELECT max(day) FROM play)",
    "one_row": "SELECT count(*) AS n, sum(amount) AS amount, max(day) AS latest FROM payment",
    "one_row_distinct": "SELECT count(DISTINCT account_id) AS accounts, 1 AS one FROM play",
    "null_safe": """
        SELECT p.play_id, t.name FROM play p JOIN title t ON p.title_id <=> t.title_id
    """,
    "or_join": """
        SELECT p.payment_id, a.country FROM payment p JOIN account a
        ON p.account_id = a.account_id OR p.old_account_id = a.account_id
    """,
    "cross_join": "SELECT s.studio, b.band, s.region FROM studio s CROSS JOIN band b WHERE s.region = 'eu'",
    "distinct": "SELECT DISTINCT device, title_id FROM play WHERE seconds IS NOT NULL",
    "distinct_joined": "SELECT DISTINCT a.country, t.genre FROM play p JOIN account a USING (account_id) JOIN title t USING (title_id)",
    "null_keys": "SELECT title_id, device, bool_or(seconds > 10) AS any_long, min(started) AS first FROM play GROUP BY 1, 2",
    "limited": "SELECT play_id, seconds FROM play ORDER BY seconds DESC, play_id LIMIT 5",
    "strange_texts": """
        SELECT name, concat_ws('-', genre, name) AS both_of_them, replace(name, "'", '') AS bare,
               'a''b' AS quoted, "x\\"y" AS also, name RLIKE '^I' AS is_i, count(*) AS n
        FROM title GROUP BY name, genre
    """,
    "quotes_in_texts": """
        SELECT p.day, t.name = 'It''s' AS is_it, count(*) AS n, sum(p.seconds) AS seconds
        FROM play p JOIN title t USING (title_id) WHERE t.name IN ('It''s', "b""q", 'Ünder') GROUP BY p.day, t.name = 'It''s'
    """,
    "shown_days": "SELECT to_char(day, 'yyyyMM') AS month, count(*) AS n FROM play GROUP BY to_char(day, 'yyyyMM')",
    "json": """
        SELECT get_json_object(to_json(named_struct('a', device, 'b', seconds)), '$.a') AS device, max(seconds) AS s
        FROM play GROUP BY 1
    """,
    "sorted_list": "SELECT account_id, sort_array(collect_set(device)) AS devices FROM play GROUP BY account_id",
    "counted_sets": """
        SELECT account_id, size(collect_set(device)) AS devices,
               sort_array(collect_list(title_id) FILTER (WHERE seconds > 10)) AS long_titles
        FROM play GROUP BY account_id
    """,
    "hashed": "SELECT xxhash64(play_id, device) AS id, struct(day, device) AS what, play_id FROM play",
    "like_any": "SELECT play_id, device FROM play WHERE device LIKE ANY ('%tv', 'pho%')",
    "posexploded": "SELECT play_id, posexplode(tags) FROM play",
    "posexploded_as": "SELECT play_id, posexplode(tags) AS (place, tag) FROM play",
    "median": "SELECT day, percentile(seconds, 0.5) AS mid, count(*) AS n FROM play GROUP BY day",
    "to_local": """
        SELECT to_date(from_utc_timestamp(started, 'Europe/Berlin')) AS local_day, hour(started) AS hour, count(*) AS n
        FROM play GROUP BY 1, 2
    """,
    "same_twice": "SELECT day, day AS also, count(*) AS n FROM play GROUP BY day",
    "constant_key": "SELECT 'all' AS scope, day, sum(seconds) AS s FROM play GROUP BY 'all', day",
    "only_constant": "SELECT 'all' AS scope, count(*) AS n FROM play GROUP BY 'all'",
    "unselected_key": "SELECT device, max(n) AS most FROM (SELECT device, day, count(*) AS n FROM play GROUP BY device, day) GROUP BY device",
    "brackets": "SELECT p.play_id, t.name FROM (play p JOIN title t ON p.title_id = t.title_id)",
    "subquery_star": "SELECT * FROM (SELECT * FROM play WHERE seconds > 0) x JOIN (SELECT title_id AS tid, genre FROM title) y ON x.title_id = y.tid",
    "values_list": """
        SELECT v.label, count(*) AS n FROM payment p JOIN (VALUES ('paid', 'good'), ('refund', 'bad')) AS v (status, label)
        ON p.status = v.status GROUP BY v.label
    """,
    "sessions": """
        WITH marked AS (
            SELECT account_id, play_id, CASE WHEN day > date_add(lag(day) OVER
                (PARTITION BY account_id ORDER BY day, play_id), 1) THEN 1 ELSE 0 END AS starts, day
            FROM play WHERE account_id IS NOT NULL AND day IS NOT NULL
        ), numbered AS (
            SELECT *, sum(starts) OVER (PARTITION BY account_id ORDER BY day, play_id) AS session FROM marked
        )
        SELECT account_id, session, min(day) AS first_day, max(day) AS last_day, count(*) AS plays
        FROM numbered GROUP BY account_id, session
    """,
    "funnel": """
        SELECT a.country, count(DISTINCT a.account_id) AS signed, count(DISTINCT p.account_id) AS played,
               count(DISTINCT CASE WHEN m.status = 'paid' THEN m.account_id END) AS paid
        FROM account a LEFT JOIN play p ON a.account_id = p.account_id LEFT JOIN payment m ON a.account_id = m.account_id
        GROUP BY a.country
    """,
    "partitioned_sums": "SELECT day, device, count(*) AS n, sum(seconds) AS s FROM play GROUP BY day, device",
    "partitioned_rows": """
        SELECT p.day, p.play_id, a.country FROM play p LEFT JOIN account a ON p.account_id = a.account_id
    """,
    "partitioned_append": "SELECT p.day, p.device, t.genre FROM play p JOIN title t ON p.title_id = t.title_id",
    "partitioned_by_months": "SELECT day, max(amount) AS most, count(DISTINCT status) AS n FROM payment GROUP BY day",
}
"""The queries by name; they read tables of ``handwritten_on_spark``."""

BY_PARTITION = {
    "partitioned_sums": ["day"],
    "partitioned_rows": ["day", "country"],
    "partitioned_append": ["day", "bucket(4, device)"],
    "partitioned_by_months": ["months(day)"],
}
"""The partition columns of the partitioned tables, by query."""
QUALIFIED = {"qualified": {"lake.media.play": "play"}, "odd_names": {"Play": "play", "ACCOUNT": "account"}}
"""By query that names sources differently: the source for each name."""
