"""The keys of a cluster file: how each is read, and its default with the reason.

A key without a default has no effect until it is given; `needed` says what to do then. `resolve.py`
works out values from other keys, such as the state from the parameters, or a save from state and
bandwidth.

Tags of sources: [P] read in the primary text, [S] read in a secondary text, [C] computed from what
is cited, [M] remembered: unverified.

This module is pure: data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.model.quantities import QuantityKind
from outlast.model.terms import FailureClass
from outlast.planner import readers
from outlast.planner.readers import (
    FLAG,
    REDUNDANCY,
    SPREAD,
    WATTS,
    WAVES,
    ValueReader,
    number,
    or_auto,
    quantity,
    word,
)
from outlast.planner.scenario import Extent, Unit

LLAMA = "Llama 3 405B, arXiv 2407.21783, section 3.3 [P]"


@dataclass(frozen=True, slots=True)
class Field:
    """One key. `default` is as a file would have it, and `why` says where it comes from."""

    reader: ValueReader
    about: str
    default: object = None
    why: str = ""


DURATION, DURATION_OR_NONE = (
    quantity(QuantityKind.DURATION),
    quantity(QuantityKind.DURATION, zero=True),
)
COUNT, SHARE = quantity(QuantityKind.COUNT), quantity(QuantityKind.SHARE, zero=True)

JOB: Mapping[str, Field] = {
    "gpus": Field(COUNT, "GPUs that train at a time", 16_384, f"assumption: as many as {LLAMA}"),
    "duration": Field(DURATION, "length of the run", "54d", f"assumption: as long as {LLAMA}"),
    "gpus_per_node": Field(COUNT, "GPUs that are lost with a node", 8, f"assumption: as {LLAMA}"),
    "nodes_per_rack": Field(
        COUNT,
        "nodes that are lost with a rack",
        2,
        f"assumption: as {LLAMA}: 16 GPUs under one switch",
    ),
    "step": Field(
        DURATION,
        "one optimizer update",
        "6.2s",
        "assumption: 405e9 parameters, 16.8 M tokens, 16,384 GPUs of 400 TFLOP/s [C]",
    ),
    "parameters": Field(
        quantity(QuantityKind.PARAMETERS), "of the model", "405e9", f"assumption: as {LLAMA}"
    ),
    "bytes_per_parameter": Field(
        number(least=0, above=True),
        "of saved state",
        12,
        "assumption: fp32 weights and two Adam moments [C]",
    ),
    "state": Field(
        quantity(QuantityKind.BYTES),
        "what a checkpoint holds; else parameters x bytes_per_parameter",
    ),
    "samples_per_step": Field(number(least=0), "in the global batch", 0, "not asked for"),
}
FAILURE: Mapping[str, Field] = {
    "class": Field(word(FailureClass), "why (the terms of the ledger)", "unknown", "not said"),
    "unit": Field(word(Unit), "what the rate is of", "gpu", "assumption: each GPU adds its share"),
    "extent": Field(
        word(Extent), "what is lost with it", "node", "assumption: the node is taken out for repair"
    ),
    "mttf": Field(
        quantity(QuantityKind.DURATION, endless=True),
        "mean time to failure of one unit; with a shape, the Weibull scale",
    ),
    "count": Field(number(least=0), "failures that were counted"),
    "exposure": Field(DURATION, "unit-time in which they were counted: 8 GPUs for 2 hours are 16h"),
    "shape": Field(number(least=0, above=True), "of a Weibull law", 1, "assumption: constant rate"),
    "age": Field(
        DURATION_OR_NONE,
        "of every unit when the run begins",
        "0s",
        "matters only where shape is not 1",
    ),
    "waves": Field(WAVES, "times with another rate"),
}
TIER: Mapping[str, Field] = {
    "interval": Field(
        or_auto(quantity(QuantityKind.DURATION, endless=True)),
        "productive time between two saves",
        readers.AUTO,
        "chosen by the plan",
    ),
    "survives": Field(
        word(Extent),
        "the largest loss after which it can be restored; else by its redundancy, else run",
    ),
    "redundancy": Field(
        REDUNDANCY, "of state kept in the memory of nodes: none, copies=N, parity=K+M"
    ),
    "apart": Field(
        word(Unit),
        "copies lie on other nodes, or in other racks",
        "rack",
        "assumption: placed by failure domain",
    ),
    "stall": Field(
        DURATION_OR_NONE,
        "training stands still for a save; else as long as the write if blocking, else 0",
    ),
    "write": Field(
        DURATION_OR_NONE,
        "from the end of the stall until it can be restored; else state / bandwidth",
    ),
    "blocking": Field(
        FLAG,
        "training waits for the write",
        True,
        "assumption: the safe one; a save that overlaps training costs less",
    ),
    "restore": Field(SPREAD, "reading it back; else as long as the write at the same bandwidth"),
    "bandwidth": Field(quantity(QuantityKind.BANDWIDTH), "of all of it together"),
    "bandwidth_per_gpu": Field(
        quantity(QuantityKind.BANDWIDTH), "of each GPU's share: grows with the cluster"
    ),
}
RECOVERY: Mapping[str, Field] = {
    "detect": Field(
        SPREAD,
        "failure to detection",
        "0s",
        "counted in the restart, whose figure is from the failure on",
    ),
    "regroup": Field(
        SPREAD,
        "detection to a group that trains again, without the restore",
        {"median": "5min", "p95": "20min"},
        "5 to 20 min from failure to training: Meta, arXiv 2410.21680 [S]",
    ),
    "take": Field(SPREAD, "until a spare node has taken its place", "0s", "counted in the restart"),
    "shrinks": Field(
        FLAG,
        "goes on with fewer nodes where no spare is at hand; else waits",
        False,
        "assumption: as most runs do",
    ),
}
REPAIR: Mapping[str, Field] = {
    "spares": Field(
        or_auto(quantity(QuantityKind.COUNT, zero=True)),
        "nodes that stand ready when the run begins",
        readers.AUTO,
        "chosen by the plan",
    ),
    "time": Field(
        SPREAD,
        "loss of a node until it is a spare again",
        "24h",
        "assumption: 24 h; 72 h and 168 h are as usual [C]",
    ),
    "wrong": Field(
        SHARE,
        "of losses at which a healthy node is taken out as well",
        0,
        "assumption: diagnosis is right",
    ),
    "missed": Field(
        SHARE,
        "of repairs after which the node is as faulty as before",
        0,
        "assumption: repairs work",
    ),
}
LEMONS: Mapping[str, Field] = {
    "share": Field(SHARE, "of nodes that fail more often", 0, "not given: all nodes alike"),
    "factor": Field(number(least=1), "times the usual rate", 1, "not given"),
    "caught": Field(SHARE, "chance that a failure of one gets it removed", 0, "not given"),
}
STRAGGLERS: Mapping[str, Field] = {
    "mttf": Field(
        quantity(QuantityKind.DURATION, endless=True),
        "of one node, until it is slow",
        "never",
        "not given: none",
    ),
    "slowdown": Field(number(least=1), "of the run while it lasts", 1, "not given"),
    "lasts": Field(SPREAD, "until it is found and replaced", "0s", "not given"),
}
MAINTENANCE: Mapping[str, Field] = {
    "every": Field(
        quantity(QuantityKind.DURATION, endless=True),
        "planned interruptions",
        "never",
        "not given: none",
    ),
    "lasts": Field(DURATION_OR_NONE, "each", "0s", "not given"),
}
THROTTLE: Mapping[str, Field] = {
    "share": Field(SHARE, "of speed lost at the hottest hour of a day", 0, "not given: none")
}
MONEY: Mapping[str, Field] = {
    "gpu_hour": Field(
        quantity(QuantityKind.PRICE), "what one GPU costs; else no money is worked out"
    )
}
POWER: Mapping[str, Field] = {
    "gpu": Field(
        WATTS,
        "drawn by a GPU that trains, its share of the node included",
        "700W",
        f"TDP of an H100, {LLAMA}",
    ),
    "idle": Field(
        SHARE,
        "of that, drawn while training stands still",
        "20%",
        "assumption: no figure was at hand",
    ),
    "edge": Field(
        DURATION, "in which all GPUs stop or begin together", "1s", "assumption: within a second"
    ),
}
# a table that may stand once -> its keys
TABLES: Mapping[str, Mapping[str, Field]] = {
    "job": JOB,
    "recovery": RECOVERY,
    "repair": REPAIR,
    "lemons": LEMONS,
    "stragglers": STRAGGLERS,
    "maintenance": MAINTENANCE,
    "throttle": THROTTLE,
    "money": MONEY,
    "power": POWER,
}
# a table that may stand several times, each under its name -> its keys
LISTS: Mapping[str, Mapping[str, Field]] = {"failure": FAILURE, "tier": TIER}

# used if a file does not say how things fail, or where state is kept
DEFAULT_LISTS: Mapping[str, Mapping[str, object]] = {
    "failure": {
        "name": "all",
        "count": 419,
        "exposure": "21233664h",
        "source": (
            "assumption: 419 unexpected interruptions of 16,384 GPUs in 54 days, all of which lose"
            f" a node; {LLAMA}"
        ),
    },
    "tier": {
        "name": "storage",
        "bandwidth": "2TB/s",
        "survives": "run",
        "source": f"assumption: 2 TB/s sustained, as {LLAMA}",
    },
}
