"""Fault plans: which fault strikes what, and when. Data, so that one plan serves the simulated world and drills on real processes.

    schema = 1

    [[fault]]
    id = "first"                           # optional; else its number
    kind = "kill"                          # see KINDS
    target = { rank = 1 }                  # or { spare = true }, { store = true }, { node = 0 }, { coordinator = true }
    when = { on_mark = "voting", nth = 2 } # or { at_s = 3.5 }, or { at_step = 4 }
    after_s = 0.02                         # later than that by so much (0)
    for_s = 2.0                            # kinds that pass: for so long
    times = 1                              # on_mark: at so many visits in a row (1)
    needs = "both"                         # "sim", "real" or "both" (what the kind can do)

Times are seconds; `at_s` counts from the beginning of the run. A mark is a place in a worker's life: see MARKS.

A mark can also be a stage of the coordinator: see STAGES. What strikes no process counts everybody's visits.

This module is pure: text in, data out.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1
KINDS: Mapping[str, str] = {
    "kill": "SIGKILL",
    "exit": "the process ends with exit code 3",
    "stop": "SIGSTOP, and SIGCONT after for_s",
    "deaf": "the whole process stands still for for_s, and the kernel does not call it stopped: a thread holds the interpreter lock",
    "hang": "the main thread stays where it is; the listener answers",
    "raise": "the script raises",
    "refuse": "the script's input is refused: the run is to stop",
    "lose_store": "the store's host ends",
    "hold": "messages to the process wait for for_s: its listener gets no processor",
    "mute": "messages from the process wait for for_s",
    "repeat": "messages to and from the process come twice, for for_s",
    "linger": "the process is in the kernel when it is killed: it ends for_s later",
    "lose_node": "a node loses power, and has it again for_s later, with nothing in memory",
    "cut": "the connection between a node's agent and the coordinator breaks, and cannot be made again for for_s",
    "lag": "messages between a node's agent and the coordinator wait for for_s",
    "lose_coordinator": "the coordinator dies, and another one comes for_s later",
}
PASSING = ("stop", "deaf", "hold", "mute", "repeat", "linger", "lose_node", "cut", "lag", "lose_coordinator")  # kinds with a for_s
SIM_ONLY = ("deaf", "hold", "mute", "repeat", "linger", "lose_node", "cut", "lag", "lose_coordinator")
NODE_KINDS = ("lose_node", "cut", "lag")
MARKS = (
    "boot", "join", "parked", "setup", "grouping", "restoring", "joined", "body", "reduced", "sealing", "prepared", "voting", "passed", "applied", "committed",
    "still", "settled", "donating", "phase", "closing", "finishing", "epilogue",
)  # fmt: skip
STAGES = ("enrolling", "rebuilding", "starting", "training", "gathering", "leaving", "moving", "handover", "clearing", "stopping")  # of the coordinator
FOR_S = 4.0


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`rank` -1: a spare; None: no process, but `node`, or the store, or the coordinator. One of `mark`, `at_s` and `at_step` says when."""

    id: str
    kind: str
    rank: int | None
    mark: str = ""
    nth: int = 1
    at_s: float | None = None
    at_step: int | None = None
    after_s: float = 0.0
    for_s: float = FOR_S
    times: int = 1
    node: int | None = None

    @property
    def target(self) -> dict[str, Any]:
        if self.rank is None:
            return {"node": self.node} if self.node is not None else {"store" if self.kind == "lose_store" else "coordinator": True}
        return {"spare": True} if self.rank < 0 else {"rank": self.rank}

    def as_dict(self) -> dict[str, Any]:
        """The form that `parse` takes."""
        when: dict[str, Any] = {"at_s": self.at_s} if self.at_s is not None else {"at_step": self.at_step} if self.at_step is not None else {}
        out: dict[str, Any] = {
            "id": self.id, "kind": self.kind,
            "target": self.target,
            "when": when or {"on_mark": self.mark, "nth": self.nth},
        }  # fmt: skip
        if self.after_s:
            out["after_s"] = self.after_s
        if self.kind in PASSING:
            out["for_s"] = self.for_s
        if self.times != 1:
            out["times"] = self.times
        return out


def parse(text: str, *, source: str) -> tuple[PlannedFault, ...]:
    """Raises UsageError, which names `source`, the fault and the key."""
    try:
        plan = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {error}") from None
    return read(plan, source=source)


def read(plan: Mapping[str, Any], *, source: str) -> tuple[PlannedFault, ...]:
    """A plan that is data already. Raises UsageError as `parse` does."""
    if plan.get("schema") != SCHEMA:
        raise UsageError(f"{source}: schema is {plan.get('schema')!r}; this version reads {SCHEMA}", hint=f"begin the file with `schema = {SCHEMA}`")
    _known(plan, ("schema", "fault"), source)
    faults = plan.get("fault", [])
    if not isinstance(faults, list) or not all(isinstance(one, dict) for one in faults):
        raise UsageError(f"{source}: faults are tables", hint="write each as `[[fault]]`")
    out = tuple(_fault(one, number, f"{source}, fault {one.get('id', number)}") for number, one in enumerate(faults, 1))
    twice = {one.id for one in out if sum(other.id == one.id for other in out) > 1}
    if twice:
        raise UsageError(f"{source}: several faults have the id {min(twice)!r}")
    return out


def render(faults: tuple[PlannedFault, ...]) -> str:
    """The plan as TOML, as `parse` reads it."""
    lines = [f"schema = {SCHEMA}"]
    for fault in faults:
        lines += ["", "[[fault]]", *(f"{key} = {_toml(value)}" for key, value in fault.as_dict().items())]
    return "\n".join(lines) + "\n"


_FAULT = ("id", "kind", "target", "when", "after_s", "for_s", "times", "needs")


def _fault(given: Mapping[str, Any], number: int, where: str) -> PlannedFault:
    _known(given, _FAULT, where)
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{where}: there is no fault kind {kind!r}", hint=_meant(str(kind), KINDS))
    needs = given.get("needs", "sim" if kind in SIM_ONLY else "both")
    if needs not in ("sim", "real", "both"):
        raise UsageError(f'{where}: needs is {needs!r}; it can be "sim", "real" or "both"')
    if needs != "sim" and kind in SIM_ONLY:
        raise UsageError(f"{where}: {kind} can only be had in the simulated world", hint='needs = "sim"')
    if "for_s" in given and kind not in PASSING:
        raise UsageError(f"{where}: {kind} does not pass, so it has no for_s")
    when: dict[str, Any] = {"mark": "", "nth": 1, "at_s": None, "at_step": None} | _when(given.get("when"), where)
    times = _whole(given.get("times", 1), f"{where}: times")
    if times != 1 and not when["mark"]:
        raise UsageError(f"{where}: times counts visits of a mark", hint="use when = { on_mark = ... }")
    return PlannedFault(
        id=str(given.get("id", number)), kind=kind, **_target(given.get("target"), kind, where), **when,
        after_s=_seconds(given.get("after_s", 0.0), f"{where}: after_s"), for_s=_seconds(given.get("for_s", FOR_S), f"{where}: for_s"), times=times,
    )  # fmt: skip


def _target(given: object, kind: str, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or len(given) != 1:
        raise UsageError(f"{where}: target is {given!r}", hint=f"{kind} strikes {' or '.join(_struck_by(kind))}, as in {{ rank = 1 }}, {{ spare = true }}")
    _known(given, ("rank", "spare", "store", "node", "coordinator"), where)
    what = next(iter(given))
    if what not in _struck_by(kind):
        raise UsageError(f"{where}: {kind} cannot strike {what}", hint=f"it strikes {' or '.join(_struck_by(kind))}")
    if what in ("rank", "node"):
        number = _whole(given[what], f"{where}: {what}", least=0)
        return {"rank": number} if what == "rank" else {"rank": None, "node": number}
    if given[what] is not True:
        raise UsageError(f"{where}: {what} is true, or not there")
    return {"rank": -1 if what == "spare" else None}


def _struck_by(kind: str) -> tuple[str, ...]:
    if kind in NODE_KINDS:
        return ("node", "rank")  # the node that the rank lives on
    return {"lose_store": ("store",), "lose_coordinator": ("coordinator",)}.get(kind, ("rank", "spare"))


def _when(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or sum(key in given for key in ("on_mark", "at_s", "at_step")) != 1:
        raise UsageError(f"{where}: when is {given!r}", hint='one of { on_mark = "voting", nth = 2 }, { at_s = 3.5 }, { at_step = 4 }')
    _known(given, ("on_mark", "nth", "at_s", "at_step"), where)
    if "nth" in given and "on_mark" not in given:
        raise UsageError(f"{where}: nth counts visits of a mark")
    if "at_s" in given:
        return {"at_s": _seconds(given["at_s"], f"{where}: at_s")}
    if "at_step" in given:
        return {"at_step": _whole(given["at_step"], f"{where}: at_step")}
    mark = given["on_mark"]
    if mark not in (*MARKS, *STAGES):
        raise UsageError(f"{where}: there is no mark {mark!r}", hint=_meant(str(mark), (*MARKS, *STAGES)))
    return {"mark": mark, "nth": _whole(given.get("nth", 1), f"{where}: nth")}


def _known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in keys:
            raise UsageError(f"{where}: there is no key {key!r}", hint=_meant(key, keys))


def _meant(word: str, choices: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {close[0]!r}?" if close else f"one of {', '.join(choices)}"


def _seconds(value: object, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):  # type: ignore[operator]
        raise UsageError(f"{where} is {value!r}; it is a number of seconds, not below 0")
    return float(value)  # type: ignore[arg-type]


def _whole(value: object, where: str, *, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise UsageError(f"{where} is {value!r}; it is a whole number from {least}")
    return value


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
