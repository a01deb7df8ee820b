"""SQL written to hang, to crash, to fill memory, to reach other files, or to be unreadable.

Each entry is a name, a statement on `SCHEMA`'s tables and the outcomes that are right for it.
"""

from __future__ import annotations

SMALL = """
CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, age INT);
CREATE TABLE concert (id INTEGER PRIMARY KEY, singer_id INT REFERENCES singer(id), title TEXT);
CREATE VIEW adult AS SELECT * FROM singer WHERE age >= 18;
CREATE INDEX by_age ON singer(age);
INSERT INTO singer VALUES (1, 'Ann', 30), (2, 'Bo', 17), (3, 'Cy', NULL);
INSERT INTO concert VALUES (1, 1, 'Opening'), (2, 1, 'It''s late');
"""
SCHEMA = f"""{SMALL}
CREATE TABLE big (n INT, a TEXT, b TEXT);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 5000)
INSERT INTO big SELECT x, 'a' || (x % 97), hex(x) FROM c;
CREATE TABLE long (t TEXT, p TEXT);
INSERT INTO long VALUES (replace(hex(zeroblob(200000)), '0', 'a'),
                         replace(hex(zeroblob(100000)), '0', 'a') || 'b');
"""

_COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
_LONG = "(SELECT replace(hex(zeroblob(480000)), '0', 'a'))"
_HALF = "(SELECT replace(hex(zeroblob(240000)), '0', 'a') || 'b')"
_STOPPED = ("timeout", "too_big")


def _copies(levels: int) -> str:
    """Common table expressions, each of which names the one before it three times."""
    parts = ["a0 AS (SELECT 1 x)"]
    parts += [
        f"a{n + 1} AS (SELECT p.x FROM a{n} p, a{n} q, a{n} r WHERE p.x + q.x > r.x)"
        for n in range(levels)
    ]
    return f"WITH {', '.join(parts)} SELECT * FROM a{levels} LIMIT 0"


def _sums(levels: int) -> str:
    """Subqueries one in another, each of which uses the inner column many times."""
    text = "singer"
    for _ in range(levels):
        text = f"(SELECT {' + '.join(['age'] * 80)} age FROM {text})"
    return f"SELECT age FROM {text}"


# One call inside SQLite, or one compilation, that neither steps nor a clock between them can end
ONE_LONG_CALL = [
    ("instr on half a megabyte", f"SELECT instr({_LONG}, {_HALF})", ("timeout",)),
    ("replace on half a megabyte", f"SELECT replace({_LONG}, {_HALF}, '')", ("timeout",)),
    ("instr on stored text", "SELECT instr(t || t || t || t, p || p) FROM long", _STOPPED),
    ("trim with a long set", f"SELECT rtrim({_LONG}, hex(zeroblob(240000)) || 'a')", None),
    ("LIKE with many wildcards", f"SELECT {_LONG} LIKE '{'%_a' * 300}b'", None),
    ("LIKE with one wildcard too many", f"SELECT {_LONG} LIKE '{'%a' * 1000}b'", ("error",)),
    ("GLOB with many wildcards", f"SELECT {_LONG} GLOB '{'*?a' * 300}b'", None),
    ("GLOB with many sets", f"SELECT {_LONG} GLOB '{'*[^b]' * 150}b'", None),
    ("LIKE with a computed pattern", "SELECT t LIKE substr(p, 1, 900) || '%' FROM long", None),
    ("LIKE row by row", "SELECT count(*) FROM long x, big y, big z WHERE x.t LIKE '%a%b%c%'", None),
    ("expressions copied into copies", _sums(6), _STOPPED),
    ("tables copied into copies", _copies(20), _STOPPED),
    ("hex of nothing", "SELECT hex(zeroblob(1000000000))", ("too_big",)),
    ("hex within the limit, often", _COUNT + "SELECT hex(zeroblob(400000)) FROM c", _STOPPED),
    ("printf, a giant width", "SELECT printf('%2000000000d', 1)", ("too_big",)),
    ("printf, a giant precision", "SELECT printf('%.2000000000f', 1.5)", ("too_big",)),
    ("printf, a width as argument", "SELECT printf('%*d', 2000000000, 1)", ("too_big",)),
    ("format, a giant width", "SELECT format('%1999999999s', 'x')", ("too_big",)),
    ("printf with commas", "SELECT printf('%,.900000f', 1e300)", None),
    ("random bytes", "SELECT randomblob(2000000000)", ("too_big",)),
    ("concatenation", "SELECT t || t || t || t || t FROM long", ("too_big",)),
    ("group_concat without end", _COUNT + "SELECT group_concat(x, 'abc') FROM c", _STOPPED),
    ("json_group_array without end", _COUNT + "SELECT json_group_array(x) FROM c", _STOPPED),
    ("replace that multiplies", "SELECT replace(t, 'a', p) FROM long", _STOPPED),
    ("quote of a BLOB", "SELECT quote(zeroblob(900000))", ("too_big",)),
    ("deep JSON", f"SELECT count(*) FROM json_tree('{'[' * 900}{']' * 900}')", None),
    ("JSON deeper than allowed", f"SELECT json('{'[' * 40000}{']' * 40000}')", ("error",)),
    ("wide JSON", "SELECT count(*) FROM json_each('[' || substr(replace(hex(zeroblob(200000)),"
     " '00', '0,'), 1, 399999) || ']') a, json_each('[1,2,3]') b", None),
    ("JSON paths into a long array", "SELECT count(json_extract(j, '$[' || (n * 30) || ']')) FROM"
     " big, (SELECT '[' || substr(replace(hex(zeroblob(200000)), '00', '0,'), 1, 399999) || ']' j)",
     None),
]  # fmt: skip

RUNAWAY = [
    ("a count without end", _COUNT + "SELECT count(*) FROM c", ("timeout",)),
    ("a filter that nothing passes", _COUNT + "SELECT x FROM c WHERE x < 0", ("timeout",)),
    ("a sort without end", _COUNT + "SELECT x FROM c ORDER BY x", _STOPPED),
    ("a sort of long rows", _COUNT + "SELECT zeroblob(900000) FROM c ORDER BY 1", _STOPPED),
    ("distinct long rows", _COUNT + "SELECT DISTINCT randomblob(90000) FROM c", None),
    ("rows without end", _COUNT + "SELECT x FROM c", ("ok",)),
    ("two counts multiplied", _COUNT + "SELECT count(*) FROM c a, c b", _STOPPED),
    ("a union that grows", "WITH RECURSIVE c(x) AS (SELECT 1 UNION SELECT x + 1 FROM c) "
     "SELECT count(*) FROM c", _STOPPED),
    ("a queue that grows", "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + n FROM c, big) "
     "SELECT count(*) FROM c", _STOPPED),
    ("text that doubles", "WITH RECURSIVE c(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM c) "
     "SELECT max(length(x)) FROM c", ("too_big",)),
    ("cross joins", "SELECT count(*) FROM big a, big b, big c, big d", ("timeout",)),
    ("cross joins, sorted", "SELECT a.n FROM big a, big b, big c ORDER BY a.a, b.b, c.n", _STOPPED),
    ("cross joins, grouped", "SELECT a.n, b.n, count(*) FROM big a, big b GROUP BY 1, 2", None),
    ("cross joins without an index", "SELECT count(*) FROM big a JOIN big b ON a.a LIKE b.b JOIN "
     "big c ON b.a LIKE c.b", ("timeout",)),
    ("a subquery a row", "SELECT (SELECT count(*) FROM big b WHERE b.n > a.n AND b.a < a.b), "
     "(SELECT max(c.b || a.b) FROM big c) FROM big a ORDER BY 1", None),
    ("windows", "SELECT sum(a.n) OVER (ORDER BY a.n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED "
     "FOLLOWING EXCLUDE CURRENT ROW) FROM big a, big b", ("timeout",)),
    ("a join of 65 tables", "SELECT 1 FROM " + ", ".join(f"singer s{n}" for n in range(65)),
     ("error",)),
    ("a join of 60 tables", "SELECT count(*) FROM " + " NATURAL JOIN ".join(["singer"] * 60), None),
]  # fmt: skip

LARGE_TEXT = [
    ("100,000 parentheses", "SELECT " + "(" * 100_000 + "1" + ")" * 100_000, ("error",)),
    ("40,000 parentheses", "SELECT " + "(" * 40_000 + "1" + ")" * 40_000, ("error",)),
    ("40,000 open parentheses", "SELECT " + "(" * 40_000, ("error",)),
    ("nested subqueries", "SELECT " + "(SELECT " * 3_000 + "1" + ")" * 3_000, ("error",)),
    ("nested subqueries in FROM", "SELECT * FROM " + "(SELECT * FROM " * 3_000 + "singer", None),
    ("nested calls", "SELECT " + "abs(" * 9_000 + "1" + ")" * 9_000, ("error",)),
    ("nested CASE", "SELECT " + "CASE WHEN 1 THEN " * 4_000 + "1" + " END" * 4_000, ("error",)),
    ("many NOTs", "SELECT " + "NOT " * 20_000 + "1", ("error",)),
    ("many minuses", "SELECT " + "- " * 40_000 + "1", ("error",)),
    ("many ORs", "SELECT 1 FROM big WHERE " + " OR ".join(["n = 1"] * 9_000), ("error",)),
    ("a huge IN list", f"SELECT n FROM big WHERE n IN ({', '.join(map(str, range(9_000)))})", None),
    ("an IN list of a megabyte", f"SELECT 1 WHERE 1 IN ({','.join(['1'] * 500_000)})", ("error",)),
    ("a huge VALUES", f"VALUES {', '.join(['(1)'] * 15_000)}", ("ok",)),
    ("many UNIONs", " UNION ALL ".join(["SELECT 1"] * 5_000), ("error",)),
    ("many columns", f"SELECT {', '.join(['1'] * 5_000)}", ("error",)),
    ("all columns many times", f"SELECT {', '.join(['*'] * 600)} FROM big, singer, concert",
     ("error", "ok")),
    ("a long name, many times", f'SELECT {", ".join(["x.*"] * 1_900)} FROM '
     f'(SELECT 1 AS "{"n" * 50_000}") x', _STOPPED),
    ("a long name that is unknown", f'SELECT t."{"n" * 90_000}" FROM singer t', ("error",)),
    ("a long comment", f"SELECT 1 /* {'*' * 200_000} */", ("error",)),
    ("a long literal", f"SELECT '{'x' * 90_000}'", ("ok",)),
    ("many common tables", "WITH " + ", ".join(f"t{n} AS (SELECT {n})" for n in range(3_000)) +
     " SELECT * FROM t2999", None),
    ("a long number", f"SELECT {'9' * 50_000}", ("ok",)),
    ("a long hexadecimal", f"SELECT 0x{'f' * 17}", ("error",)),
]  # fmt: skip

CLOSED = [
    "ATTACH 'other.sqlite' AS o",
    "ATTACH DATABASE 'new.sqlite' AS o",
    "ATTACH 'file:new.sqlite?mode=rwc' AS o",
    "ATTACH ':memory:' AS o",
    "ATTACH '' AS o",
    "DETACH main",
    "PRAGMA table_info(singer)",
    "PRAGMA user_version = 7",
    "PRAGMA writable_schema = ON",
    "PRAGMA writable_schema = RESET",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA temp_store_directory = '/tmp'",
    "PRAGMA hard_heap_limit = 100",
    "PRAGMA main.page_size",
    "EXPLAIN PRAGMA table_info(singer)",
    "SELECT * FROM pragma_table_info('singer')",
    "SELECT * FROM pragma_function_list",
    "SELECT name FROM pragma_database_list UNION SELECT file FROM pragma_database_list",
    "WITH p AS (SELECT * FROM pragma_table_list) SELECT count(*) FROM p",
    "SELECT (SELECT file FROM pragma_database_list) FROM singer",
    "VACUUM",
    "VACUUM main INTO 'new.sqlite'",
    "SELECT load_extension('x')",
    "SELECT LOAD_EXTENSION('./x.so', 'init') FROM singer",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('simple', x'0000000000000000')",
    "SELECT hex(fts3_tokenizer('simple'))",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('new.txt', 'x')",
    "SELECT sqlite_log(1, 'x')",
    "SELECT * FROM dbstat",
    "SELECT data FROM sqlite_dbpage",
    "SELECT * FROM sqlite_stmt",
    "SELECT * FROM fts3tokenize WHERE input = 'x'",
    "SELECT * FROM sqlite_temp_master_nosuch",
    "CREATE TABLE n (a)",
    "CREATE TEMP TABLE n AS SELECT 1",
    "CREATE TEMPORARY VIEW n AS SELECT 1",
    "CREATE TEMP TRIGGER n AFTER INSERT ON singer BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE temp.n USING fts5(a)",
    "CREATE VIRTUAL TABLE n USING dbstat",
    "CREATE VIRTUAL TABLE temp.n USING rtree(a, b, c)",
    "CREATE TABLE temp.n (a)",
    "DROP TABLE IF EXISTS nosuch_but_singer",
    "DROP TABLE singer",
    "ALTER TABLE singer RENAME TO s",
    "INSERT INTO singer DEFAULT VALUES",
    "INSERT INTO singer VALUES (9, 'x', 1) RETURNING *",
    "REPLACE INTO singer VALUES (1, 'x', 1)",
    "UPDATE singer SET age = 1 WHERE 0",
    "UPDATE OR IGNORE singer SET id = 1",
    "DELETE FROM singer RETURNING id",
    "WITH x AS (SELECT 1) DELETE FROM singer",
    "UPDATE sqlite_schema SET sql = 'x'",
    "DELETE FROM sqlite_master",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "END",
    "ROLLBACK",
    "SAVEPOINT s",
    "RELEASE s",
    "ROLLBACK TO s",
    "ANALYZE",
    "REINDEX",
    "EXPLAIN DELETE FROM singer",
    "EXPLAIN ATTACH 'x' AS y",
]

SEVERAL = [
    "SELECT 1; SELECT 2",
    "SELECT 1; ATTACH 'x' AS y",
    "SELECT 1;\x0bDROP TABLE singer",
    "SELECT 1 /* ; */ ; DELETE FROM singer; --",
    "BEGIN; DELETE FROM singer; COMMIT",
    "SELECT 1; ; SELECT 2",
]

UNREADABLE = [
    "",
    " \t\r\n",
    ";",
    ";;;",
    "--",
    "-- SELECT 1",
    "/* SELECT 1 */",
    "/*",
    "\ufeff",
    "SELECT 1\x00",
    "SELECT '\x00'",
    "\x00SELECT 1",
    "SELECT '\ud800'",
    "SELECT '\udc80'",
    "\udfff",
    "SELECT 'open",
    'SELECT "open',
    "SELECT x'0'",
    "SELECT x'zz'",
    "SELECT ?",
    "SELECT :name, @name, $name",
    "SELECT 1 FROM",
    "no SQL at all",
    "```sql\nSELECT 1\n```",
    "<tool_call>",
    "SELECT 1e",
    "SELECT 1 WHERE",
    "\uff33ELECT 1",
    "SELECT 1\u2028FROM\u2029singer",
    "\x1b[2J",
]
