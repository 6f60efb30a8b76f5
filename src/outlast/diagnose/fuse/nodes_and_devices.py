"""Where it failed: the nodes and the devices of a verdict.

They are those of the lines that show the class and the guilty ranks. Of a link the healthy end
complains too, so its lines name a place only where the other end shows itself.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.weigh import SOFT, RuleVote
from outlast.diagnose.logs.device_names import OF_A_GPU, is_numbered
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role

PLACES_MAX = 8
SAID_OF_THE_FAR_END = ("ib.", "nccl.")  # who reports it may be the healthy end of a link
OF_THE_OWN_END = ("ib.port_error", "ib.device_fatal", "ib.local_fault")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_FROM_OUTSIDE = ("exit.outside", "exit.closing")  # the whole job was ended, on all its nodes
# the whole job was ended, on all its nodes; Slurm names the one on which its script ran
_OF_THE_WHOLE_JOB = ("slurm.time", "slurm.cancelled_job", "batch.time")
_UNKNOWN = FailureClass.UNKNOWN
_RANK_LABEL = re.compile(r"^\[rank(\d{1,6})\]:")
_TASK_LABEL = re.compile(r"^ {0,4}(\d{1,5}): ")
_TASK_ENDED = re.compile(r"srun: error: ([A-Za-z][\w.-]{0,60}): task (\d{1,5}): ")
_PEER = re.compile(r"completion from peer ([\w.:%-]{2,80})<\d{1,5}>")


def places_of(
    named: FailureClass,
    supporting: Sequence[RuleVote],
    findings: Sequence[Finding],
    ranks: set[int],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes and the devices of the verdict; `ranks` are the guilty ones."""
    rules = {vote.rule.name for vote in supporting} if named is not _UNKNOWN else set()
    if rules and rules.issubset(_OF_THE_WHOLE_JOB) and not ranks:
        return (), ()
    shown = [
        one
        for one in findings
        if one.rule in rules or (one.rank in ranks and one.evidence.role is not Role.EFFECT)
    ]
    if named is _UNKNOWN:  # why it was lost is not known, but on which node
        shown += [one for one in findings if _is_lost(one)]
    placed = [one for one in shown if one.node]
    own = [one for one in placed if one.evidence.role is Role.ROOT or one.rank in ranks]
    near = [one for one in own or placed if not one.rule.startswith(SAID_OF_THE_FAR_END)]
    nodes = Counter(one.node for one in near or own or placed if one.node)
    if not near:
        nodes = _ends_of_the_link(own or placed) or nodes
    if not nodes:
        nodes = Counter(_hosts_by_srun(shown, findings, ranks))
    if not nodes and named is not _UNKNOWN:
        nodes = Counter(_host_of_the_launcher(supporting[0].finding.evidence.file, findings))
    if len(nodes) > 1:  # a launcher's name for its own host says nothing beside a real one
        nodes = Counter({name: count for name, count in nodes.items() if name not in _LOCAL})
    devices = Counter(_devices([one for one in shown if one.device and one.rule in rules]))
    if devices and all(map(is_numbered, devices)):
        devices = _addresses(findings, nodes) or devices
    if named in SOFT and not ranks and len(nodes) > 1:
        return (), ()  # a program fails on all its nodes, and that is not their fault
    first = {_address(name): name for name in reversed(list(devices))}
    return tuple(name for name, _ in nodes.most_common(PLACES_MAX)), tuple(
        name for name, _ in devices.most_common(PLACES_MAX) if first[_address(name)] == name
    )


def _is_lost(one: Finding) -> bool:
    """Return True for a report of a node that was lost, or of a process that a signal ended."""
    ended = one.rule.startswith("exit.") and one.mechanism is Mechanism.SIGNAL
    lost = one.mechanism is Mechanism.LOST_CONTACT or (ended and one.rule not in _FROM_OUTSIDE)
    return lost and one.evidence.role is Role.MESSENGER


def near_the_fault(lines: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the lines without those that the healthy ends of a link wrote.

    All are returned if one rank alone complains: then no other line shows which end is healthy.
    """
    of_links = [
        one
        for one in lines
        if one.rule.startswith(SAID_OF_THE_FAR_END) and one.rule not in OF_THE_OWN_END
    ]
    if len({one.rank for one in of_links}) < 2:
        return tuple(lines)
    ends = _ends_of_the_link(lines)
    return tuple(one for one in lines if one not in of_links or one.node in ends)


def _ends_of_the_link(lines: Sequence[Finding]) -> Counter[str]:
    """Return the end of a link that its lines show to be at fault; empty where they show none.

    It is the host whose own port or adapter failed. If no line shows that, it is the only host that
    lost several peers, if the other hosts together lost one peer at most. If no host lost several
    peers, it is the only peer that was lost, if several hosts lost it.
    """
    own = Counter(one.node for one in lines if one.rule in OF_THE_OWN_END and one.node)
    if own:
        return own
    lost: dict[str, set[str]] = defaultdict(set)  # the peers that each host lost
    for one in lines:
        if one.node and (found := _PEER.search(one.evidence.text)):
            lost[one.node].add(found[1])
    hubs = [node for node, peers in lost.items() if len(peers) > 1]
    others = [peers for node, peers in lost.items() if node not in hubs]
    peers = set().union(*others)
    if len(hubs) == 1 and len(peers) <= 1:
        return Counter(hubs)
    return Counter(peers) if not hubs and len(peers) == 1 < len(others) else Counter()


def _addresses(findings: Sequence[Finding], nodes: Counter[str]) -> Counter[str]:
    """Return the address of the only GPU of these nodes that any line shows to be broken.

    A number in one line and an address in another one, of a class that is akin, are of one GPU.
    """
    found = Counter(
        one.device
        for one in findings
        if one.device
        and not is_numbered(one.device)
        and one.failure_class in OF_A_GPU
        and one.evidence.role is Role.ROOT
        and one.node in nodes
    )
    return found if len(found) == 1 else Counter()


def _devices(shown: Sequence[Finding]) -> list[str]:
    """Return the devices of these lines, without the number of a GPU whose address is known.

    Where one line gives the address of a GPU and another one of that host a number, they are about
    one GPU.
    """
    addressed = {one.node for one in shown if one.device and not is_numbered(one.device)}

    def is_same(one: Finding) -> bool:
        return bool(addressed) and (one.node is None or bool(addressed & {one.node, None}))

    return [
        one.device for one in shown if one.device and not (is_numbered(one.device) and is_same(one))
    ]


def _hosts_by_srun(
    shown: Sequence[Finding], findings: Sequence[Finding], ranks: set[int]
) -> set[str]:
    """Return the hosts on which srun says that the guilty tasks ended.

    Those are the tasks whose labelled lines are shown, and the guilty ranks.
    """
    tasks = {found[1] for one in shown if (found := _TASK_LABEL.match(one.evidence.text))}
    if not any(one.rule.startswith("elastic.") for one in findings):
        # Without a launcher srun starts the ranks itself, so its tasks are the ranks.
        tasks |= {found[1] for one in shown if (found := _RANK_LABEL.match(one.evidence.text))}
        tasks |= {str(rank) for rank in ranks}
    ended = (_TASK_ENDED.search(one.evidence.text) for one in findings)
    return {found[1] for found in ended if found is not None and found[2] in tasks}


def _host_of_the_launcher(file: str, findings: Sequence[Finding]) -> set[str]:
    """Return the host whose launcher wrote the file; empty where it names none, or several."""
    hosts = {
        one.node
        for one in findings
        if one.evidence.file == file and one.rule.startswith("elastic.") and one.node
    }
    return hosts if len(hosts) == 1 else set()


def _address(device: str) -> str:
    """Return one spelling for all spellings of a PCI address.

    Some tools write the function, which is 0 for a GPU, and some write four more zeros at the
    front.
    """
    found = re.fullmatch(r"0{0,4}([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.0)?", device)
    return found.group(1) if found else device
