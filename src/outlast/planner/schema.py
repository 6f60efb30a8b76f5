"""The keys of a cluster file: how each is read, and its default with the reason.

If a key without a default is not given, `resolve.py` calculates the value from other keys, or the
key has no effect. For example, the state follows from the parameters, and the duration of a save
from state and bandwidth.

Sources have tags. [P]: read in the primary text. [S]: read in a secondary text. [C]: computed from
the cited figures. [M]: from memory, and not verified.

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
    """One key of a table.

    about    what the value means
    default  the default, as a file would have it; None if there is none
    why      where the default comes from
    """

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
        quantity(QuantityKind.PARAMETERS),
        "parameters of the model",
        "405e9",
        f"assumption: as {LLAMA}",
    ),
    "bytes_per_parameter": Field(
        number(least=0, above=True),
        "bytes of saved state for each parameter",
        12,
        "assumption: fp32 weights and two Adam moments [C]",
    ),
    "state": Field(
        quantity(QuantityKind.BYTES),
        "bytes of a checkpoint; if not given, parameters x bytes_per_parameter",
    ),
    "samples_per_step": Field(number(least=0), "samples in the global batch", 0, "not given"),
}
FAILURE: Mapping[str, Field] = {
    "class": Field(
        word(FailureClass), "cause of the failure, in the ledger's terms", "unknown", "not given"
    ),
    "unit": Field(
        word(Unit), "unit that the rate refers to", "gpu", "assumption: each GPU adds its share"
    ),
    "extent": Field(
        word(Extent),
        "what is lost with such a failure",
        "node",
        "assumption: the node is taken out for repair",
    ),
    "mttf": Field(
        quantity(QuantityKind.DURATION, endless=True),
        "mean time to failure of one unit; if shape is not 1, the scale of the Weibull law",
    ),
    "count": Field(number(least=0), "number of failures that were counted"),
    "exposure": Field(DURATION, "unit-time in which they were counted: 8 GPUs for 2 hours are 16h"),
    "shape": Field(
        number(least=0, above=True), "shape of the Weibull law", 1, "assumption: constant rate"
    ),
    "age": Field(
        DURATION_OR_NONE,
        "age of every unit when the run begins",
        "0s",
        "it matters only if shape is not 1",
    ),
    "waves": Field(WAVES, "times in which the rate is different"),
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
        "largest failure after which state can be restored from here; if not given, it follows from"
        " the redundancy; without one, it is run",
    ),
    "redundancy": Field(
        REDUNDANCY, "redundancy of state in the memory of nodes: none, copies=N, parity=K+M"
    ),
    "apart": Field(
        word(Unit),
        "whether copies are on other nodes, or in other racks",
        "rack",
        "assumption: placed by failure domain",
    ),
    "stall": Field(
        DURATION_OR_NONE,
        "how long training pauses for a save; if not given, as long as the write if blocking, else"
        " 0",
    ),
    "write": Field(
        DURATION_OR_NONE,
        "from the end of the stall until state can be restored; if not given, state / bandwidth",
    ),
    "blocking": Field(
        FLAG,
        "whether training waits for the write",
        True,
        "assumption: the cautious one; a save that overlaps training costs less",
    ),
    "restore": Field(
        SPREAD, "how long reading takes; if not given, as long as writing at the same bandwidth"
    ),
    "bandwidth": Field(quantity(QuantityKind.BANDWIDTH), "bandwidth of the whole tier"),
    "bandwidth_per_gpu": Field(
        quantity(QuantityKind.BANDWIDTH),
        "bandwidth of each GPU; that of the tier grows with the cluster",
    ),
}
RECOVERY: Mapping[str, Field] = {
    "detect": Field(
        SPREAD,
        "from the failure to its detection",
        "0s",
        "included in regroup, whose figure counts from the failure",
    ),
    "regroup": Field(
        SPREAD,
        "from detection until the group trains again, without the restore",
        {"median": "5min", "p95": "20min"},
        "5 to 20 min from failure to training: Meta, arXiv 2410.21680 [S]",
    ),
    "take": Field(
        SPREAD, "how long it takes to bring a spare node in", "0s", "included in regroup"
    ),
    "shrinks": Field(
        FLAG,
        "whether the run goes on with fewer nodes if no spare is at hand; otherwise it waits",
        False,
        "assumption: most runs wait",
    ),
}
REPAIR: Mapping[str, Field] = {
    "spares": Field(
        or_auto(quantity(QuantityKind.COUNT, zero=True)),
        "number of nodes that stand ready when the run begins",
        readers.AUTO,
        "chosen by the plan",
    ),
    "time": Field(
        SPREAD,
        "from the loss of a node until it is a spare again",
        "24h",
        "assumption: 24 h; 72 h and 168 h are as common [C]",
    ),
    "wrong": Field(
        SHARE,
        "share of node losses at which a healthy node is taken out as well",
        0,
        "assumption: each diagnosis is right",
    ),
    "missed": Field(
        SHARE,
        "share of repairs after which the node is as faulty as before",
        0,
        "assumption: each repair works",
    ),
}
LEMONS: Mapping[str, Field] = {
    "share": Field(
        SHARE, "share of nodes that fail more often", 0, "not given: all nodes are alike"
    ),
    "factor": Field(
        number(least=1), "failure rate of these nodes, as a multiple of the usual", 1, "not given"
    ),
    "caught": Field(
        SHARE, "probability that such a node is removed after a failure of it", 0, "not given"
    ),
}
STRAGGLERS: Mapping[str, Field] = {
    "mttf": Field(
        quantity(QuantityKind.DURATION, endless=True),
        "mean time until a node becomes slow",
        "never",
        "not given: no stragglers",
    ),
    "slowdown": Field(
        number(least=1), "how many times as long a step takes while a node is slow", 1, "not given"
    ),
    "lasts": Field(SPREAD, "until the slow node is found and replaced", "0s", "not given"),
}
MAINTENANCE: Mapping[str, Field] = {
    "every": Field(
        quantity(QuantityKind.DURATION, endless=True),
        "time between two planned stops",
        "never",
        "not given: no maintenance",
    ),
    "lasts": Field(DURATION_OR_NONE, "length of each stop", "0s", "not given"),
}
THROTTLE: Mapping[str, Field] = {
    "share": Field(
        SHARE, "share of speed lost at the hottest hour of a day", 0, "not given: no throttling"
    )
}
MONEY: Mapping[str, Field] = {
    "gpu_hour": Field(
        quantity(QuantityKind.PRICE), "price of a GPU-hour; if not given, no costs are calculated"
    )
}
POWER: Mapping[str, Field] = {
    "gpu": Field(
        WATTS,
        "power of a GPU that trains, with its share of the node",
        "700W",
        f"TDP of an H100, {LLAMA}",
    ),
    "idle": Field(
        SHARE,
        "share of that power while training has stopped or pauses",
        "20%",
        "assumption: no figure was found",
    ),
    "edge": Field(
        DURATION, "time in which all GPUs stop, or begin", "1s", "assumption: within a second"
    ),
}
# tables that occur once, and their keys
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
# tables that may occur several times, each under its name, and their keys
LISTS: Mapping[str, Mapping[str, Field]] = {"failure": FAILURE, "tier": TIER}

# the table that is used if a file has none of this kind
DEFAULT_LISTS: Mapping[str, Mapping[str, object]] = {
    "failure": {
        "name": "all",
        "count": 419,
        "exposure": "21233664h",
        "source": (
            "assumption: 419 unexpected interruptions of 16,384 GPUs in 54 days, and each of them"
            f" loses a node; {LLAMA}"
        ),
    },
    "tier": {
        "name": "storage",
        "bandwidth": "2TB/s",
        "survives": "run",
        "source": f"assumption: 2 TB/s sustained, as {LLAMA}",
    },
}
