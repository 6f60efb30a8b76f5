"""The places of the processes of a live run when one of them was given up.

It is read from `standing.json`, as runtime/agent/evidence.py writes it. The run knew which
process it gave up, and how that had failed. This is taken as it is (`ledger.interruption`). It does
not say why. Only what the kernel says of a process that hangs (/proc/<pid>/stat, wchan) points to a
class here.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from outlast.diagnose.file_findings import file_finding
from outlast.diagnose.findings import Finding
from outlast.diagnose.interrupted import interrupted
from outlast.diagnose.ledger import LedgerContents
from outlast.model.texts import cut_at_word

HEAD = b'"outlast": "standing"'
SCHEMA = 1
NODES_NAMED_COUNT = 3  # nodes without evidence that a note names
WORDS_COUNT = 160  # characters of a node's name, and of the reason
_STORAGE = (
    "nfs",
    "rpc_",
    "fuse",
    "lustre",
    "ll_",
    "cl_",
    "ext4",
    "xfs",
    "jbd2",
    "btrfs",
    "io_schedule",
    "folio_wait",
    "wait_on_page",
    "blk_",
    "ceph",
    "sync_",
)
_DEVICE = ("nvidia", "nv_", "os_acquire", "uvm", "_nv0", "rm_", "amdgpu", "kfd", "ttm_")


def read_standing(raw: bytes, *, name: str) -> LedgerContents:
    """Return what the record says. Raises ValueError for any other file, or a damaged one."""
    try:
        told = json.loads(raw)
        about, processes = told["interruption"], told["processes"]
        if told["schema"] != SCHEMA:
            raise ValueError(f"schema {told['schema']!r} is not {SCHEMA}")
        missing = _missing(told)
        about_it = interrupted(about, name=name, processes=processes, missing=missing)
        findings = (*about_it, *(one for process in processes for one in _process(process, name)))
        lines = (
            str(about.get("traceback") or about.get("error") or "")
            .encode("utf-8", "replace")
            .splitlines()
        )
    except (
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError("a record of where processes stood that was cut or changed") from error
    notes = [f"no evidence of node {node}: {why}" for node, why in missing.items()]
    if len(notes) > NODES_NAMED_COUNT:
        more = len(notes) - NODES_NAMED_COUNT
        notes = [*notes[:NODES_NAMED_COUNT], f"no evidence of {more:,} more nodes"]
    return LedgerContents(findings, tuple(lines), tuple(notes))


def _missing(told: Mapping[str, Any]) -> dict[str, str]:
    """Return the nodes that have sent no evidence, or not all of it, and why."""
    return {
        cut_at_word(str(node), WORDS_COUNT): cut_at_word(str(why), WORDS_COUNT)
        for node, why in dict(told.get("missing") or {}).items()
    }


def _process(process: Mapping[str, Any], name: str) -> Iterator[Finding]:
    rank, kernel = int(process["rank"]), process["kernel"]
    if process["oom"]:
        yield file_finding(
            "standing.oom", name, f"rank {rank}: killed by the kernel for memory", rank
        )
    elif process.get("oom_near"):
        said = f"rank {rank}: killed while the kernel counted an OOM kill, which may be another's"
        yield file_finding("standing.oom_near", name, said, rank)
    state, wchan = _state(str(kernel.get("stat", ""))), str(kernel.get("wchan", ""))
    rule = rule_of_state(state, wchan)
    if rule == "standing.stopped":
        yield file_finding(
            rule,
            name,
            f"rank {rank}: state {state}: stopped by a signal or a debugger",
            rank,
        )
    elif rule is not None and process["killed"]:
        # A survivor may be in such a state for a moment. It says why only of a process that hung.
        at = f"rank {rank}: state D in {wchan or 'the kernel'}: not to be interrupted"
        yield file_finding(rule, name, at, rank)
    elif state == "R" and process["killed"]:
        yield file_finding(
            "standing.running",
            name,
            f"rank {rank}: state R: it computes, or is in a loop",
            rank,
        )


def rule_of_state(state: str, channel: str) -> str | None:
    """Return the rule for a process in this state of proc(5) that waits in this kernel channel."""
    if state in ("T", "t"):
        return "standing.stopped"
    if state == "D":
        storage, device = (channel.startswith(words) for words in (_STORAGE, _DEVICE))
        return "standing.storage" if storage else "standing.device" if device else "standing.kernel"
    return None


def _state(stat: str) -> str:
    """Return the third field of proc(5)'s stat.

    The second field, the name, may hold blanks and brackets.
    """
    return (stat.rpartition(")")[2].split() or [""])[0]
