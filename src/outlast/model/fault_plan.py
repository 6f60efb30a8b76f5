"""Fault plans say which fault strikes what, and when.

A plan is data. The simulated world and drills on real processes read the same plans.

    schema = 1

    [[fault]]
    id = "first"                           # optional; by default its number
    kind = "kill"                          # see KINDS
    target = { rank = 1 }                  # or { spare = true }, { store = true },
                                           # { coordinator = true }, { node = 0 },
                                           # { disk = 0 } or { agent = 0 } (of that node),
                                           # { link = [0, 1] } (between two nodes)
    when = { on_mark = "voting", nth = 2 } # or { at_s = 3.5 }, or { at_step = 4 }
    after_s = 0.02                         # delay after that (default 0)
    for_s = 2.0                            # duration, for kinds that end by themselves
    times = 1                              # on_mark: number of visits in a row (default 1)
    needs = "both"                         # "sim", "real" or "both": where the kind can be used

Times are in seconds; `at_s` counts from the beginning of the run. A mark is a place in the course
of a worker: see MARKS, and SAVE_MARKS where checkpoints are written. A mark can also be a stage of
the coordinator: see STAGES. If a fault strikes no process, the visits of all processes count.

This module is pure: text in, data out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError
from outlast.model.strict import check_schema, known, meant, seconds, toml, whole

SCHEMA = 1
KINDS: Mapping[str, str] = {
    "kill": "SIGKILL",
    "exit": "the process ends with exit code 3",
    "stop": "SIGSTOP, and SIGCONT after for_s; if it strikes an agent, its workers go on",
    "deaf": (
        "the whole process stands still for for_s because a thread holds the interpreter lock; the"
        " kernel does not report it as stopped"
    ),
    "starve": "the process is ready to run, but has no processor for for_s; no rank is to blame",
    "hang": "the main thread stays where it is; the listener answers",
    "raise": "the script raises",
    "refuse": "the script's input is refused, so the run has to stop",
    "lose_store": "the store's host ends",
    "hold": "messages to the process wait for for_s, because its listener gets no processor",
    "mute": "messages from the process wait for for_s",
    "repeat": "messages to and from the process come twice, for for_s",
    "linger": "the process is in the kernel when it is killed, so it ends for_s later",
    "lose_node": "a node loses power; for_s later it has power again, and nothing in memory",
    "cut": (
        "the connection between a node's agent and the coordinator breaks, and no new one can be"
        " made for for_s"
    ),
    "lag": "messages between a node's agent and the coordinator wait for for_s",
    "freeze": "a whole node and its kernel stand still for for_s; everything that was due is late",
    "part": "two nodes cannot reach each other for for_s; the coordinator reaches both",
    "snap": "all connections between two nodes are reset at once",
    "lose_coordinator": "the coordinator dies, and another one takes over for_s later",
    "slow_disk": "for for_s, reading from a disk and writing to it take 50 times as long",
    "full_disk": "a disk has no room left, for for_s",
    "torn_write": (
        "for for_s, files that are written to a disk are cut short, though the disk reports success"
    ),
    "corrupt_disk": "bits flip in about half of the files on a disk",
}
# kinds with a for_s
PASSING = (
    "stop",
    "deaf",
    "starve",
    "hold",
    "mute",
    "repeat",
    "linger",
    "lose_node",
    "cut",
    "lag",
    "freeze",
    "part",
    "lose_coordinator",
    "slow_disk",
    "full_disk",
    "torn_write",
)
SIM_ONLY = (
    "deaf",
    "starve",
    "hold",
    "mute",
    "repeat",
    "linger",
    "lose_node",
    "cut",
    "lag",
    "freeze",
    "part",
    "snap",
    "lose_coordinator",
    "slow_disk",
    "full_disk",
    "torn_write",
    "corrupt_disk",
)
NODE_KINDS = ("lose_node", "cut", "lag", "freeze")
DRILL_NODE_KINDS = (
    "flap",
    "slow_link",
    "lose_agent",
    "maintenance",
)  # a drill has these beside them
LINK_KINDS = ("part", "snap")
DISK_KINDS = ("slow_disk", "full_disk", "torn_write", "corrupt_disk")
MARKS = (
    "boot",
    "join",
    "parked",
    "setup",
    "grouping",
    "restoring",
    "joined",
    "body",
    "reduced",
    "sealing",
    "prepared",
    "voting",
    "passed",
    "applied",
    "committed",
    "still",
    "settled",
    "donating",
    "phase",
    "closing",
    "finishing",
    "epilogue",
)
# saving: a rank is about to copy a shard of a checkpoint; saved: it is copied, and is being written
SAVE_MARKS = ("saving", "saved")
# the stages of the coordinator
STAGES = (
    "enrolling",
    "rebuilding",
    "starting",
    "training",
    "gathering",
    "leaving",
    "moving",
    "handover",
    "clearing",
    "stopping",
)
FOR_S = 4.0
NO_MORE: Mapping[str, bool] = {}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a plan.

    rank    the rank that is struck; -1 for a spare; None if no process is struck. In the last case
            one of the fields below names the target, or it is the store or the coordinator
    node    the node that is struck
    peer    with `node`: the link between the two nodes is struck
    agent   with `node`: the agent of that node is struck
    disk    the node whose disk is struck

    One of `mark`, `at_s` and `at_step` says when the fault strikes.
    """

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
    peer: int | None = None
    agent: bool = False
    disk: int | None = None

    @property
    def target(self) -> dict[str, Any]:
        if self.disk is not None:
            return {"disk": self.disk}
        if self.peer is not None:
            return {"link": [self.node, self.peer]}
        if self.agent:
            return {"agent": self.node}
        if self.rank is None:
            return (
                {"node": self.node}
                if self.node is not None
                else {"store" if self.kind == "lose_store" else "coordinator": True}
            )
        return {"spare": True} if self.rank < 0 else {"rank": self.rank}

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `parse` takes."""
        when: dict[str, Any] = (
            {"at_s": self.at_s}
            if self.at_s is not None
            else {"at_step": self.at_step}
            if self.at_step is not None
            else {}
        )
        out: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "target": self.target,
            "when": when or {"on_mark": self.mark, "nth": self.nth},
        }
        if self.after_s:
            out["after_s"] = self.after_s
        if self.kind in PASSING:
            out["for_s"] = self.for_s
        if self.times != 1:
            out["times"] = self.times
        return out


def parse(text: str, *, source: str) -> tuple[PlannedFault, ...]:
    """Read a fault plan. Raises UsageError, which names `source`, the fault and the key."""
    return read(toml(text, source=source, schema=SCHEMA), source=source)


def read(
    plan: Mapping[str, Any], *, source: str, more: Mapping[str, bool] = NO_MORE
) -> tuple[PlannedFault, ...]:
    """Read a plan from parsed TOML. Raises UsageError as `parse` does.

    more   further kinds that the caller knows, and whether they end by themselves
    """
    check_schema(plan, source=source, schema=SCHEMA)
    known(plan, ("schema", "fault"), source)
    faults = plan.get("fault", [])
    if not isinstance(faults, list) or not all(isinstance(one, dict) for one in faults):
        raise UsageError(f"{source}: faults have to be tables", hint="write each as `[[fault]]`")
    out = tuple(
        _fault(one, number, f"{source}, fault {one.get('id', number)}", more)
        for number, one in enumerate(faults, 1)
    )
    twice = {one.id for one in out if sum(other.id == one.id for other in out) > 1}
    if twice:
        raise UsageError(f"{source}: several faults have the id {min(twice)!r}")
    return out


def render(faults: tuple[PlannedFault, ...]) -> str:
    """Write the plan as TOML that `parse` reads."""
    lines = [f"schema = {SCHEMA}"]
    for fault in faults:
        lines += [
            "",
            "[[fault]]",
            *(f"{key} = {_toml(value)}" for key, value in fault.as_dict().items()),
        ]
    return "\n".join(lines) + "\n"


_FAULT = ("id", "kind", "target", "when", "after_s", "for_s", "times", "needs")


def _fault(
    given: Mapping[str, Any], number: int, where: str, more: Mapping[str, bool]
) -> PlannedFault:
    known(given, _FAULT, where)
    kind, kinds = given.get("kind"), {**KINDS, **more}
    if not isinstance(kind, str) or kind not in kinds:
        raise UsageError(f"{where}: there is no fault kind {kind!r}", hint=meant(str(kind), kinds))
    needs = given.get("needs", "sim" if kind in SIM_ONLY else "both")
    if needs not in ("sim", "real", "both"):
        raise UsageError(f'{where}: needs is {needs!r}; it can be "sim", "real" or "both"')
    if needs != "sim" and kind in SIM_ONLY and kind not in more:
        raise UsageError(
            f"{where}: {kind} is possible only in the simulated world", hint='needs = "sim"'
        )
    if "for_s" in given and not more.get(kind, kind in PASSING):
        raise UsageError(f"{where}: {kind} does not end by itself, so it has no for_s")
    when: dict[str, Any] = {"mark": "", "nth": 1, "at_s": None, "at_step": None} | _when(
        given.get("when"), where
    )
    times = whole(given.get("times", 1), f"{where}: times")
    if times != 1 and not when["mark"]:
        raise UsageError(
            f"{where}: times counts visits of a mark", hint="use when = { on_mark = ... }"
        )
    return PlannedFault(
        id=str(given.get("id", number)),
        kind=kind,
        **_target(given.get("target"), kind, where),
        **when,
        after_s=seconds(given.get("after_s", 0.0), f"{where}: after_s"),
        for_s=seconds(given.get("for_s", FOR_S), f"{where}: for_s"),
        times=times,
    )


def _target(given: object, kind: str, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or len(given) != 1:
        raise UsageError(
            f"{where}: target is {given!r}",
            hint=(
                f"{kind} strikes {' or '.join(_struck_by(kind))}, as in {{ rank = 1 }}, {{ spare ="
                " true }"
            ),
        )
    known(given, ("rank", "spare", "store", "node", "agent", "link", "disk", "coordinator"), where)
    what = next(iter(given))
    if what not in _struck_by(kind):
        raise UsageError(
            f"{where}: {kind} cannot strike {what}",
            hint=f"it strikes {' or '.join(_struck_by(kind))}",
        )
    if what == "link":
        return _link(given[what], where)
    if what in ("rank", "node", "agent", "disk"):
        number = whole(given[what], f"{where}: {what}", least=0)
        if what == "disk":
            return {"rank": None, "disk": number}
        return (
            {"rank": number}
            if what == "rank"
            else {"rank": None, "node": number, "agent": what == "agent"}
        )
    if given[what] is not True:
        raise UsageError(f"{where}: {what} has to be true, or to be left out")
    return {"rank": -1 if what == "spare" else None}


def _link(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, list) or len(given) != 2 or given[0] == given[1]:
        raise UsageError(
            f"{where}: link is {given!r}; it is two different nodes", hint="as in { link = [0, 1] }"
        )
    node, peer = (whole(one, f"{where}: link", least=0) for one in given)
    return {"rank": None, "node": node, "peer": peer}


def _struck_by(kind: str) -> tuple[str, ...]:
    if kind in LINK_KINDS:
        return ("link",)
    if kind in (*NODE_KINDS, *DRILL_NODE_KINDS):
        return ("node", "rank")  # the node that the rank lives on
    if kind in DISK_KINDS:
        return ("disk",)
    return {
        "lose_store": ("store",),
        "lose_coordinator": ("coordinator",),
        "stop": ("rank", "spare", "agent"),
    }.get(kind, ("rank", "spare"))


def _when(given: object, where: str) -> dict[str, Any]:
    if (
        not isinstance(given, dict)
        or sum(key in given for key in ("on_mark", "at_s", "at_step")) != 1
    ):
        raise UsageError(
            f"{where}: when is {given!r}",
            hint='one of { on_mark = "voting", nth = 2 }, { at_s = 3.5 }, { at_step = 4 }',
        )
    known(given, ("on_mark", "nth", "at_s", "at_step"), where)
    if "nth" in given and "on_mark" not in given:
        raise UsageError(f"{where}: nth counts visits of a mark")
    if "at_s" in given:
        return {"at_s": seconds(given["at_s"], f"{where}: at_s")}
    if "at_step" in given:
        return {"at_step": whole(given["at_step"], f"{where}: at_step")}
    mark = given["on_mark"]
    if mark not in (*MARKS, *SAVE_MARKS, *STAGES):
        raise UsageError(
            f"{where}: there is no mark {mark!r}",
            hint=meant(str(mark), (*MARKS, *SAVE_MARKS, *STAGES)),
        )
    return {"mark": mark, "nth": whole(given.get("nth", 1), f"{where}: nth")}


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
