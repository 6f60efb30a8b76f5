"""The options of a run on several nodes.

They say how many nodes there are, where the nodes meet, and which of them this one is.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.texts import cut_at_word

_PORT = 29_400  # torchrun's own, where an endpoint names none
_NODES_MAX_COUNT = 16_384


@dataclass(frozen=True)
class NodeArguments:
    """The options of several nodes, from the command line of this node.

    count            --nnodes: how many nodes hold ranks
    spares           --spare-nodes: how many more nodes stand ready
    host, port       where the coordinator is: --rdzv-endpoint, or --master-addr and --master-port
    place            --node-rank; -1: not given, and nodes are ordered by name
    name             --node-name: the name of this node
    local_addr       the address of this node for the others; "": that of the route to the endpoint
    join_timeout_s   --join-timeout
    token_file       the file with the token; "": the token is in OUTLAST_TOKEN
    lease_s          --lease: a node is lost after this many seconds without a message from it
    run              --rdzv-id: the name of the run
    ports            --port-range: the first and the last port to listen at; None: any port
    domain           --node-domain: nodes that name the same one can be lost together; "": not known
    """

    count: int
    spares: int
    host: str
    port: int
    place: int
    name: str
    local_addr: str
    join_timeout_s: float
    token_file: str
    lease_s: float
    run: str
    ports: tuple[int, int] | None = None
    domain: str = ""


def is_several(asked: Mapping[str, Any]) -> bool:
    """Return whether several nodes are asked for. Raises UsageError unless --nnodes is a number."""
    return bool(_count(asked["nnodes"]) > 1 or asked["spare_nodes"])


def read_nodes(asked: Mapping[str, Any], given: set[str]) -> NodeArguments | None:
    """Return the options of several nodes, or None for one. Raises UsageError."""
    if not is_several(asked):
        return None
    count, spares = _count(asked["nnodes"]), asked["spare_nodes"]
    if count + spares > _NODES_MAX_COUNT:
        raise UsageError(
            f"--nnodes {count} and --spare-nodes {spares}: more than {_NODES_MAX_COUNT:,} nodes",
            hint="lower one of them",
        )
    host, port = _endpoint(asked, given)
    small = count + spares <= limits.LEASE_NODES_COUNT
    usual_s = limits.LEASE_S if small else limits.BEAT_S * limits.LEASE_BEATS
    return NodeArguments(
        count=count,
        spares=spares,
        host=host,
        port=port,
        place=-1 if asked["node_rank"] is None else int(asked["node_rank"]),
        name=asked["node_name"] or _own_name(os.environ),
        local_addr=asked["local_addr"] or "",
        join_timeout_s=asked["join_timeout"] or limits.ENROL_WAIT_S,
        token_file=asked["token_file"] or "",
        lease_s=asked["lease"] or usual_s,
        run=asked["rdzv_id"],
        ports=_ports(asked.get("port_range") or ""),
        domain=_domain(asked.get("node_domain"), os.environ),
    )


def _count(text: str) -> int:
    """Return the number of --nnodes. A range is refused: the number of ranks stays as it is."""
    found = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text)
    least = int(found[1]) if found else 0
    most = int(found[2] or least) if found else 0
    if not 1 <= least <= most:
        raise UsageError(
            f"--nnodes {text}: is not a number of nodes, and not a range of them as MIN:MAX",
            hint="write --nnodes 2, or leave it out where there is one node",
        )
    if least != most:
        raise UsageError(
            f"--nnodes {text}: the number of ranks stays the same from start to end",
            hint=f"write --nnodes {least}; with --spare-nodes S, S more nodes stand ready",
        )
    return least


def _endpoint(asked: Mapping[str, Any], given: set[str]) -> tuple[str, int]:
    text = asked["rdzv_endpoint"]
    if not text and {"master_addr", "master_port"} & given:
        return asked["master_addr"], int(asked["master_port"])
    address = address_of(text)
    if address is None:
        raise UsageError(
            f"--rdzv-endpoint {text!r}: several nodes have to know where they meet",
            hint="give --rdzv-endpoint HOST:PORT, the same on all nodes; HOST is one of them",
        )
    return address


def address_of(text: str) -> tuple[str, int] | None:
    """Return host and port of HOST[:PORT], or None if it is none. The port is torchrun's if not
    given.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORT)
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 1 << 16:
        return None
    return host.strip("[]"), int(port)


def _ports(text: str) -> tuple[int, int] | None:
    """Return the first and the last port of --port-range, or None if it was not given."""
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise UsageError(
            f"--port-range {text}: is not a range of ports",
            hint="give the first and the last one, as in --port-range 30000-30019",
        )
    if last - first + 1 < limits.PORTS_LEAST_COUNT:
        raise UsageError(
            f"--port-range {text}: a launcher needs {limits.PORTS_LEAST_COUNT} ports",
            hint="give a larger range; each further launcher on the same machine needs as many",
        )
    return first, last


def _own_name(environment: Mapping[str, str]) -> str:
    """Return the host's name. The scheduler's number is added, since nodes may share a host."""
    words = [platform.node() or "node"]
    words += [
        environment[name]
        for name in ("SLURM_NODEID", "JOB_COMPLETION_INDEX")
        if name in environment
    ]
    return "-".join(words)


def _domain(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the failure domain of this node: as given, or as the scheduler says; "": not known.

    Raises UsageError for a name that cannot be one.
    """
    name, said = given, "--node-domain"
    if name is None:
        name, said = environment.get("OUTLAST_NODE_DOMAIN", ""), "OUTLAST_NODE_DOMAIN"
    if not name.isprintable() or name != name.strip() or len(name) > limits.DOMAIN_MAX_CHARACTERS:
        raise UsageError(
            f"{said} {cut_at_word(name, 80)!r}: is no name of a failure domain",
            hint=f"up to {limits.DOMAIN_MAX_CHARACTERS} printable characters, such as rack-7; the"
            " same on all nodes that can be lost together",
        )
    if name or given is not None:
        return name
    return _slurm_domain(
        environment.get("SLURM_TOPOLOGY_ADDR", ""),
        environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""),
    )


def _slurm_domain(address: str, pattern: str) -> str:
    """Return the path from the top of Slurm's topology to what is right above the node.

    `core.leaf7.tux12` with the pattern `switch.switch.node` is below `core.leaf7`. It is "" if
    nothing is above the node, or if the two do not fit each other.
    """
    kinds = pattern.split(".")
    parts = address.split(".", len(kinds) - 1)  # the name of a node may have dots
    if len(parts) != len(kinds) or kinds[-1] != "node" or not all(parts):
        return ""
    above = ".".join(parts[:-1])
    return above if len(above) <= limits.DOMAIN_MAX_CHARACTERS and above.isprintable() else ""
