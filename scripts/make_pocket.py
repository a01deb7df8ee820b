"""Write pocket, the project's own small Spider-like text-to-SQL collection.

    python scripts/make_pocket.py            # write train_spider.json and dev.json
    python scripts/make_pocket.py --check    # exit 1 if the committed files differ
    python scripts/make_pocket.py --show 40  # print random questions with golds and results

The databases are the hand-written scripts `nl2sql_trl/pocket/<db_id>.sql`. This file holds, for
each of them, the English for its tables, columns and foreign keys (`DATABASES`), and templates
that are shared by all databases: a function that draws a question and its gold query. Train and
dev have no database in common; the first wording of a template is for train only and the wordings
given as `dev` are for dev only. The output is a function of this file and the `.sql` files: every
database has its own seeded random generator, so a new database changes no other one's rows.

Every row is checked while it is drawn (`problem`): the gold runs on a read-only database, its
result has a row and is not only NULLs, every condition and every side of a set operation matters
for the result, the sort order has no ties (so no LIMIT cuts a tie), the question is new for its
database, and the hardness is the template's, by the project's own parser. Empty results come only
from the template `nothing_matches`, which has a fixed quota (about 2%).

Not here: values with quotes inside (they are in the databases, but the official Spider tokenizer
cannot read them in a query), IS NULL, secondary sort keys, and everything else that the official
Spider parser rejects.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from nl2sql_trl.spider import Schema, SqlParseError, hardness

POCKET = Path(__file__).resolve().parents[1] / "nl2sql_trl" / "pocket"
SEED = 23
LEVELS = ("easy", "medium", "hard", "extra")
# Rows a database and level: the proportions of Spider dev (24, 43, 17 and 16%).
QUOTA = {"train": (29, 52, 20, 19), "dev": (16, 29, 11, 10)}
EMPTY_QUOTA = {"train": 2, "dev": 1}


# --------------------------------------------------------------------------------------------
# What the English of a database consists of
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cat:
    """A text column with few values. `verb` is what several rows do: "live in {}"."""

    column: str
    noun: str
    plural: str
    verb: str = ""


@dataclass(frozen=True)
class Num:
    """A column to compare and sort by: a number, a year or an ISO date.

    `above` and `below` are verb phrases ("are older than {} years"); `most` and `least` wrap a
    singular or plural noun ("oldest {}"). `step` rounds thresholds; `total` allows sums.
    """

    column: str
    noun: str
    above: str
    below: str
    most: str = ""
    least: str = ""
    step: int = 1
    total: bool = False
    kind: str = "number"

    def superlative(self, top: bool, noun: str) -> str:
        """Return the phrase for the row(s) with the largest or smallest value."""
        pattern = self.most if top else self.least
        return (pattern or f"{{}} with the {self.extreme(top)} {self.noun}").format(noun)

    def extreme(self, top: bool) -> str:
        """Return the adjective for the largest or smallest value."""
        if self.kind != "number":
            return "latest" if top else "earliest"
        return "highest" if top else "lowest"


@dataclass(frozen=True)
class Table:
    """A table: its nouns, its relative pronoun, and the column that names a row (or none)."""

    name: str
    noun: str
    plural: str
    who: str
    label: tuple[str, str, str] | None  # column, noun, plural noun
    cats: tuple[Cat, ...] = ()
    nums: tuple[Num, ...] = ()

    @property
    def nouns(self) -> dict[str, str]:
        """Map every column that a question may ask for to its noun."""
        named = {self.label[0]: self.label[1]} if self.label else {}
        columns: tuple[Cat | Num, ...] = (*self.cats, *self.nums)
        return named | {column.column: column.noun for column in columns}


@dataclass(frozen=True)
class Link:
    """A foreign key: children `belong` to a parent; parents `have`, one `has`, some `lack`."""

    child: str
    parent: str
    belong: str
    have: str = "have"
    has: str = "has"
    lack: str = "do not have any"


@dataclass(frozen=True)
class Bridge:
    """Two parents joined through a table: left rows `verb` right rows, and `back`."""

    table: str
    left: str
    right: str
    verb: str
    back: str


@dataclass(frozen=True)
class Database:
    """The annotation of one database."""

    db_id: str
    split: str
    tables: tuple[Table, ...]
    links: tuple[Link, ...]
    bridges: tuple[Bridge, ...] = ()


NAME = ("name", "name", "names")
TITLE = ("title", "title", "titles")


def age() -> Num:
    """Return the annotation of an age in years."""
    years = "are {} than {{}} years"
    return Num("age", "age", years.format("older"), years.format("younger"), "oldest {}",
               "youngest {}")  # fmt: skip


def dollars(column: str, noun: str, step: int, *, past: bool = False, most: bool = True) -> Num:
    """Return the annotation of a price: "cost more than {} dollars"."""
    cheap = ("most expensive {}", "cheapest {}") if most else ("", "")
    return Num(column, noun, "cost more than {} dollars", "cost less than {} dollars", *cheap,
               step=step, total=True)  # fmt: skip


def count_of(column: str, things: str, step: int = 1, verb: str = "have") -> Num:
    """Return the annotation of a number of things: "have more than {} pages"."""
    return Num(column, f"number of {things}", f"{verb} more than {{}} {things}",
               f"{verb} fewer than {{}} {things}", f"{{}} with the most {things}",
               f"{{}} with the fewest {things}", step, True)  # fmt: skip


def when(column: str, noun: str, verb: str, kind: str = "date") -> Num:
    """Return the annotation of a date or a year: "were hired after {}"."""
    return Num(column, noun, f"{verb} after {{}}", f"{verb} before {{}}", kind=kind)


# fmt: off
DATABASES = (
    Database("pet_clinic", "train", (
        Table("owner", "owner", "owners", "who", NAME,
              (Cat("city", "city", "cities", "live in {}"),)),
        Table("pet", "pet", "pets", "that", NAME, (Cat("species", "species", "species"),), (
            age(),
            Num("weight", "weight", "weigh more than {} kg", "weigh less than {} kg", "heaviest {}",
                "lightest {}"))),
        Table("visit", "visit", "visits", "that", None, (Cat("reason", "reason", "reasons"),), (
            when("visit_date", "visit date", "took place"),
            dollars("cost", "cost", 10))),
    ), (
        Link("pet", "owner", "belong to", "own", "owns", "do not own any"),
        Link("visit", "pet", "were made for"),
    )),
    Database("library", "train", (
        Table("author", "author", "authors", "who", NAME,
              (Cat("country", "country", "countries", "come from {}"),),
              (when("birth_year", "birth year", "were born", "year"),)),
        Table("book", "book", "books", "that", TITLE,
              (Cat("genre", "genre", "genres", "belong to the genre {}"),), (
            count_of("pages", "pages", 50),
            when("publish_year", "publication year", "were published", "year"))),
    ), (
        Link("book", "author", "were written by", "wrote", "wrote", "did not write any"),
    )),
    Database("music_festival", "train", (
        Table("band", "band", "bands", "that", NAME,
              (Cat("genre", "genre", "genres", "play {}"),
               Cat("country", "country", "countries", "come from {}")),
              (count_of("members", "members"),)),
        Table("stage", "stage", "stages", "that", NAME,
              (Cat("area", "area", "areas", "are located in the area {}"),),
              (Num("capacity", "capacity", "hold more than {} people", "hold fewer than {} people",
                   "largest {}", "smallest {}", 500, True),)),
        Table("performance", "performance", "performances", "that", None, (), (
            when("show_date", "show date", "took place"),
            Num("audience", "audience", "drew more than {} people", "drew fewer than {} people",
                "{} with the largest audience", "{} with the smallest audience", 500, True))),
    ), (
        Link("performance", "band", "were given by", "gave", "gave", "did not give any"),
        Link("performance", "stage", "took place on", "hosted", "hosted", "did not host any"),
    ), (Bridge("performance", "band", "stage", "played on", "hosted"),)),
    Database("hospital", "train", (
        Table("department", "department", "departments", "that", NAME,
              (Cat("building", "building", "buildings", "are in the {}"),),
              (count_of("beds", "beds", 5),
               Num("budget", "budget", "have a budget above {} dollars",
                   "have a budget below {} dollars", step=100000, total=True))),
        Table("doctor", "doctor", "doctors", "who", NAME,
              (Cat("degree", "degree", "degrees", "hold the degree {}"),),
              (Num("salary", "salary", "earn more than {} dollars", "earn less than {} dollars",
                   "best paid {}", "worst paid {}", 5000, True),
               when("hire_date", "hire date", "were hired"))),
    ), (
        Link("doctor", "department", "work in", "employ", "employs", "do not employ any"),
    )),
    Database("air_travel", "train", (
        Table("airport", "airport", "airports", "that", NAME,
              (Cat("country", "country", "countries", "are located in {}"),),
              (count_of("runways", "runways"),
               when("opened_year", "opening year", "were opened", "year"))),
        Table("flight", "flight", "flights", "that",
              ("flight_number", "flight number", "flight numbers"),
              (Cat("airline", "airline", "airlines", "are operated by {}"),
               Cat("destination", "destination", "destinations", "go to {}")),
              (Num("distance", "distance", "are longer than {} km", "are shorter than {} km",
                   "longest {}", "shortest {}", 100),
               dollars("price", "price", 10))),
    ), (
        Link("flight", "airport", "depart from", "serve", "serves", "do not serve any"),
    )),
    Database("online_shop", "train", (
        Table("customer", "customer", "customers", "who", NAME,
              (Cat("city", "city", "cities", "live in {}"),), (age(),)),
        Table("product", "product", "products", "that", NAME,
              (Cat("category", "category", "categories", "belong to the category {}"),),
              (dollars("price", "price", 5),
               Num("stock", "stock", "have a stock of more than {} units",
                   "have a stock of fewer than {} units", step=10, total=True))),
        Table("purchase", "purchase", "purchases", "that", None, (),
              (Num("quantity", "quantity", "have a quantity above {}", "have a quantity below {}",
                   "largest {}", "smallest {}", total=True),
               when("purchase_date", "purchase date", "were made"))),
    ), (
        Link("purchase", "customer", "were made by", "made", "made", "did not make any"),
        Link("purchase", "product", "were for"),
    ), (Bridge("purchase", "customer", "product", "bought", "were bought by"),)),
    Database("football_league", "train", (
        Table("team", "team", "teams", "that", NAME,
              (Cat("city", "city", "cities", "are based in {}"),),
              (when("founded_year", "founding year", "were founded", "year"),
               Num("capacity", "stadium capacity", "have a stadium capacity above {}",
                   "have a stadium capacity below {}", step=1000))),
        Table("player", "player", "players", "who", NAME,
              (Cat("position", "position", "positions"),
               Cat("country", "country", "countries", "come from {}")),
              (age(), count_of("goals", "goals", verb="scored"))),
    ), (
        Link("player", "team", "play for"),
    )),
    Database("school", "train", (
        Table("teacher", "teacher", "teachers", "who", NAME,
              (Cat("subject", "subject", "subjects", "teach {}"),),
              (Num("salary", "salary", "earn more than {} dollars", "earn less than {} dollars",
                   "best paid {}", "worst paid {}", 1000, True),)),
        Table("course", "course", "courses", "that", TITLE,
              (Cat("room", "room", "rooms", "take place in the room {}"),),
              (count_of("credits", "credits", verb="give"),)),
        Table("student", "student", "students", "who", NAME,
              (Cat("town", "town", "towns", "live in {}"),), (age(),)),
        Table("enrollment", "enrollment", "enrollments", "that", None, (),
              (Num("score", "score", "have a score above {}", "have a score below {}", step=5),)),
    ), (
        Link("course", "teacher", "are taught by", "teach", "teaches", "do not teach any"),
        Link("enrollment", "student", "were made by"),
        Link("enrollment", "course", "are for"),
    ), (Bridge("enrollment", "student", "course", "take", "are taken by"),)),
    Database("art_museums", "train", (
        Table("museum", "museum", "museums", "that", NAME,
              (Cat("city", "city", "cities", "are located in {}"),),
              (when("opened_year", "opening year", "opened", "year"),
               count_of("visitors", "visitors", 10000, "had"))),
        Table("painting", "painting", "paintings", "that", TITLE,
              (Cat("artist", "artist", "artists", "were painted by {}"),
               Cat("style", "style", "styles")),
              (when("year", "year", "were painted", "year"),
               dollars("price", "price", 10000))),
    ), (
        Link("painting", "museum", "hang in", "own", "owns", "do not own any"),
    )),
    Database("real_estate", "train", (
        Table("agent", "agent", "agents", "who", NAME,
              (Cat("office", "office", "offices", "work in the office {}"),),
              (Num("experience", "experience", "have more than {} years of experience",
                   "have less than {} years of experience", "most experienced {}",
                   "least experienced {}"),)),
        Table("house", "house", "houses", "that", ("address", "address", "addresses"),
              (Cat("district", "district", "districts", "are in {}"),),
              (count_of("bedrooms", "bedrooms"),
               Num("area", "area", "are larger than {} square meters",
                   "are smaller than {} square meters", "largest {}", "smallest {}", 10, True),
               dollars("price", "price", 10000))),
    ), (
        Link("house", "agent", "are sold by", "sell", "sells", "do not sell any"),
    )),
    Database("farm_machines", "train", (
        Table("farm", "farm", "farms", "that", NAME,
              (Cat("region", "region", "regions", "are in {}"),),
              (Num("hectares", "number of hectares", "have more than {} hectares",
                   "have fewer than {} hectares", "largest {}", "smallest {}", 10, True),
               count_of("workers", "workers"))),
        Table("machine", "machine", "machines", "that", ("model", "model", "models"),
              (Cat("type", "type", "types"),
               Cat("brand", "brand", "brands", "are made by {}")),
              (Num("power", "power", "have a power above {} horsepower",
                   "have a power below {} horsepower", "most powerful {}", "least powerful {}", 10),
               dollars("price", "price", 1000))),
    ), (
        Link("machine", "farm", "belong to", "own", "owns", "do not own any"),
    )),
    Database("film_studio", "train", (
        Table("director", "director", "directors", "who", NAME,
              (Cat("nationality", "nationality", "nationalities", "are {}"),),
              (when("birth_year", "birth year", "were born", "year"),)),
        Table("film", "film", "films", "that", TITLE,
              (Cat("genre", "genre", "genres", "belong to the genre {}"),),
              (Num("length", "length", "are longer than {} minutes", "are shorter than {} minutes",
                   "longest {}", "shortest {}", 5),
               Num("budget", "budget", "have a budget above {} dollars",
                   "have a budget below {} dollars", step=100000, total=True))),
        Table("screening", "screening", "screenings", "that", None,
              (Cat("city", "city", "cities", "took place in {}"),),
              (when("screening_date", "screening date", "took place"),
               count_of("tickets", "tickets", 50, "sold"))),
    ), (
        Link("film", "director", "were directed by", "directed", "directed", "did not direct any"),
        Link("screening", "film", "were for"),
    )),
    Database("restaurant_guide", "dev", (
        Table("restaurant", "restaurant", "restaurants", "that", NAME,
              (Cat("city", "city", "cities", "are located in {}"),
               Cat("cuisine", "cuisine", "cuisines", "serve {} food")),
              (count_of("seats", "seats", 5),)),
        Table("dish", "dish", "dishes", "that", NAME, (Cat("course", "course", "courses"),),
              (dollars("price", "price", 1), count_of("calories", "calories", 50))),
        Table("review", "review", "reviews", "that", None, (),
              (replace(count_of("stars", "stars"), total=False),
               when("review_date", "review date", "were written"))),
    ), (
        Link("dish", "restaurant", "are offered by", "offer", "offers", "do not offer any"),
        Link("review", "restaurant", "are about"),
    )),
    Database("space_missions", "dev", (
        Table("agency", "agency", "agencies", "that", NAME,
              (Cat("country", "country", "countries", "are based in {}"),),
              (when("founded_year", "founding year", "were founded", "year"),
               count_of("staff", "staff members", 100))),
        Table("mission", "mission", "missions", "that", NAME,
              (Cat("destination", "destination", "destinations", "went to {}"),),
              (when("launch_date", "launch date", "were launched"),
               Num("duration", "duration", "lasted more than {} days", "lasted less than {} days",
                   "longest {}", "shortest {}", 5),
               Num("cost", "cost", "cost more than {} million dollars",
                   "cost less than {} million dollars", "most expensive {}", "cheapest {}", 10,
                   True))),
    ), (
        Link("mission", "agency", "were run by", "ran", "ran", "did not run any"),
    )),
    Database("fitness_club", "dev", (
        Table("trainer", "trainer", "trainers", "who", NAME,
              (Cat("specialty", "specialty", "specialties"),),
              (Num("experience", "experience", "have more than {} years of experience",
                   "have less than {} years of experience", "most experienced {}",
                   "least experienced {}"),
               Num("hourly_rate", "hourly rate", "charge more than {} dollars per hour",
                   "charge less than {} dollars per hour", step=5))),
        Table("member", "member", "members", "who", NAME,
              (Cat("district", "district", "districts", "live in {}"),
               Cat("plan", "plan", "plans", "have the {} plan")),
              (age(), when("join_date", "join date", "joined"))),
    ), (
        Link("member", "trainer", "train with", "coach", "coaches", "do not coach any"),
    )),
    Database("hotel_booking", "dev", (
        Table("hotel", "hotel", "hotels", "that", NAME,
              (Cat("city", "city", "cities", "are located in {}"),),
              (count_of("rooms", "rooms", 10),
               when("opened_year", "opening year", "opened", "year"))),
        Table("guest", "guest", "guests", "who", NAME,
              (Cat("country", "country", "countries", "come from {}"),), (age(),)),
        Table("booking", "booking", "bookings", "that", None, (),
              (Num("nights", "number of nights", "last more than {} nights",
                   "last fewer than {} nights", "longest {}", "shortest {}", 1, True),
               dollars("total_cost", "cost", 20),
               when("check_in", "check-in date", "start"))),
    ), (
        Link("booking", "hotel", "are for"),
        Link("booking", "guest", "were made by", "made", "made", "did not make any"),
    ), (Bridge("booking", "guest", "hotel", "stayed at", "hosted"),)),
)
# fmt: on


# --------------------------------------------------------------------------------------------
# Queries
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Select:
    """A gold query in parts, so that the checks can leave parts out."""

    columns: str
    tables: str
    where: tuple[str, ...] = ()
    connector: str = "AND"
    group: str = ""
    having: str = ""
    order: str = ""
    limit: int = 0
    set_op: tuple[str, Select] | None = None

    def __str__(self) -> str:
        """Return the SQL text in the house style."""
        sql = f"SELECT {self.columns} FROM {self.tables}"
        if self.where:
            sql += " WHERE " + f" {self.connector} ".join(self.where)
        if self.group:
            sql += f" GROUP BY {self.group}"
        if self.having:
            sql += f" HAVING {self.having}"
        if self.order:
            sql += f" ORDER BY {self.order}"
        if self.limit:
            sql += f" LIMIT {self.limit}"
        if self.set_op:
            sql += f" {self.set_op[0]} {self.set_op[1]}"
        return sql


@dataclass(frozen=True)
class Clause:
    """A condition in English and SQL. `verb` is empty where only the relative form exists."""

    relative: str  # "who are older than 30 years", "whose age is at least 30"
    verb: str  # "are older than 30 years"
    sql: str
    column: str = ""


@dataclass(frozen=True)
class Draft:
    """A gold with its possible questions."""

    query: Select
    wordings: tuple[str, ...]
    dev: tuple[str, ...] = ()


class NoDraft(Exception):
    """This template has nothing to say about what was drawn; draw again."""


def quoted(text: str) -> str:
    """Return a SQL string literal; only for texts that the official tokenizer can read."""
    if "'" in text or '"' in text:
        raise NoDraft
    return f"'{text}'"


def plain(value: float | str) -> str:
    """Write a value as a question and a query write it: 45, not 45.0."""
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


class Source:
    """Draws tables, columns, values and conditions of one database."""

    def __init__(self, database: Database) -> None:
        """Build the database in memory and close it for writing."""
        self.db = database
        self.rng = random.Random(f"{SEED} {database.db_id}")
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript((POCKET / f"{database.db_id}.sql").read_text("utf-8"))
        self.connection.execute("PRAGMA query_only = ON")
        self.by_name = {table.name: table for table in database.tables}

    def run(self, query: Select | str) -> list[tuple[object, ...]]:
        """Return all rows."""
        return self.connection.execute(str(query)).fetchall()

    def values(self, table: Table, column: str) -> list[Any]:
        """Return a column without its NULLs, sorted."""
        rows = self.run(f"SELECT {column} FROM {table.name} WHERE {column} IS NOT NULL")
        return sorted(row[0] for row in rows)

    def complete(self, table: Table, column: str) -> bool:
        """Say whether a column has no NULL."""
        return not self.run(f"SELECT 1 FROM {table.name} WHERE {column} IS NULL")

    def unique(self, table: Table, column: str) -> bool:
        """Say whether no value comes twice."""
        values = self.values(table, column)
        return len(set(values)) == len(values)

    def table(self, *, named: bool = False) -> Table:
        """Draw a table; `named` ones have a name or title."""
        return self.rng.choice([t for t in self.db.tables if t.label or not named])

    def cat(self, table: Table) -> Cat:
        """Draw a text column without NULLs, so that groups and != are not about NULL."""
        cats = [cat for cat in table.cats if self.complete(table, cat.column)]
        if not cats:
            raise NoDraft
        return self.rng.choice(cats)

    def num(self, table: Table, *, number: bool = False, total: bool = False) -> Num:
        """Draw a column to compare by; a `number` is no year or date, `total` can be summed."""
        nums = [
            num
            for num in table.nums
            if (num.kind == "number" or not (number or total)) and (num.total or not total)
        ]
        if not nums:
            raise NoDraft
        return self.rng.choice(nums)

    def label(self, table: Table) -> tuple[str, str, str]:
        """Return column, noun and plural of what names a row."""
        if table.label is None:
            raise NoDraft
        return table.label

    def one_name(self, table: Table) -> str:
        """Draw a name that belongs to one row only."""
        names = self.values(table, self.label(table)[0])
        name = self.rng.choice([name for name in names if names.count(name) == 1])
        quoted(name)
        return str(name)

    def other_column(self, table: Table, *used: str) -> str:
        """Draw a column that has a noun and was not used yet."""
        columns = [column for column in table.nouns if column not in used]
        if not columns:
            raise NoDraft
        return self.rng.choice(columns)

    def link(self) -> tuple[Link, Table, Table]:
        """Draw a foreign key with its child and parent table."""
        link = self.rng.choice(self.db.links)
        return link, self.by_name[link.child], self.by_name[link.parent]

    def threshold(self, table: Table, num: Num) -> str:
        """Draw a value inside the range of a column, rounded to something a person would say."""
        values = sorted(set(self.values(table, num.column)))
        value = self.rng.choice(values[len(values) // 6 : -(len(values) // 6) or None])
        if num.kind == "date":
            return f"{value[:8]}01"
        if num.kind == "number" and num.step > 1:
            value = round(value / num.step) * num.step
        return plain(value)

    def compare(self, table: Table, prefix: str = "", num: Num | None = None) -> Clause:
        """Draw a comparison with a number, a year or a date."""
        num = num or self.num(table)
        value = self.threshold(table, num)
        literal = quoted(value) if num.kind == "date" else value
        column = prefix + num.column
        kind = self.rng.choices(
            ("above", "below", "least", "most", "between", "equal"), (8, 8, 2, 2, 3, 2)
        )[0]
        if kind in ("above", "below"):
            verb = (num.above if kind == "above" else num.below).format(value)
            sign = ">" if kind == "above" else "<"
            return Clause(f"{table.who} {verb}", verb, f"{column} {sign} {literal}", num.column)
        whose = f"whose {num.noun} is"
        if kind == "between":
            low, high = sorted((value, self.threshold(table, num)), key=_as_number)
            if low == high:
                raise NoDraft
            ends = (quoted(low), quoted(high)) if num.kind == "date" else (low, high)
            words = f"{whose} between {low} and {high}"
            return Clause(words, "", f"{column} BETWEEN {ends[0]} AND {ends[1]}", num.column)
        if kind == "equal":
            value = plain(self.rng.choice(self.values(table, num.column)))
            literal = quoted(value) if num.kind == "date" else value
            return Clause(f"{whose} {value}", "", f"{column} = {literal}", num.column)
        if num.kind != "number":
            raise NoDraft
        sign, words = (">=", "at least") if kind == "least" else ("<=", "at most")
        return Clause(f"{whose} {words} {value}", "", f"{column} {sign} {literal}", num.column)

    def is_value(self, table: Table, prefix: str = "", cat: Cat | None = None) -> Clause:
        """Draw an (in)equality with a value of a text column."""
        cat = cat or self.cat(table)
        value = self.rng.choice(self.values(table, cat.column))
        literal = quoted(value)
        if self.rng.random() < 0.12:
            words = f"whose {cat.noun} is not {value}"
            return Clause(words, "", f"{prefix}{cat.column} != {literal}", cat.column)
        if cat.verb and self.rng.random() < 0.8:
            verb = cat.verb.format(value)
            words = f"{table.who} {verb}"
        else:
            verb, words = "", f"whose {cat.noun} is {value}"
        return Clause(words, verb, f"{prefix}{cat.column} = {literal}", cat.column)

    def clause(self, table: Table, prefix: str = "") -> Clause:
        """Draw a condition on a table's own columns."""
        if table.cats and (not table.nums or self.rng.random() < 0.5):
            return self.is_value(table, prefix)
        return self.compare(table, prefix)

    def two_clauses(self, table: Table, prefix: str = "") -> tuple[Clause, Clause]:
        """Draw conditions on two different columns."""
        first, second = self.clause(table, prefix), self.clause(table, prefix)
        if first.column == second.column:
            raise NoDraft
        return first, second

    def two_kinds(self, table: Table, prefix: str = "") -> tuple[Clause, Clause]:
        """Draw conditions for two kinds of rows: on two columns, or two values of a text column."""
        first, second = self.clause(table, prefix), self.clause(table, prefix)
        same = first.column == second.column
        if same and any(num.column == first.column for num in table.nums):
            raise NoDraft
        return first, second

    def parent_clause(self, link: Link, child: Table, parent: Table, alias: str = "T2") -> Clause:
        """Draw a condition on children that is about their parent."""
        if parent.label and self.rng.random() < 0.35:
            name = self.one_name(parent)
            verb = f"{link.belong} the {parent.noun} {name}"
            sql = f"{alias}.{parent.label[0]} = {quoted(name)}"
        else:
            inner = self.clause(parent, f"{alias}.")
            verb = f"{link.belong} {parent.plural} {inner.relative}"
            sql = inner.sql
        return Clause(f"{child.who} {verb}", verb, sql)


def _as_number(text: str) -> tuple[float, str]:
    """Sort key for thresholds: numbers by size, dates by text."""
    return (0.0, text) if "-" in text else (float(text), text)


def joined(child: Table, parent: Table) -> str:
    """Return the FROM text of a child (T1) with its parent (T2)."""
    key = f"{parent.name}_id"
    return f"{child.name} AS T1 JOIN {parent.name} AS T2 ON T1.{key} = T2.{key}"


def and_also(first: Clause, second: Clause, word: str = "and") -> str:
    """Join two relative clauses; "who A and B" where both begin with the same pronoun."""
    pronoun, _, rest = second.relative.partition(" ")
    same = pronoun != "whose" and first.relative.startswith(pronoun + " ")
    return f"{first.relative} {word} {rest if same else second.relative}"


# --------------------------------------------------------------------------------------------
# Templates. Each draws one question and gold; `add(level, weight)` says how hard and how often.
# --------------------------------------------------------------------------------------------

Template = Callable[[Source], Draft]
TEMPLATES: dict[str, list[tuple[Template, int]]] = {level: [] for level in LEVELS}


def add(level: str, weight: int = 2) -> Callable[[Template], Template]:
    """Register a template under its hardness."""

    def register(template: Template) -> Template:
        TEMPLATES[level].append((template, weight))
        return template

    return register


def counting(table: Table, clause: Clause) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wordings (shared, dev) that ask how many rows meet a condition."""
    first = (
        f"How many {table.plural} {clause.verb}?"
        if clause.verb
        else f"What is the number of {table.plural} {clause.relative}?"
    )
    rest = (
        f"Count the {table.plural} {clause.relative}.",
        f"What is the number of {table.plural} {clause.relative}?",
        first,
    )
    return (f"Count the number of {table.plural} {clause.relative}.", *rest), (
        f"Find the number of {table.plural} {clause.relative}.",
    )


def naming(label: tuple[str, str, str], who: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wordings (shared, dev) that ask for the names of `who`."""
    return (
        f"Give the {label[2]} of {who}.",
        f"What are the {label[2]} of {who}?",
        f"List the {label[2]} of {who}.",
        f"Show the {label[2]} of {who}.",
    ), (f"Find the {label[2]} of {who}.",)


def naming_among(
    label: tuple[str, str, str], who: str, relative: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Like `naming`, with a second condition that could be read as being about something else."""
    return (
        f"Among {who}, give the {label[2]} of those {relative}.",
        f"Among {who}, what are the {label[2]} of those {relative}?",
        f"Among {who}, list the {label[2]} of those {relative}.",
        f"Among {who}, show the {label[2]} of those {relative}.",
    ), (f"Among {who}, find the {label[2]} of those {relative}.",)


def showing(nouns: str, who: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wordings (shared, dev) that ask for several columns of `who`."""
    return (
        f"Give the {nouns} of {who}.",
        f"Show the {nouns} of {who}.",
        f"List the {nouns} of {who}.",
        f"For {who}, show the {nouns}.",
    ), (f"Return the {nouns} of {who}.",)


def asking(what: str, verb: str = "is") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wordings (shared, dev) that ask for one thing."""
    return (f"Give the {what}.", f"What {verb} the {what}?", f"Show the {what}."), (
        f"Find the {what}.",
    )


def choosing(noun: str, which: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wordings (shared, dev) that ask for the group or groups that do something."""
    return (
        f"Find the {noun} that {which}.",
        f"Which {noun} {which}?",
        f"Show the {noun} that {which}.",
    ), (f"List the {noun} that {which}.",)


def draft(query: Select, wordings: tuple[tuple[str, ...], tuple[str, ...]]) -> Draft:
    """Put a gold and its wordings together."""
    return Draft(query, *wordings)


def aggregate(s: Source, table: Table, prefix: str = "") -> tuple[str, str]:
    """Draw an aggregate of a column: its English ("the average age") and SQL."""
    num = s.num(table)
    function = s.rng.choice(["avg", "max", "min"] + ["sum"] * num.total)
    if num.kind != "number":
        function = s.rng.choice(["max", "min"])
    words = {
        "avg": f"average {num.noun}",
        "sum": f"total {num.noun}",
        "max": f"{num.extreme(True)} {num.noun}",
        "min": f"{num.extreme(False)} {num.noun}",
    }[function]
    if num.kind == "number" and function in ("max", "min") and s.rng.random() < 0.4:
        words = f"{'maximum' if function == 'max' else 'minimum'} {num.noun}"
    return words, f"{function}({prefix}{num.column})"


def direction(s: Source, num: Num) -> tuple[str, str]:
    """Draw a sort direction: its English and SQL suffix."""
    if s.rng.random() < 0.5:
        ends = ("latest", "earliest") if num.kind != "number" else ("highest", "lowest")
        words = (f"in descending order of {num.noun}", f"from the {ends[0]} to the {ends[1]} "
                 f"{num.noun}")  # fmt: skip
        return s.rng.choice(words), " DESC"
    ends = ("earliest", "latest") if num.kind != "number" else ("lowest", "highest")
    words = (f"in ascending order of {num.noun}", f"from the {ends[0]} to the {ends[1]} {num.noun}")
    return s.rng.choice(words), " ASC"


# ---- easy


@add("easy", 1)
def count_all(s: Source) -> Draft:
    """Count a table."""
    table = s.table()
    return Draft(
        Select("count(*)", table.name),
        (
            f"Count all {table.plural}.",
            f"How many {table.plural} are there?",
            f"What is the total number of {table.plural}?",
        ),
        (f"How many {table.plural} are there in total?",),
    )


@add("easy", 5)
def count_where(s: Source) -> Draft:
    """Count the rows that meet a condition."""
    table = s.table()
    clause = s.clause(table)
    return draft(Select("count(*)", table.name, (clause.sql,)), counting(table, clause))


@add("easy", 6)
def list_where(s: Source) -> Draft:
    """List the names of the rows that meet a condition."""
    table = s.table(named=True)
    clause = s.clause(table)
    label = s.label(table)
    query = Select(label[0], table.name, (clause.sql,))
    return draft(query, naming(label, f"{table.plural} {clause.relative}"))


@add("easy", 3)
def column_of_one(s: Source) -> Draft:
    """Look up a column of a named row."""
    table = s.table(named=True)
    label = s.label(table)
    name, column = s.one_name(table), s.other_column(table, label[0])
    noun = table.nouns[column]
    return Draft(
        Select(column, table.name, (f"{label[0]} = {quoted(name)}",)),
        *asking(f"{noun} of the {table.noun} {name}"),
    )


@add("easy", 1)
def list_all(s: Source) -> Draft:
    """List one column of a whole table."""
    table = s.table()
    column = s.other_column(table)
    noun = table.nouns[column]
    return Draft(
        Select(column, table.name),
        (f"Give the {noun} of every {table.noun}.", f"Show the {noun} of each {table.noun}.",
         f"List the {noun} of every {table.noun}."),
        (f"Return the {noun} of each {table.noun}.",),
    )  # fmt: skip


@add("easy", 2)
def distinct_values(s: Source) -> Draft:
    """List the distinct values of a column."""
    table = s.table()
    cat = s.cat(table)
    return Draft(
        Select(f"DISTINCT {cat.column}", table.name),
        (
            f"Give the distinct {cat.plural} of the {table.plural}.",
            f"What are the different {cat.plural} of the {table.plural}?",
            f"List all distinct {cat.plural} of the {table.plural}.",
        ),
        (f"Show the different {cat.plural} of the {table.plural}.",),
    )


@add("easy", 2)
def count_distinct(s: Source) -> Draft:
    """Count the distinct values of a column, of all rows or of some."""
    table = s.table()
    cat = s.cat(table)
    where: tuple[str, ...] = ()
    of = f"the {table.plural}"
    if s.rng.random() < 0.5:
        clause = s.clause(table)
        where, of = (clause.sql,), f"{table.plural} {clause.relative}"
        if clause.column == cat.column:
            raise NoDraft
    return Draft(
        Select(f"count(DISTINCT {cat.column})", table.name, where),
        (
            f"Count the distinct {cat.plural} of {of}.",
            f"What is the number of different {cat.plural} of {of}?",
            f"Count the different {cat.plural} of {of}.",
        ),
        (f"How many different {cat.plural} do {of} have?",),
    )


@add("easy", 5)
def one_aggregate(s: Source) -> Draft:
    """Average, total, maximum or minimum, of all rows or of some."""
    table = s.table()
    words, sql = aggregate(s, table)
    where: tuple[str, ...] = ()
    of = f"all {table.plural}"
    if s.rng.random() < 0.6:
        clause = s.clause(table)
        where, of = (clause.sql,), f"{table.plural} {clause.relative}"
        if f"({clause.column})" in sql:
            raise NoDraft
    return Draft(
        Select(sql, table.name, where),
        *asking(f"{words} of {of}"),
    )


@add("easy", 3)
def sorted_names(s: Source) -> Draft:
    """Sort the names of a table by a number, or by themselves."""
    table = s.table(named=True)
    label = s.label(table)
    if s.rng.random() < 0.3:
        order, words = f"{label[0]} ASC", "in alphabetical order"
    else:
        num = s.num(table)
        words, suffix = direction(s, num)
        order = num.column + suffix
    who = f"all {table.plural}"
    return Draft(
        Select(label[0], table.name, order=order),
        (
            f"Give the {label[2]} of {who} {words}.",
            f"List the {label[2]} of {who} {words}.",
            f"Show the {label[2]} of {who}, sorted {words}.",
            f"What are the {label[2]} of {who}, listed {words}?",
        ),
        (f"Sort the {label[2]} of {who} {words}.",),
    )


@add("easy", 2)
def groups_with_many(s: Source) -> Draft:
    """Name the groups that have enough rows, or a high or low average."""
    table = s.table()
    cat = s.cat(table)
    if s.rng.random() < 0.6:
        number = s.rng.choice([2, 3, 4])
        words, sign = s.rng.choice([("at least", ">="), ("more than", ">")])
        having, has = f"count(*) {sign} {number}", f"{words} {number} {table.plural}"
    else:
        num = s.num(table, number=True)
        value = s.threshold(table, num)
        words, sign = s.rng.choice([("above", ">"), ("below", "<")])
        having = f"avg({num.column}) {sign} {value}"
        return Draft(
            Select(cat.column, table.name, group=cat.column, having=having),
            (
                f"For which {cat.plural} is the average {num.noun} of the {table.plural} {words} "
                f"{value}?",
                f"Show the {cat.plural} whose {table.plural} have an average {num.noun} {words} "
                f"{value}.",
            ),
            (f"Find the {cat.plural} where the average {num.noun} of the {table.plural} is {words} "
             f"{value}.",),
        )  # fmt: skip
    return Draft(
        Select(cat.column, table.name, group=cat.column, having=having),
        *choosing(cat.plural, f"have {has}"),
    )


def nothing_matches(s: Source) -> Draft:
    """List the rows beyond the largest or smallest value: the result is empty on purpose."""
    table = s.table(named=True)
    num, label = s.num(table, number=True), s.label(table)
    values = s.values(table, num.column)
    if s.rng.random() < 0.5 or min(values) <= num.step:
        value = plain((max(values) // num.step + 2) * num.step)
        words, sql = num.above.format(value), f"{num.column} > {value}"
    else:
        value = plain(min(values) // num.step * num.step)
        words, sql = num.below.format(value), f"{num.column} < {value}"
    query = Select(label[0], table.name, (sql,))
    return draft(query, naming(label, f"{table.plural} {table.who} {words}"))


# ---- medium


@add("medium", 4)
def two_columns(s: Source) -> Draft:
    """Show two columns of the rows that meet a condition."""
    table = s.table()
    first = table.label[0] if table.label else s.other_column(table)
    second = s.other_column(table, first)
    clause = s.clause(table)
    if clause.column in (first, second):
        raise NoDraft
    nouns = f"{table.nouns[first]} and {table.nouns[second]}"
    query = Select(f"{first}, {second}", table.name, (clause.sql,))
    return draft(query, showing(nouns, f"{table.plural} {clause.relative}"))


@add("medium", 4)
def list_where_two(s: Source) -> Draft:
    """List the names of the rows that meet two conditions."""
    table = s.table(named=True)
    label = s.label(table)
    first, second = s.two_clauses(table)
    query = Select(label[0], table.name, (first.sql, second.sql))
    return draft(query, naming(label, f"{table.plural} {and_also(first, second)}"))


@add("medium", 2)
def count_where_two(s: Source) -> Draft:
    """Count the rows that meet two conditions."""
    table = s.table()
    first, second = s.two_clauses(table)
    both = Clause(and_also(first, second), "", "")
    query = Select("count(*)", table.name, (first.sql, second.sql))
    return draft(query, counting(table, both))


@add("medium", 3)
def either(s: Source) -> Draft:
    """List the names of the rows that meet one of two conditions."""
    table = s.table(named=True)
    label = s.label(table)
    if table.cats and s.rng.random() < 0.5:
        cat = s.cat(table)
        values = sorted(set(s.values(table, cat.column)))
        if len(values) < 3:
            raise NoDraft
        one, two = s.rng.sample(values, 2)
        relative = f"whose {cat.noun} is {one} or {two}"
        if cat.verb:
            relative = f"{table.who} {cat.verb.format(f'{one} or {two}')}"
        where = (f"{cat.column} = {quoted(one)}", f"{cat.column} = {quoted(two)}")
    else:
        first, second = s.two_clauses(table)
        relative, where = and_also(first, second, "or"), (first.sql, second.sql)
    query = Select(label[0], table.name, where, "OR")
    return draft(query, naming(label, f"{table.plural} {relative}"))


@add("medium", 4)
def superlative(s: Source) -> Draft:
    """Find the row with the largest or smallest value."""
    table = s.table()
    num, top = s.num(table), s.rng.random() < 0.6
    column = table.label[0] if table.label else s.other_column(table, num.column)
    if s.rng.random() < 0.2:
        column = s.other_column(table, num.column)
    noun, which = table.nouns[column], num.superlative(top, table.noun)
    order = num.column + (" DESC" if top else " ASC")
    return Draft(
        Select(column, table.name, order=order, limit=1),
        *asking(f"{noun} of the {which}"),
    )


@add("medium", 2)
def top_few(s: Source) -> Draft:
    """List the names of the first few by a number."""
    table = s.table(named=True)
    label, num, top = s.label(table), s.num(table), s.rng.random() < 0.6
    number = s.rng.choice([2, 3, 3, 3, 4, 5])
    who = f"the {number} {num.superlative(top, table.plural)}"
    words = f"{num.extreme(top)} {num.noun} first"
    order = num.column + (" DESC" if top else " ASC")
    return Draft(
        Select(label[0], table.name, order=order, limit=number),
        (
            f"Give the {label[2]} of {who}, {words}.",
            f"What are the {label[2]} of {who}, {words}?",
            f"List the {label[2]} of {who}, {words}.",
        ),
        (f"Find the {label[2]} of {who}, {words}.",),
    )


@add("medium", 3)
def like(s: Source) -> Draft:
    """List or count the rows whose name begins with, ends with or contains a text."""
    table = s.table(named=True)
    label = s.label(table)
    name = str(s.rng.choice(s.values(table, label[0])))
    kind = s.rng.choice(["starts", "ends", "contains"])
    if kind == "starts":
        text, pattern, words = name[0], f"{name[0]}%", f"starts with the letter {name[0]}"
    elif kind == "ends":
        text, pattern, words = name[-1], f"%{name[-1]}", f"ends with the letter {name[-1]}"
    else:
        # A whole word where there are several, else three letters.
        start = s.rng.randrange(1, max(2, len(name) - 2))
        text = s.rng.choice(name.split()) if " " in name else name[start : start + 3]
        pattern, words = f"%{text}%", f'contains "{text}"'
    # LIKE ignores case for ASCII letters; a text for which that matters would be a trap.
    glob = pattern.replace("%", "*")
    condition = f"{label[0]} LIKE {quoted(pattern)}"
    if not text.isalpha() or s.run(
        f"SELECT 1 FROM {table.name} WHERE ({condition}) != ({label[0]} GLOB {quoted(glob)})"
    ):
        raise NoDraft
    clause = Clause(f"whose {label[1]} {words}", "", condition)
    if s.rng.random() < 0.3:
        return draft(Select("count(*)", table.name, (condition,)), counting(table, clause))
    query = Select(label[0], table.name, (condition,))
    return draft(query, naming(label, f"{table.plural} {clause.relative}"))


@add("medium", 2)
def two_aggregates(s: Source) -> Draft:
    """Two aggregates of one column, or the count and an aggregate."""
    table = s.table()
    num = s.num(table)
    where: tuple[str, ...] = ()
    of = f"all {table.plural}"
    if s.rng.random() < 0.4:
        clause = s.clause(table)
        where, of = (clause.sql,), f"{table.plural} {clause.relative}"
        if clause.column == num.column:
            raise NoDraft
    pairs = [
        (f"{num.extreme(True)} and {num.extreme(False)} {num.noun}", "max", "min"),
        (f"{num.extreme(False)} and {num.extreme(True)} {num.noun}", "min", "max"),
    ]
    if num.kind == "number":
        pairs += [
            (f"average and maximum {num.noun}", "avg", "max"),
            (f"minimum and average {num.noun}", "min", "avg"),
        ]
    words, first, second = s.rng.choice(pairs)
    query = Select(f"{first}({num.column}), {second}({num.column})", table.name, where)
    return Draft(
        query,
        *asking(f"{words} of {of}", "are"),
    )


@add("medium", 3)
def group_count(s: Source) -> Draft:
    """Count the rows of every group."""
    table = s.table()
    cat = s.cat(table)
    return Draft(
        Select(f"{cat.column}, count(*)", table.name, group=cat.column),
        (
            f"For each {cat.noun}, give the {cat.noun} and the number of {table.plural}.",
            f"Show each {cat.noun} and its number of {table.plural}.",
            f"How many {table.plural} are there for each {cat.noun}? Show the {cat.noun} and the "
            "number.",
        ),
        (f"List every {cat.noun} together with its number of {table.plural}.",),
    )


@add("medium", 3)
def group_aggregate(s: Source) -> Draft:
    """An aggregate for every group."""
    table = s.table()
    cat = s.cat(table)
    words, sql = aggregate(s, table)
    return Draft(
        Select(f"{cat.column}, {sql}", table.name, group=cat.column),
        (
            f"For each {cat.noun}, give the {cat.noun} and the {words} of its {table.plural}.",
            f"Show each {cat.noun} and the {words} of its {table.plural}.",
            f"What is the {words} of the {table.plural} for each {cat.noun}? Show the {cat.noun} "
            f"and the {words}.",
        ),
        (f"List every {cat.noun} together with the {words} of its {table.plural}.",),
    )


@add("medium", 2)
def sorted_some(s: Source) -> Draft:
    """Sort the names of the rows that meet a condition."""
    table = s.table(named=True)
    label, num, clause = s.label(table), s.num(table), s.clause(table)
    words, suffix = direction(s, num)
    who = f"{table.plural} {clause.relative}"
    return Draft(
        Select(label[0], table.name, (clause.sql,), order=num.column + suffix),
        (
            f"Give the {label[2]} of {who}, {words}.",
            f"List the {label[2]} of {who}, {words}.",
            f"Show the {label[2]} of {who}, sorted {words}.",
        ),
        (f"What are the {label[2]} of {who}, sorted {words}?",),
    )


@add("medium", 2)
def groups_of_some(s: Source) -> Draft:
    """Name the groups with enough rows that meet a condition."""
    table = s.table()
    cat, clause = s.cat(table), s.clause(table)
    if clause.column == cat.column:
        raise NoDraft
    number = s.rng.choice([2, 2, 3])
    has = f"at least {number} {table.plural} {clause.relative}"
    query = Select(
        cat.column, table.name, (clause.sql,), group=cat.column, having=f"count(*) >= {number}"
    )
    return Draft(
        query,
        *choosing(cat.plural, f"have {has}"),
    )


@add("medium", 5)
def children_of_some(s: Source) -> Draft:
    """List children by a condition on their parent."""
    link, child, parent = s.link()
    label = s.label(child)
    clause = s.parent_clause(link, child, parent)
    query = Select(f"T1.{label[0]}", joined(child, parent), (clause.sql,))
    return draft(query, naming(label, f"{child.plural} {clause.relative}"))


@add("medium", 3)
def count_children(s: Source) -> Draft:
    """Count children by a condition on their parent."""
    link, child, parent = s.link()
    clause = s.parent_clause(link, child, parent)
    query = Select("count(*)", joined(child, parent), (clause.sql,))
    return draft(query, counting(child, clause))


@add("medium", 3)
def aggregate_children(s: Source) -> Draft:
    """An aggregate of children by a condition on their parent."""
    link, child, parent = s.link()
    clause = s.parent_clause(link, child, parent)
    words, sql = aggregate(s, child, "T1.")
    of = f"{child.plural} {clause.relative}"
    return Draft(
        Select(sql, joined(child, parent), (clause.sql,)),
        *asking(f"{words} of {of}"),
    )


@add("medium", 2)
def parent_of_one(s: Source) -> Draft:
    """Look up a column of the parent of a named child."""
    _, child, parent = s.link()
    name, column = s.one_name(child), s.other_column(parent)
    noun = parent.nouns[column]
    where = f"T1.{s.label(child)[0]} = {quoted(name)}"
    of = f"the {parent.noun} of the {child.noun} {name}"
    return Draft(
        Select(f"T2.{column}", joined(child, parent), (where,)),
        *asking(f"{noun} of {of}"),
    )


@add("medium", 2)
def child_and_parent(s: Source) -> Draft:
    """Show every child with its parent."""
    _, child, parent = s.link()
    first = child.label[0] if child.label else s.other_column(child)
    second = s.label(parent)[0]
    one = f"the {child.nouns[first]} of each {child.noun}"
    two = f"the {parent.nouns[second]} of its {parent.noun}"
    if child.who == "who":
        two = two.replace("its", "their")
    return Draft(
        Select(f"T1.{first}, T2.{second}", joined(child, parent)),
        (f"Give {one} and {two}.", f"Show {one} and {two}.", f"List {one} together with {two}."),
        (f"Return {one} and {two}.",),
    )


@add("medium", 3)
def children_per_parent(s: Source) -> Draft:
    """Count, or aggregate, the children of every parent."""
    link, child, parent = s.link()
    label = s.label(parent)
    words, sql = f"number of {child.plural}", "count(*)"
    if s.rng.random() < 0.4:
        aggregated, sql = aggregate(s, child, "T1.")
        words = f"{aggregated} of the {child.plural}"
    key = f"T2.{parent.name}_id"
    query = Select(f"T2.{label[0]}, {sql}", joined(child, parent), group=key)
    # The join leaves out parents without children; then the question has to say so.
    who = f"each {parent.noun} {parent.who} {link.has} {child.plural}"
    wordings: tuple[str, ...] = (f"For {who}, give the {label[1]} and the {words}.",
                                 f"For {who}, show the {label[1]} and the {words}.")  # fmt: skip
    if len(s.run(query)) == len(s.run(f"SELECT 1 FROM {parent.name}")):
        wordings += (
            f"For each {parent.noun}, show the {label[1]} and the {words}.",
            f"Show the {label[1]} of each {parent.noun} and the {words}.",
        )
    return Draft(query, wordings, (f"Return the {label[1]} and the {words} for {who}.",))


@add("medium", 3)
def parents_with_many(s: Source) -> Draft:
    """List the parents with enough children."""
    link, child, parent = s.link()
    label = s.label(parent)
    number = s.rng.choice([2, 2, 3, 3, 4])
    words, sign = s.rng.choice([("at least", ">="), ("more than", ">")])
    query = Select(
        f"T2.{label[0]}",
        joined(child, parent),
        group=f"T2.{parent.name}_id",
        having=f"count(*) {sign} {number}",
    )
    who = f"{parent.plural} {parent.who} {link.have} {words} {number} {child.plural}"
    return draft(query, naming(label, who))


@add("medium", 4)
def parents_of_some(s: Source) -> Draft:
    """List the parents that have a child that meets a condition."""
    link, child, parent = s.link()
    label, clause = s.label(parent), s.clause(child, "T1.")
    query = Select(f"DISTINCT T2.{label[0]}", joined(child, parent), (clause.sql,))
    who = f"{parent.plural} {parent.who} {link.have} {child.plural} {clause.relative}"
    return Draft(
        query,
        (
            f"Give the distinct {label[2]} of {who}.",
            f"What are the different {label[2]} of {who}?",
            f"List the distinct {label[2]} of {who}.",
            f"Show the different {label[2]} of {who}.",
        ),
        (f"Find the different {label[2]} of {who}.",),
    )


@add("medium", 2)
def children_per_parent_group(s: Source) -> Draft:
    """Count, or aggregate, the children for every value of a parent's column."""
    _, child, parent = s.link()
    cat = s.cat(parent)
    words, sql = f"number of {child.plural}", "count(*)"
    if s.rng.random() < 0.4:
        aggregated, sql = aggregate(s, child, "T1.")
        words = f"{aggregated} of the {child.plural}"
    query = Select(f"T2.{cat.column}, {sql}", joined(child, parent), group=f"T2.{cat.column}")
    if len(s.run(query)) < len(set(s.values(parent, cat.column))):
        raise NoDraft
    group = f"each {cat.noun} of the {parent.plural}"
    return Draft(
        query,
        (
            f"For {group}, give the {cat.noun} and the {words}.",
            f"For {group}, show the {cat.noun} and the {words}.",
            f"Show {group} and the {words}.",
        ),
        (f"Return {group} together with the {words}.",),
    )


# ---- hard


@add("hard", 3)
def compared_with_average(s: Source) -> Draft:
    """List or count the rows above or below the average of all rows or of some."""
    table = s.table(named=True)
    label, num = s.label(table), s.num(table, number=True)
    over = s.rng.random() < 0.65
    sign, words = (">", "above") if over else ("<", "below")
    inner = Select(f"avg({num.column})", table.name)
    of = f"all {table.plural}"
    if s.rng.random() < 0.3:
        clause = s.clause(table)
        if clause.column == num.column:
            raise NoDraft
        inner, of = replace(inner, where=(clause.sql,)), f"{table.plural} {clause.relative}"
    where = (f"{num.column} {sign} ({inner})",)
    clause = Clause(f"whose {num.noun} is {words} the average {num.noun} of {of}", "", "")
    if s.rng.random() < 0.25:
        return draft(Select("count(*)", table.name, where), counting(table, clause))
    query = Select(label[0], table.name, where)
    return draft(query, naming(label, f"{table.plural} {clause.relative}"))


@add("hard", 1)
def beyond_extreme(s: Source) -> Draft:
    """List the rows beyond the largest or smallest value of other rows."""
    table = s.table(named=True)
    label, num, clause = s.label(table), s.num(table, number=True), s.is_value(table)
    top = s.rng.random() < 0.5
    function, sign, words = ("max", ">", "higher") if top else ("min", "<", "lower")
    inner = Select(f"{function}({num.column})", table.name, (clause.sql,))
    who = (
        f"{table.plural} whose {num.noun} is {words} than the {num.extreme(top)} {num.noun} of "
        f"{table.plural} {clause.relative}"
    )
    return draft(
        Select(label[0], table.name, (f"{num.column} {sign} ({inner})",)), naming(label, who)
    )


@add("hard", 2)
def all_extremes(s: Source) -> Draft:
    """List all rows that share the largest or smallest value."""
    table = s.table(named=True)
    label, num, top = s.label(table), s.num(table), s.rng.random() < 0.5
    inner = Select(f"{'max' if top else 'min'}({num.column})", table.name)
    who = (
        f"all {table.plural} whose {num.noun} is equal to the {num.extreme(top)} {num.noun} of any "
        f"{table.noun}"
    )
    return draft(Select(label[0], table.name, (f"{num.column} = ({inner})",)), naming(label, who))


@add("hard", 3)
def childless(s: Source) -> Draft:
    """List the parents without children, or without such children."""
    link, child, parent = s.link()
    label = s.label(parent)
    inner = Select(f"{parent.name}_id", child.name)
    lack = f"{link.lack} {child.plural}"
    if s.rng.random() < 0.5:
        clause = s.clause(child)
        if "!=" in clause.sql:  # two negations are hard to read
            raise NoDraft
        inner, lack = replace(inner, where=(clause.sql,)), f"{lack} {clause.relative}"
    where = (f"{parent.name}_id NOT IN ({inner})",)
    query = Select(label[0], parent.name, where)
    return draft(query, naming(label, f"{parent.plural} {parent.who} {lack}"))


@add("hard", 3)
def largest_group(s: Source) -> Draft:
    """Name the group with the most or fewest rows, or the highest or lowest average."""
    table = s.table()
    cat, top = s.cat(table), s.rng.random() < 0.6
    by, words = "count(*)", "most" if top else "fewest"
    which = f"has the {words} {table.plural}"
    if s.rng.random() < 0.5:
        num = s.num(table, number=True)
        by = f"avg({num.column})"
        which = f"has the {num.extreme(top)} average {num.noun} of its {table.plural}"
    order = by + (" DESC" if top else " ASC")
    return Draft(
        Select(cat.column, table.name, group=cat.column, order=order, limit=1),
        *choosing(cat.noun, f"{which}"),
    )


@add("hard", 3)
def superlative_of_some(s: Source) -> Draft:
    """Find the row with the largest or smallest value among those that meet a condition."""
    table = s.table(named=True)
    label, num, top, clause = s.label(table), s.num(table), s.rng.random() < 0.6, s.clause(table)
    if clause.column == num.column:
        raise NoDraft
    who, which = f"{table.plural} {clause.relative}", num.superlative(top, table.noun)
    order = num.column + (" DESC" if top else " ASC")
    return Draft(
        Select(label[0], table.name, (clause.sql,), order=order, limit=1),
        (
            f"Among {table.plural} {clause.relative}, give the {label[1]} of the {which}.",
            f"Among {who}, what is the {label[1]} of the {which}?",
            f"What is the {label[1]} of the {which} among {who}?",
        ),
        (f"Find the {label[1]} of the {which} among {who}.",),
    )


@add("hard", 3)
def parent_of_superlative(s: Source) -> Draft:
    """Show a column of the parent of the child with the largest or smallest value."""
    _, child, parent = s.link()
    column = parent.label[0] if parent.label else s.other_column(parent)
    if s.rng.random() < 0.3:
        column = s.other_column(parent)
    num, top = s.num(child), s.rng.random() < 0.6
    noun = parent.nouns[column]
    of = f"the {parent.noun} of the {num.superlative(top, child.noun)}"
    order = f"T1.{num.column}" + (" DESC" if top else " ASC")
    return Draft(
        Select(f"T2.{column}", joined(child, parent), order=order, limit=1),
        *asking(f"{noun} of {of}"),
    )


@add("hard", 3)
def groups_in_both(s: Source) -> Draft:
    """Name the groups that have rows of two kinds (INTERSECT)."""
    table = s.table()
    cat = s.cat(table)
    first, second = s.two_kinds(table)
    if cat.column in (first.column, second.column):
        raise NoDraft
    right = Select(cat.column, table.name, (second.sql,))
    query = Select(cat.column, table.name, (first.sql,), set_op=("INTERSECT", right))
    both = f"both {table.plural} {first.relative} and {table.plural} {second.relative}"
    return Draft(
        query,
        *choosing(cat.plural, f"have {both}"),
    )


@add("hard", 2)
def groups_without(s: Source) -> Draft:
    """Name the groups without rows of a kind (EXCEPT)."""
    table = s.table()
    cat, clause = s.cat(table), s.clause(table)
    if clause.column == cat.column:
        raise NoDraft
    right = Select(cat.column, table.name, (clause.sql,))
    query = Select(cat.column, table.name, set_op=("EXCEPT", right))
    which = f"have {table.plural} but no {table.plural} {clause.relative}"
    return Draft(
        query,
        *choosing(cat.plural, f"{which}"),
    )


@add("hard", 2)
def parents_by_either(s: Source) -> Draft:
    """List the ids of parents that meet a condition themselves or by a child (UNION)."""
    link, child, parent = s.link()
    first, second = s.clause(parent), s.clause(child)
    key = f"{parent.name}_id"
    right = Select(key, child.name, (second.sql,))
    query = Select(key, parent.name, (first.sql,), set_op=("UNION", right))
    pronoun = f"{parent.who} "
    who = f"{parent.plural} {first.relative} or {pronoun}{link.have} {child.plural}"
    who = f"{who} {second.relative}"
    return Draft(
        query,
        (
            f"Give the ids of {who}.",
            f"Show the ids of {who}.",
            f"List the ids of {who}.",
        ),
        (f"Find the ids of {who}.",),
    )


@add("hard", 2)
def some_children_per_parent(s: Source) -> Draft:
    """Count, for every parent, the children that meet a condition."""
    link, child, parent = s.link()
    label, clause = s.label(parent), s.clause(child, "T1.")
    key = f"T2.{parent.name}_id"
    query = Select(f"T2.{label[0]}, count(*)", joined(child, parent), (clause.sql,), group=key)
    who = f"each {parent.noun} {parent.who} {link.has} {child.plural} {clause.relative}"
    words = f"the {label[1]} and the number of such {child.plural}"
    return Draft(
        query,
        (f"For {who}, give {words}.", f"For {who}, show {words}.", f"For {who}, list {words}."),
        (f"For {who}, return {words}.",),
    )


@dataclass(frozen=True)
class Path3:
    """Three joined tables, T1 to T3: a chain of two foreign keys, or a bridge with its parents.

    `phrase` leads to T3. For a chain it is about T1 ("were made for pets that belong to"), for a
    bridge, whose own rows are only connections, about T2 ("bought").
    """

    tables: str
    phrase: str
    one: Table
    two: Table
    three: Table
    bridge: bool


def three_tables(s: Source) -> Path3:
    """Draw a chain or a bridge."""
    options: list[tuple[str, str, str, str]] = []
    for bridge in s.db.bridges:
        options.append((bridge.table, bridge.left, bridge.right, bridge.verb))
        options.append((bridge.table, bridge.right, bridge.left, bridge.back))
    bridges = len(options)
    for first in s.db.links:
        for second in s.db.links:
            if first.parent == second.child:
                middle = s.by_name[first.parent]
                phrase = f"{first.belong} {middle.plural} {middle.who} {second.belong}"
                options.append((first.child, first.parent, second.parent, phrase))
    if not options:
        raise NoDraft
    index = s.rng.randrange(len(options))
    one, two, three, phrase = options[index]
    holder = "T1" if index < bridges else "T2"
    tables = (
        f"{one} AS T1 JOIN {two} AS T2 ON T1.{two}_id = T2.{two}_id "
        f"JOIN {three} AS T3 ON {holder}.{three}_id = T3.{three}_id"
    )
    return Path3(tables, phrase, s.by_name[one], s.by_name[two], s.by_name[three], index < bridges)


def both_labels(s: Source, path: Path3) -> tuple[str, str]:
    """Return the English and the SQL for the names of T2 and T3."""
    left, right = s.label(path.two), s.label(path.three)
    what = f"the {left[1]} of the {path.two.noun} and the {right[1]} of the {path.three.noun}"
    return what, f"T2.{left[0]}, T3.{right[0]}"


@add("hard", 6)
def across_three(s: Source) -> Draft:
    """List or count rows by a condition two tables away."""
    path = three_tables(s)
    subject, three = path.two if path.bridge else path.one, path.three
    if three.label and s.rng.random() < 0.5:
        name = s.one_name(three)
        target, sql = f"the {three.noun} {name}", f"T3.{three.label[0]} = {quoted(name)}"
    else:
        inner = s.clause(three, "T3.")
        target, sql = f"{three.plural} {inner.relative}", inner.sql
    verb = f"{path.phrase} {target}"
    clause = Clause(f"{subject.who} {verb}", verb, sql)
    who = f"{subject.plural} {clause.relative}"
    if path.bridge:
        label = s.label(subject)
        return Draft(
            Select(f"DISTINCT T2.{label[0]}", path.tables, (sql,)),
            (
                f"Give the distinct {label[2]} of {who}.",
                f"What are the different {label[2]} of {who}?",
                f"List the distinct {label[2]} of {who}.",
            ),
            (f"Find the different {label[2]} of {who}.",),
        )
    if s.rng.random() < 0.5:
        return draft(Select("count(*)", path.tables, (sql,)), counting(subject, clause))
    words, aggregated = aggregate(s, subject, "T1.")
    return Draft(
        Select(aggregated, path.tables, (sql,)),
        (f"Give the {words} of {who}.", f"What is the {words} of {who}?"),
        (f"Return the {words} of {who}.",),
    )


@add("hard", 3)
def pairs_across_three(s: Source) -> Draft:
    """Show both parents of the connecting rows that meet a condition."""
    path = three_tables(s)
    clause, what, columns = s.clause(path.one, "T1."), *both_labels(s, path)
    query = Select(columns, path.tables, (clause.sql,))
    who = f"{path.one.plural} {clause.relative}"
    return Draft(
        query,
        (f"For all {who}, give {what}.", f"For all {who}, show {what}."),
        (f"Return {what} for all {who}.",),
    )


# ---- extra


@add("extra", 4)
def parent_with_most(s: Source) -> Draft:
    """Find the parent with the most children, of all or of some."""
    link, child, parent = s.link()
    column = parent.label[0] if parent.label else s.other_column(parent)
    if s.rng.random() < 0.25:
        column = s.other_column(parent)
    where: tuple[str, ...] = ()
    some = ""
    if s.rng.random() < 0.35:
        clause = s.clause(child, "T1.")
        where, some = (clause.sql,), f" {clause.relative}"
    columns, noun = f"T2.{column}", parent.nouns[column]
    if s.rng.random() < 0.25:
        columns, noun = f"{columns}, count(*)", f"{noun} and the number of {child.plural}"
        if some:
            raise NoDraft
    query = Select(
        columns,
        joined(child, parent),
        where,
        group=f"T2.{parent.name}_id",
        order="count(*) DESC",
        limit=1,
    )
    who = f"the {parent.noun} {parent.who} {link.has} the most {child.plural}{some}"
    verb = "are" if "number of" in noun and "count" in columns else "is"
    return Draft(
        query,
        *asking(f"{noun} of {who}", verb),
    )


@add("extra", 2)
def parent_with_best_average(s: Source) -> Draft:
    """Find the parent whose children have the highest or lowest average or total."""
    _, child, parent = s.link()
    label, top = s.label(parent), s.rng.random() < 0.6
    num = s.num(child, number=True)
    function, word = s.rng.choice([("avg", "average")] + [("sum", "total")] * num.total)
    order = f"{function}(T1.{num.column})" + (" DESC" if top else " ASC")
    query = Select(
        f"T2.{label[0]}",
        joined(child, parent),
        group=f"T2.{parent.name}_id",
        order=order,
        limit=1,
    )
    # A parent without children has a total of nothing, which could pass for the lowest.
    groups = len(s.run(replace(query, limit=0)))
    if not top and function == "sum" and groups < len(s.run(f"SELECT 1 FROM {parent.name}")):
        raise NoDraft
    who = f"the {parent.noun} whose {child.plural} have the {num.extreme(top)} {word} {num.noun}"
    return Draft(
        query,
        *asking(f"{label[1]} of {who}"),
    )


@add("extra", 3)
def above_average_and(s: Source) -> Draft:
    """Above or below average, with a second condition, a second column or a sort order."""
    table = s.table(named=True)
    label, num = s.label(table), s.num(table, number=True)
    sign, words = s.rng.choice([(">", "above"), (">", "above"), ("<", "below")])
    inner = f"{num.column} {sign} (SELECT avg({num.column}) FROM {table.name})"
    relative = f"whose {num.noun} is {words} the average {num.noun} of all {table.plural}"
    kind = s.rng.choice(["column", "condition", "order"])
    if kind == "column":
        second = s.rng.choice([num.column, s.other_column(table, label[0])])
        nouns = f"{label[1]} and {table.nouns[second]}"
        query = Select(f"{label[0]}, {second}", table.name, (inner,))
        return draft(query, showing(nouns, f"{table.plural} {relative}"))
    if kind == "condition":
        clause = s.clause(table)
        if clause.column == num.column:
            raise NoDraft
        query = Select(label[0], table.name, (clause.sql, inner))
        return draft(query, naming_among(label, f"{table.plural} {clause.relative}", relative))
    way, suffix = direction(s, num)
    query = Select(label[0], table.name, (inner,), order=num.column + suffix)
    shared, dev = naming(label, f"{table.plural} {relative}")
    return Draft(
        query,
        tuple(f"{text[:-1]}, {way}{text[-1]}" for text in shared),
        tuple(f"{text[:-1]}, {way}{text[-1]}" for text in dev),
    )


@add("extra", 2)
def children_above_average(s: Source) -> Draft:
    """Children by a condition on their parent that are above the average of all."""
    link, child, parent = s.link()
    label, num = s.label(child), s.num(child, number=True)
    clause = s.parent_clause(link, child, parent)
    inner = f"T1.{num.column} > (SELECT avg({num.column}) FROM {child.name})"
    relative = f"whose {num.noun} is above the average {num.noun} of all {child.plural}"
    query = Select(f"T1.{label[0]}", joined(child, parent), (clause.sql, inner))
    return draft(query, naming_among(label, f"{child.plural} {clause.relative}", relative))


@add("extra", 3)
def childless_and(s: Source) -> Draft:
    """Parents without children: two columns, their number, or a condition of their own."""
    link, child, parent = s.link()
    label = s.label(parent)
    inner = Select(f"{parent.name}_id", child.name)
    lack = f"{link.lack} {child.plural}"
    if s.rng.random() < 0.6:
        clause = s.clause(child)
        if "!=" in clause.sql:  # two negations are hard to read
            raise NoDraft
        inner, lack = replace(inner, where=(clause.sql,)), f"{lack} {clause.relative}"
    without = f"{parent.name}_id NOT IN ({inner})"
    relative = Clause(f"{parent.who} {lack}", lack, "")
    kind = s.rng.choice(["columns", "columns", "condition", "condition", "count"])
    if kind == "count":  # extra, as the rule takes the NOT for a second aggregate
        return draft(Select("count(*)", parent.name, (without,)), counting(parent, relative))
    if kind == "columns":
        second = s.other_column(parent, label[0])
        query = Select(f"{label[0]}, {second}", parent.name, (without,))
        nouns = f"{label[1]} and {parent.nouns[second]}"
        return draft(query, showing(nouns, f"{parent.plural} {relative.relative}"))
    own = s.clause(parent)
    query = Select(label[0], parent.name, (own.sql, without))
    return draft(query, naming(label, f"{parent.plural} {and_also(own, relative)}"))


@add("extra", 4)
def superlative_child_of_some(s: Source) -> Draft:
    """The child with the largest or smallest value among those of certain parents."""
    link, child, parent = s.link()
    column = child.label[0] if child.label else s.other_column(child)
    num, top = s.num(child), s.rng.random() < 0.6
    if num.column == column:
        raise NoDraft
    clause = s.parent_clause(link, child, parent)
    order = f"T1.{num.column}" + (" DESC" if top else " ASC")
    query = Select(f"T1.{column}", joined(child, parent), (clause.sql,), order=order, limit=1)
    noun, which = child.nouns[column], num.superlative(top, child.noun)
    who = f"{child.plural} {clause.relative}"
    return Draft(
        query,
        (
            f"Among {who}, give the {noun} of the {which}.",
            f"Among {who}, what is the {noun} of the {which}?",
            f"What is the {noun} of the {which} among {who}?",
        ),
        (f"Find the {noun} of the {which} among {who}.",),
    )


@add("extra", 3)
def parents_with_both(s: Source) -> Draft:
    """Parents that have children of two kinds, or of one kind and not another."""
    link, child, parent = s.link()
    label = s.label(parent)
    # A set operation on names would merge two parents of the same name.
    if not s.unique(parent, label[0]):
        raise NoDraft
    first, second = s.two_kinds(child, "T1.")
    tables, columns = joined(child, parent), f"T2.{label[0]}"
    way = s.rng.choice(["INTERSECT", "INTERSECT", "EXCEPT"])
    right = Select(columns, tables, (second.sql,))
    query = Select(columns, tables, (first.sql,), set_op=(way, right))
    one, two = f"{child.plural} {first.relative}", f"{child.plural} {second.relative}"
    who = f"{parent.plural} {parent.who} {link.have} "
    who += f"both {one} and {two}" if way == "INTERSECT" else f"{one} but no {two}"
    return draft(query, naming(label, who))


@add("extra", 2)
def best_pair(s: Source) -> Draft:
    """Show both parents of the connecting row with the largest or smallest value."""
    path = three_tables(s)
    num, top = s.num(path.one), s.rng.random() < 0.6
    what, columns = both_labels(s, path)
    order = f"T1.{num.column}" + (" DESC" if top else " ASC")
    query = Select(columns, path.tables, order=order, limit=1)
    which = num.superlative(top, path.one.noun)
    return Draft(
        query,
        (
            f"For the {which}, give {what}.",
            f"For the {which}, show {what}.",
            f"Show {what} for the {which}.",
        ),
        (f"Return {what} for the {which}.",),
    )


@add("extra", 2)
def best_parent_group(s: Source) -> Draft:
    """Name the value of a parent's column with the most children, or the best average."""
    _, child, parent = s.link()
    cat, top = s.cat(parent), s.rng.random() < 0.7
    by, which = "count(*)", f"the {'most' if top else 'fewest'} {child.plural}"
    if s.rng.random() < 0.5:
        num = s.num(child, number=True)
        by, which = (
            f"avg(T1.{num.column})",
            f"the {num.extreme(top)} average {num.noun} of {child.plural}",
        )
    order = by + (" DESC" if top else " ASC")
    query = Select(
        f"T2.{cat.column}", joined(child, parent), group=f"T2.{cat.column}", order=order, limit=1
    )
    # With a group that the join leaves out, "fewest" would mean another group.
    if len(s.run(replace(query, limit=0))) < len(set(s.values(parent, cat.column))):
        raise NoDraft
    return Draft(
        query,
        (
            f"Give the {cat.noun} of the {parent.plural} with {which}.",
            f"Which {cat.noun} of the {parent.plural} has {which}?",
            f"Find the {cat.noun} of the {parent.plural} that has {which}.",
        ),
        (f"What is the {cat.noun} of the {parent.plural} with {which}?",),
    )


# --------------------------------------------------------------------------------------------
# Checks, selection, files
# --------------------------------------------------------------------------------------------


def order_is_defined(s: Source, query: Select) -> bool:
    """Say whether ORDER BY leaves no choice: no NULL and no tie among the rows that count."""
    key, _, _ = query.order.rpartition(" ")
    rows = s.run(replace(query, columns=f"{key}, {query.columns}", limit=0))
    if query.limit:
        if len(rows) <= query.limit or rows[query.limit - 1][0] == rows[query.limit][0]:
            return False
        rows = rows[: query.limit]
    elif len(rows) == 1:
        return False  # nothing to sort
    if any(row[0] is None for row in rows):
        return False
    return all(a[0] != b[0] or a == b for a, b in pairwise(rows))


def without_a_part(query: Select) -> Iterator[Select]:
    """Yield simpler queries whose result must differ, or a part of the question is idle."""
    for index in range(len(query.where)):
        yield replace(query, where=query.where[:index] + query.where[index + 1 :])
    if query.having:
        yield replace(query, having="")
    if query.set_op:
        way, right = query.set_op
        yield replace(query, set_op=None, columns=f"DISTINCT {query.columns}")
        if way != "EXCEPT":
            yield replace(right, columns=f"DISTINCT {right.columns}")


def problem(s: Source, schema: Schema, query: Select, level: str, *, empty: bool) -> str:
    """Return why a gold is not usable, or an empty text."""
    rows = s.run(query)
    if empty:
        return "" if not rows else "has rows"
    if not rows:
        return "no rows"
    if all(value is None for row in rows for value in row):
        return "only NULLs"
    if query.columns == "count(*)" and rows == [(0,)]:
        return "counts nothing"
    aggregates = "(" in query.columns and query.columns != "count(*)" and not query.group
    if aggregates and len(s.run(replace(query, columns="1"))) < 2:
        return "aggregates one row"
    if query.order and not order_is_defined(s, query):
        return "order is not defined"
    result = Counter(rows)
    if any(Counter(s.run(other)) == result for other in without_a_part(query)):
        return "a part does not matter"
    try:
        found = hardness(str(query), schema)
    except SqlParseError as error:
        return f"official parser: {error}"
    return "" if found == level else f"hardness is {found}"


def schema_of(s: Source) -> Schema:
    """Return the tables and columns as the hardness rule wants them."""
    names = [row[0] for row in s.run("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return Schema({
        str(name): tuple(str(row[1]) for row in s.run(f"PRAGMA table_info({name})"))
        for name in names
    })  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A question with its gold, and the level and template it came from."""

    db_id: str
    question: str
    query: str
    level: str
    template: str


@dataclass
class Taken:
    """What a database has already."""

    questions: set[str]
    golds: Counter[str]


def draw(s: Source, schema: Schema, template: Template, level: str, taken: Taken) -> Row | None:
    """Try a template until it gives a row that passes every check; give up after 80 times."""
    for _ in range(80):
        try:
            made = template(s)
        except NoDraft:
            continue
        dev = s.db.split == "dev"
        question = s.rng.choice(made.wordings[1:] + made.dev if dev else made.wordings)
        gold = str(made.query)
        # In train a gold may come in two wordings, which teaches that wording does not matter.
        if question.lower() in taken.questions or taken.golds[gold] >= (1 if dev else 2):
            continue
        if not problem(s, schema, made.query, level, empty=template is nothing_matches):
            return Row(s.db.db_id, question, gold, level, template.__name__)
    return None


def rows_of(database: Database) -> list[Row]:
    """Draw the rows of one database: its quota a level."""
    s = Source(database)
    schema = schema_of(s)
    taken = Taken(set(), Counter())
    rows: list[Row] = []
    for level, quota in zip(LEVELS, QUOTA[database.split], strict=True):
        weight = dict(TEMPLATES[level])
        total = sum(weight.values())
        plan = [nothing_matches] * (EMPTY_QUOTA[database.split] if level == "easy" else 0)
        used: Counter[Template] = Counter()
        wanted = len(rows) + quota
        for _ in range(1_000):
            if len(rows) == wanted:
                break
            # No template gets much more than its share, however few the others find.
            open_now = [one for one in weight if used[one] <= 1.5 * quota * weight[one] / total]
            chances = [weight[one] for one in open_now]
            template = plan.pop() if plan else s.rng.choices(open_now, chances)[0]
            row = draw(s, schema, template, level, taken)
            if row:
                taken.questions.add(row.question.lower())
                taken.golds[row.query] += 1
                used[template] += 1
                rows.append(row)
        if len(rows) < wanted:
            raise SystemExit(f"{database.db_id}: only {len(rows)} of {wanted} rows up to {level}")
    return rows


def contents(rows: list[Row], split: str) -> str:
    """Return the text of a split's JSON file."""
    splits = {database.db_id: database.split for database in DATABASES}
    records = [
        json.dumps({"db_id": row.db_id, "question": row.question, "query": row.query},
                   ensure_ascii=False)
        for row in rows
        if splits[row.db_id] == split
    ]  # fmt: skip
    return "[\n" + ",\n".join(records) + "\n]\n"


def show(rows: list[Row], number: int, seed: int) -> None:
    """Print random rows with their results, to be read by a person."""
    sources = {database.db_id: Source(database) for database in DATABASES}
    for row in random.Random(seed).sample(rows, number):
        result = sources[row.db_id].run(row.query)
        more = f" ... {len(result)} rows" if len(result) > 4 else ""
        print(f"[{row.db_id} {row.level} {row.template}] {row.question}\n    {row.query}\n"
              f"    {result[:4]}{more}")  # fmt: skip


def main() -> int:
    """Write, check or show the collection."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--show", type=int, metavar="N", help="print N random rows, write nothing")
    parser.add_argument("--seed", type=int, default=0, help="which rows --show prints")
    arguments = parser.parse_args()

    rows = [row for database in DATABASES for row in rows_of(database)]
    if arguments.show:
        show(rows, arguments.show, arguments.seed)
        return 0
    files = {"train": POCKET / "train_spider.json", "dev": POCKET / "dev.json"}
    status = 0
    for split, path in files.items():
        text = contents(rows, split)
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what {Path(__file__).name} writes; run it without --check")
            status = 1
    for split in files:
        for database in (one for one in DATABASES if one.split == split):
            levels = Counter(row.level for row in rows if row.db_id == database.db_id)
            print(f"{split:6}{database.db_id:18}", {level: levels[level] for level in LEVELS})
    return status


if __name__ == "__main__":
    sys.exit(main())
