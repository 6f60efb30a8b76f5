"""Numbers of srun's tasks: they are ranks, or they number nodes.

`srun --label` puts the number of its task before each line, and srun's own lines name tasks: "srun:
error: gpu-017: task 5: Out Of Memory". Where srun starts the ranks itself, that number is the rank.
If it starts a launcher on each node, it is the node's, and lines of the launcher have such a label.
In a file with such a line a label alone says nothing about the rank. A task that srun names is a
rank if there are no lines of a launcher, and one host has several, or a signal ended it alone. An
exit code may be that of a launcher that said nothing.

torchrun's label of a line ("[default3]:", with --tee) and its folders of logs (`attempt_0/3/`) have
the local rank. On the first node that is the rank. On another one the ranks begin later: lines with
both labels show where, and so does the launcher's table beside its line about the same process.

The processes that torch's spawn starts are numbered on their node, too.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.prefixes import rank_of, rank_of_name

_LABEL = re.compile(r"^\s{0,4}(\d{1,5}): (?! ?\[rank\d)")
_TASKS = re.compile(
    r"srun: error: (?P<host>[A-Za-z][\w.-]{0,60}): tasks? (?P<task>\d{1,6})"
    r"(?P<more>[-,][\d,-]{1,200})?: "
)
# "2: [rank2]: RuntimeError: ...", as Python prints an exception where it knows the rank
_AGREES = re.compile(r"^\s{0,4}(\d{1,5}): \[rank(\d{1,6})\]")
_LOCAL = re.compile(r"^\s{0,4}\[(?:default|trainer)(\d{1,5})\]: ?(?!\[rank\d)")
_BOTH = re.compile(r"^\s{0,4}\[(?:default|trainer)(\d{1,5})\]: ?\[rank(\d{1,6})\]")
_SAID = re.compile(r"^\s{0,4}\[rank(\d{1,6})\]")
_TREE = re.compile(r"^(.*?attempt_\d{1,4})/(\d{1,5})/[^/]*$")
_NOTICED = re.compile(r"failed \(exitcode: -?\d{1,3}\) local_rank: (\d{1,5}) \(pid: (\d{1,9})\)")
_ROW = re.compile(r"^exitcode {1,6}: -?\d{1,3} {1,2}\(pid: (\d{1,9})\)")
_SPAWNED = "ProcessExitedException: process "
ONE_NODE_MAX = 8  # processes that a script starts on one node, at most
_OF_A_LAUNCHER = ("elastic.", "rdzv.", "exit.closing", "exit.outside")
_BY_A_LAUNCHER = ("elastic.", "rdzv.", "launch.")
_CRASHES = ("slurm.signals", "exit.segv", "exit.bus", "exit.illegal", "exit.fpe")
_ENDS = ("slurm.oom", "slurm.kill", "slurm.terminated", *_CRASHES)
_BY_SIGNAL = ("slurm.kill", *_CRASHES)
# rows of a launcher's table say themselves which rank they are about
_ROWS = ("elastic.first_failure", "elastic.other_failure")


def without_node_labels(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, without the ranks that were read from labels of nodes."""
    files = {
        one.evidence.file
        for one in findings
        if one.rule.startswith(_BY_A_LAUNCHER) and _LABEL.match(one.evidence.text)
    }
    if not files:
        return list(findings)
    return [
        replace(one, rank=None)
        if one.evidence.file in files and one.rule not in _ROWS and _is_by_label(one)
        else one
        for one in findings
    ]


def with_global_ranks(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those that were given the local rank of torchrun's label have the rank.

    Where one file tells where the ranks of its node begin and another does not, the ranks of the
    other one are not known.
    """
    begins = _first_ranks(findings)
    if not any(begins.values()):
        return list(findings)
    return [_with_global_rank(one, begins) for one in findings]


def _with_global_rank(one: Finding, begins: Mapping[str, int]) -> Finding:
    text, tree = one.evidence.text, _TREE.match(one.evidence.file)
    if tree is not None and (one.rule == "log.last" or not _SAID.match(text)):
        local, begin = int(tree[2]), begins.get(tree[1])
    elif (label := _LOCAL.match(text)) is not None:
        local, begin = int(label[1]), begins.get(one.evidence.file)
    else:
        return one
    if one.rank != local:
        return one
    return replace(one, rank=None if begin is None else begin + local)


def _first_ranks(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the first rank of the node of each file, or folder, where all its lines agree."""
    told: dict[str, set[int]] = defaultdict(set)
    local: dict[tuple[str, str], int] = {}
    ranks: dict[tuple[str, str], int] = {}
    for one in findings:
        text, file = one.evidence.text, one.evidence.file
        tree = _TREE.match(file)
        if tree is not None and (said := _SAID.match(text)):
            told[tree[1]].add(int(said[1]) - int(tree[2]))
        elif both := _BOTH.match(text):
            told[file].add(int(both[2]) - int(both[1]))
        elif noticed := _NOTICED.search(text):
            local[file, noticed[2]] = int(noticed[1])
        elif (row := _ROW.match(text)) and one.rank is not None:
            ranks[file, row[1]] = one.rank
    for process, rank in ranks.items():
        if process in local:
            told[process[0]].add(rank - local[process])
    return {file: begins.pop() for file, begins in told.items() if len(begins) == 1}


def with_ranks_of_tasks(
    findings: Sequence[Finding], *, has_launcher: bool = False
) -> list[Finding]:
    """Return the findings; those in which srun says how a rank ended have the rank.

    `has_launcher`: other lines of the logs are of a launcher.
    """
    if has_launcher or any(one.rule.startswith(_OF_A_LAUNCHER) for one in findings):
        return list(findings)
    named = [found for one in findings if (found := _TASKS.search(one.evidence.text))]
    tasks = {(found["host"], found["task"]) for found in named if not found["more"]}
    several_here = any(found["more"] for found in named) or (
        max(Counter(host for host, _ in tasks).values(), default=0) > 1
    )
    labels = _labels_are_ranks(findings)
    crashed = any(one.rule in _CRASHES and _TASKS.search(one.evidence.text) for one in findings)
    # Where each of several hosts has one task, it is that of a launcher, which may be killed too.
    alone = crashed or len(tasks) == 1
    if labels is False or not (several_here or alone or labels):
        return list(findings)
    return [
        replace(one, rank=int(found["task"]))
        if one.rank is None
        and one.rule in (_ENDS if several_here or labels else _BY_SIGNAL)
        and (found := _TASKS.search(one.evidence.text))
        and not found["more"]
        else one
        for one in findings
    ]


def without_local_ranks_of_spawn(findings: Sequence[Finding], world_size: int) -> list[Finding]:
    """Return the findings, without the numbers of torch's spawn where they are local ranks.

    A script that calls it starts the processes of its own node. They number ranks if it is the
    only one. Scripts on several nodes leave several logs, or tell of more ranks than a node has.
    """
    files = {
        one.evidence.file
        for one in findings
        if one.rule == "spawn.process" or _SPAWNED in one.evidence.text
    }
    if len(files) < 2 and world_size <= ONE_NODE_MAX:
        return list(findings)
    return [
        replace(one, rank=None)
        if one.evidence.file in files
        and one.rank is not None
        and rank_of_name(one.evidence.file) is None
        and (_SPAWNED in one.evidence.text or rank_of(one.evidence.text) is None)
        else one
        for one in findings
    ]


def _labels_are_ranks(findings: Sequence[Finding]) -> bool | None:
    """Return whether srun's labels are ranks, by lines that have both; None without such lines."""
    labels = [found for one in findings if (found := _AGREES.match(one.evidence.text))]
    return all(found[1] == found[2] for found in labels) if labels else None


def _is_by_label(one: Finding) -> bool:
    found = _LABEL.match(one.evidence.text)
    return found is not None and one.rank == int(found[1])
