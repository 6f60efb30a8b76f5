"""A cluster file describes in TOML the cluster and the job to plan for, each value with its source.

`parse` reads the file into a `Cluster`, and `cluster_text.render` writes it.

    schema = 1
    name = "ours"                                  # optional
    about = "what this is"                         # optional

    [job]                                          # schema.py has the keys of each table, and
                                                   # their defaults
    gpus = 1024
    duration = "30d"
    source = "our order"                           # the source of every value in the table
    sources = { step = "measured 2025-05" }        # the source of one value
    ranges = { step = ["1.8s", "2.4s"] }           # the values that one input may have;
                                                   # `--sensitivity` tries both ends

    [[failure]]                                    # one or more; two of one class need a `name`
    class = "gpu"
    unit = "gpu"                                   # gpu, node, rack, run
    extent = "node"                                # process, node, rack, run
    count = 148                                    # give either count and exposure, or mttf
    exposure = "21233664h"

    [[tier]]
    name = "storage"
    bandwidth = "2TB/s"                            # or stall and write

    [recovery] [repair] [lemons] [stragglers] [maintenance] [throttle] [money] [power]

A duration that may vary has one of four forms: "30s", { mean = "30s" } (exponential), { median =
"30s", p95 = "2min" } (lognormal), or { measured = ["1s", "3s"] }. Each input has a path, such as
`job.step`, `failure.gpu.mttf` or `tier.storage.stall`. `model/quantities.py` reads the quantities.

This module is pure: text in, data out; data in, text out.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from outlast.errors import UsageError
from outlast.model.strict import known, toml
from outlast.planner.readers import Value, ValueReader
from outlast.planner.schema import DEFAULT_LISTS, LISTS, TABLES, Field

SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
NOTES = ("source", "sources", "ranges")  # keys of every table that describe its other keys


class Origin(str, Enum):
    """The origin of an input. The later ones override the earlier ones."""

    DEFAULT = "default"  # a stated default
    WORKED_OUT = "worked out"  # calculated from other inputs
    PRESET = "preset"
    LEDGER = "ledger"
    FILE = "file"
    FLAG = "flag"
    PLAN = "plan"  # chosen by the plan


@dataclass(frozen=True, slots=True)
class Input:
    """One value and where it comes from.

    `range` holds the two ends between which the value may lie. It is None if the file gives none.
    """

    path: str
    value: Value
    origin: Origin
    source: str
    range: tuple[Value, Value] | None = None

    @property
    def reader(self) -> ValueReader:
        """The reader of values of this kind."""
        return field_of(self.path).reader

    @property
    def said(self) -> str:
        """Return the value with its unit, as it is written in a cluster file."""
        text = self.reader.say(self.value)
        return str(json.loads(text)) if text.startswith('"') else text

    @property
    def is_assumed(self) -> bool:
        """Return whether the value is a default or a preset that its source calls an assumption."""
        return self.origin in (Origin.DEFAULT, Origin.PRESET) and any(
            word in self.source for word in ("assum", "[M]", "unverified")
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """All inputs of a plan, each with its value and where it comes from.

    Each input has a path, such as `job.gpus` or `tier.storage.stall`. `parse` reads a cluster file.
    A cluster never changes: `put` returns another one. `resolve.resolve` calculates the values that
    are missing, and makes a Scenario.

    inputs           all inputs by path, stated defaults included. An input without a default may be
                     missing
    failures, tiers  the names of the `failure` tables and of the `tier` tables, in their order
    """

    name: str
    about: str = ""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()

    def value(self, path: str) -> Any:
        """Return the value of an input, or None where it is missing."""
        return self.inputs[path].value if path in self.inputs else None

    def given(self, path: str) -> bool:
        """Return True where the value is not a stated default."""
        return path in self.inputs and self.inputs[path].origin is not Origin.DEFAULT

    def put(
        self, path: str, given: object, *, origin: Origin, source: str, name: str = ""
    ) -> Cluster:
        """Return a cluster with another value for one input.

        given  the value as a text, or as TOML has it
        name   the name of the input in errors; by default its path

        Raises UsageError if there is no such input, or if it cannot have this value.
        """
        self.check_path(path)
        return self.put_value(
            path, field_of(path).reader.read(given, name or path), origin=origin, source=source
        )

    def put_value(self, path: str, value: Value, *, origin: Origin, source: str) -> Cluster:
        """Return a cluster with this value, which is not checked, for one input."""
        return replace(self, inputs={**self.inputs, path: Input(path, value, origin, source)})

    def without(self, *paths: str) -> Cluster:
        """Return a cluster without these inputs. Paths that it does not have are ignored."""
        return replace(
            self, inputs={path: one for path, one in self.inputs.items() if path not in paths}
        )

    def check_path(self, path: str) -> None:
        """Raise UsageError if this cluster can have no input of that path."""
        paths = tuple(self.paths())
        if path not in paths:
            close = difflib.get_close_matches(path, paths, n=1)
            raise UsageError(
                f"there is no input {path!r}",
                hint=f"did you mean {close[0]!r}?"
                if close
                else "`outlast plan --inputs` lists them",
            )

    def paths(self) -> Iterator[str]:
        """Yield the path of every input that this cluster can have."""
        for table, fields in TABLES.items():
            yield from (f"{table}.{key}" for key in fields)
        for table, names in (("failure", self.failures), ("tier", self.tiers)):
            yield from (f"{table}.{name}.{key}" for name in names for key in LISTS[table])


def field_of(path: str) -> Field:
    """Return the field of a path that exists. Raises KeyError for another one."""
    table, _, rest = path.partition(".")
    return TABLES[table][rest] if table in TABLES else LISTS[table][rest.rpartition(".")[2]]


# --- reading --------------------------------------------------------------------------------------


def parse(text: str, *, source: str, origin: Origin = Origin.FILE) -> Cluster:
    """Read a cluster file. Raises UsageError, which names `source`, the table and the key.

    A value that the file does not give has its stated default.
    """
    given = toml(text, source=source, schema=SCHEMA)
    known(given, ("schema", "name", "about", *TABLES, *LISTS), source)
    about = {key: given.get(key, source if key == "name" else "") for key in ("name", "about")}
    for key, value in about.items():
        if not isinstance(value, str) or not value.isprintable():
            raise UsageError(f"{source}: {key} is {value!r}; it is a text of one line")
    inputs: dict[str, Input] = {}
    for table in TABLES:
        inputs |= _table(
            given.get(table, {}),
            table,
            TABLES[table],
            where=f"{source}, {table}",
            origin=origin,
            source=source,
        )
    names: dict[str, tuple[str, ...]] = {}
    for table in LISTS:
        names[table] = _list(given.get(table, []), table, inputs, origin=origin, source=source)
    return Cluster(about["name"], about["about"], inputs, names["failure"], names["tier"])


def defaults() -> Cluster:
    """Return a cluster that has only stated defaults."""
    return parse(f"schema = {SCHEMA}\n", source="stated defaults")


def _list(
    given: object, table: str, inputs: dict[str, Input], *, origin: Origin, source: str
) -> tuple[str, ...]:
    """Read a list of tables into `inputs`, and return the names of the tables."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise UsageError(
            f"{source}: {table} has to be a list of tables", hint=f"write each as `[[{table}]]`"
        )
    rows: list[Mapping[str, Any]] = given or [DEFAULT_LISTS[table]]
    names: list[str] = []
    for at, row in enumerate(rows, 1):
        name = _name(row, table, where=f"{source}, {table} {at}", taken=names)
        names.append(name)
        rest = {key: value for key, value in row.items() if key != "name"}
        inputs |= _table(
            rest,
            f"{table}.{name}",
            LISTS[table],
            where=f"{source}, {table} {name}",
            origin=origin if given else Origin.DEFAULT,
            source=source,
        )
        _check_row(table, name, inputs, where=f"{source}, {table} {name}")
    return tuple(names)


def _name(row: Mapping[str, Any], table: str, *, where: str, taken: list[str]) -> str:
    name = row.get("name", row.get("class", "") if table == "failure" else "")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"{where}: name is {name!r}; it is made of letters, digits, - and _",
            hint='as in name = "storage"',
        )
    if name in taken:
        raise UsageError(
            f"{where}: there is another {name!r}", hint="give each a `name` of its own"
        )
    return name


def _table(
    given: object,
    path: str,
    fields: Mapping[str, Field],
    *,
    where: str,
    origin: Origin,
    source: str,
) -> dict[str, Input]:
    if not isinstance(given, dict):
        raise UsageError(f"{where} is {given!r}; it is a table of {', '.join(fields)}")
    known(given, (*fields, *NOTES), where)
    usual, sources, ranges = (
        given.get("source", ""),
        given.get("sources", {}),
        given.get("ranges", {}),
    )
    for key, table in (("sources", sources), ("ranges", ranges)):
        if not isinstance(table, dict):
            raise UsageError(
                f"{where}: {key} is {table!r}; it is a table",
                hint='as in sources = { step = "measured" }',
            )
        known(table, tuple(key for key in fields if key in given), f"{where}: {key}")
    out: dict[str, Input] = {}
    for key, one in fields.items():
        if key in given:
            said = _text(sources.get(key, usual), f"{where}: source of {key}") or source
            value = one.reader.read(given[key], f"{where}: {key}")
            out[f"{path}.{key}"] = Input(
                f"{path}.{key}",
                value,
                origin,
                said,
                _range(ranges.get(key), one.reader, f"{where}: range of {key}"),
            )
        elif one.default is not None:
            out[f"{path}.{key}"] = Input(
                f"{path}.{key}",
                one.reader.read(one.default, f"default of {path}.{key}"),
                Origin.DEFAULT,
                one.why,
            )
    return out


def _range(given: object, reader: ValueReader, where: str) -> tuple[Value, Value] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise UsageError(
            f"{where} is {given!r}; it has two ends",
            hint='as in ranges = { step = ["1.8s", "2.4s"] }',
        )
    return reader.read(given[0], where), reader.read(given[1], where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise UsageError(f"{where} is {value!r}; it is a text of one line")
    return value


def _check_row(table: str, name: str, inputs: Mapping[str, Input], *, where: str) -> None:
    has = {key for key in LISTS[table] if f"{table}.{name}.{key}" in inputs}
    if table == "failure":
        if ("mttf" in has) == ("exposure" in has):
            raise UsageError(
                f"{where}: it has to say in one way how often this fails",
                hint="give mttf, or count and exposure, and not both",
            )
        if "exposure" in has and "count" not in has:
            raise UsageError(
                f"{where}: there is an exposure without a count",
                hint="count is the number of failures in that time",
            )
        if "exposure" in has and inputs[f"{table}.{name}.shape"].value != 1:
            raise UsageError(
                f"{where}: a count in an exposure gives a constant rate, and shape is not 1",
                hint="give mttf, the scale of the Weibull law",
            )
    elif not has & {"stall", "write", "bandwidth", "bandwidth_per_gpu"}:
        raise UsageError(
            f"{where}: it does not say how long a save takes",
            hint="give a bandwidth, or stall and write",
        )
    elif {"bandwidth", "bandwidth_per_gpu"} <= has:
        raise UsageError(
            f"{where}: there are both bandwidth and bandwidth_per_gpu", hint="give one of the two"
        )
