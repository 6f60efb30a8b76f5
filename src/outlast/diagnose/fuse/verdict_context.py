"""What a verdict shows beside its reason, for the engineer who has to act on it.

These are the stacks of the guilty ranks, what happened in the minute around the failure, why the
other ranks are taken for innocent, and commands to paste.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from outlast.diagnose.collectives.blame import named as named_ranks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import Accounts
from outlast.diagnose.fuse.weights import BROKEN_DEVICE
from outlast.diagnose.logs.json_lines import OfPod
from outlast.diagnose.stacks.reader import Stack, activity, newest_of_ranks
from outlast.diagnose.stacks.workers import informative_frame
from outlast.model.terms import FailureClass
from outlast.model.texts import cut_at_word
from outlast.model.verdict import Blamed, Cleared, Moment, RankStack, Role

C = FailureClass
FRAMES_SHOWN_COUNT = 5
STACKS_SHOWN_COUNT = 4
MOMENTS_COUNT = 8
BEFORE_S, AFTER_S = 45.0, 15.0  # the decisive minute, around the first sign of failure
TEXT_COUNT = 160
HARDWARE = BROKEN_DEVICE | {
    C.NIC,
    C.SSD,
    C.CPU,
    C.SYSTEM_MEMORY,
    C.POWER_SUPPLY,
    C.CHASSIS,
    C.IO_BOARD,
    C.THERMAL,
    C.SILENT_DATA_CORRUPTION,
}
_PORT = re.compile(r"\bport:? ?(\d{2,5})\b|:(\d{4,5})\b")
_STAMP = re.compile(
    r"^(?:\[?[A-Z]?[a-z]{0,2} ?\d{4}[-/]?\d{0,2}[-/]?\d{0,2}[T ][\d:.,]{8,18}(?:Z"
    r"|[+-]\d\d:?\d\d)?\]?"
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{8} \d{4}\]|[IWEF]\d{4} [\d:.]{8,15}):?\s*"
)
_RECOVERY = re.compile(
    r"recovery action changed from .{0,60}? to 0x[0-9a-f]{1,4} \(([\w ]{3,40})\)"
)
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,80}")
_SAFE_DEVICE = re.compile(r"[0-9a-f:.]{4,24}|GPU-[0-9a-f-]{36}|\d{1,2}")


def recovery_asked(findings: Iterable[Finding]) -> str:
    """Return what the driver's newest Xid 154 asks for, such as "Node Reboot Required"; or ""."""
    said = [one for one in findings if one.rule == "xid.154" and not one.doubt]
    found = _RECOVERY.search(said[-1].evidence.text) if said else None
    return "" if found is None or found[1] == "None" else found[1]


AMD = "amdgpu."  # rules for what the driver of AMD's GPUs says
AMD_NEXT_TEST = "amd-smi metric --ecc on the node; its kernel log for earlier errors of that GPU"


def scheduler_of(findings: Sequence[Finding], slurm_jobs: Sequence[str] = ()) -> str:
    """Return the scheduler that the evidence names: "slurm", "kubernetes", or ""."""
    if slurm_jobs or any(one.rule.startswith("slurm.") for one in findings):
        return "slurm"
    if any(one.rule.startswith("kube.") or "kubepods" in one.evidence.text for one in findings):
        return "kubernetes"
    return ""


def hosts_of_pods(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the nodes that are pods, with the machine of each; "" where nothing tells it."""
    pods = (one for one in findings if isinstance(one, OfPod) and one.node is not None)
    return {one.node or "": one.host for one in pods}


def commands_of(
    named: FailureClass,
    *,
    nodes: Sequence[str],
    devices: Sequence[str],
    scheduler: str,
    winner: Finding | None,
    alike: Sequence[Finding] = (),
    asked: str = "",
    hosts: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return commands to paste. Only names that are safe in a shell are put into them.

    `alike` are the findings of the winner's rule: one of them may tell more than the winner.
    `asked` is what the driver asks for: where that is a reboot, a reset of the GPU is not proposed.
    `hosts` are the nodes that are pods, with the machine of each, or "" where nothing tells it.
    """
    if winner is not None and winner.rule == "store.port_taken":
        said = (found for one in alike if (found := _PORT.search(one.evidence.text)))
        port = next((group for found in said for group in found.groups() if group), "")
        return (f"ss -ltnp 'sport = :{port}'" if port else "ss -ltnp",)
    if named not in HARDWARE:
        return ()
    commands: list[str] = []
    for node in [one for one in nodes if _SAFE_NAME.fullmatch(one)][:2]:
        if scheduler == "slurm":
            commands.append(
                f"scontrol update nodename={node} state=drain reason='outlast: {named.value}'"
            )
        elif scheduler == "kubernetes":
            machine = hosts.get(node, node)
            if not _SAFE_NAME.fullmatch(machine):  # only the cluster knows where the pod ran
                asks = f"kubectl get pod -A --field-selector metadata.name={node}"
                commands.append(f"NODE=$({asks} -o jsonpath='{{.items[0].spec.nodeName}}')")
                machine = "$NODE"
            commands.append(f"kubectl cordon {machine}")
            commands.append(f"kubectl drain {machine} --ignore-daemonsets --delete-emptydir-data")
    # nvidia-smi knows a GPU by this number too; CUDA's numbers may be others
    known = [one.removeprefix("GPU ") for one in devices]
    gpus = [one for one in known if _SAFE_DEVICE.fullmatch(one)]
    if named in BROKEN_DEVICE and gpus and winner is not None and winner.rule.startswith(AMD):
        commands.append(f"amd-smi metric --ecc --gpu {gpus[0]}")
        commands.append(f"amd-smi reset --gpureset --gpu {gpus[0]}")
    elif named in BROKEN_DEVICE and gpus:
        commands.append(f"nvidia-smi -q -i {gpus[0]}")
        if "Reboot" not in asked:
            commands.append(f"nvidia-smi --gpu-reset -i {gpus[0]}")
    return tuple(commands)


def stacks_of(findings: Sequence[Finding], guilty: Sequence[Blamed]) -> tuple[RankStack, ...]:
    """Return the innermost frames of each guilty rank, by its newest stack that says anything."""
    newest = newest_of_ranks(findings)
    found = []
    for one in guilty[:STACKS_SHOWN_COUNT]:
        stack = _telling_stack(newest.get(one.rank, []))
        if stack is not None:
            found.append(RankStack(one.rank, _shown_frames(stack.frames)))
    return tuple(found)


def _shown_frames(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return the innermost frames; those of Python's own waiting are cut if they would be all."""
    telling = informative_frame(frames)
    at = frames.index(telling) if telling else 0
    if at < FRAMES_SHOWN_COUNT:
        return frames[:FRAMES_SHOWN_COUNT]
    return (frames[0], "...", *frames[at : at + FRAMES_SHOWN_COUNT - 2])


def _telling_stack(stacks: Sequence[Stack]) -> Stack | None:
    awake = [one for one in stacks if activity(one)[0] != "idle"]
    busy = [one for one in awake if activity(one)[0] != "waiting"]
    return next(iter(reversed(busy or awake or list(stacks))), None)


def timeline_of(findings: Sequence[Finding], winner_s: float | None) -> tuple[Moment, ...]:
    """Return what happened in the minute around the line that tells why, in order of time.

    `winner_s` is the time of that line. If it has none, the first sign of failure is used.
    """
    # Launchers tell whole seconds. What follows from a failure is not shown before it.
    timed = sorted(
        (one for one in findings if one.at_s is not None and _happened(one)),
        key=lambda one: (one.at_s or 0.0, one.evidence.role is Role.EFFECT, one.order),
    )
    signs = sorted(
        (one for one in timed if one.evidence.role in (Role.ROOT, Role.MESSENGER)),
        key=lambda one: (one.evidence.role is not Role.ROOT, one.at_s or 0.0),
    )
    if not signs:
        return ()
    first_s = (signs[0].at_s or 0.0) if winner_s is None else winner_s
    moments: list[Moment] = []
    seen: set[tuple[str, int | None]] = set()
    for one in timed:
        at_s = one.at_s or 0.0
        key = (one.rule, one.rank)
        if not first_s - BEFORE_S <= at_s <= first_s + AFTER_S or key in seen:
            continue
        seen.add(key)
        said = _STAMP.sub("", " ".join(one.evidence.text.split()))
        text = cut_at_word(said, TEXT_COUNT)
        moments.append(Moment(at_s, one.rank, one.node, text))
    return tuple(moments[:MOMENTS_COUNT]) if len(moments) > 1 else ()


def _happened(one: Finding) -> bool:
    return one.evidence.role is not Role.ADVICE and one.doubt in ("", "untied")


def cleared_of(accounts: Accounts, guilty: Sequence[Blamed]) -> tuple[Cleared, ...]:
    """Return why ranks that are not blamed are taken for innocent."""
    blamed = {one.rank for one in guilty}
    if not blamed:
        return ()
    reasons = (
        (accounts.waiting, "were in a collective, by their stacks"),
        (accounts.late, "timed out while they waited"),
        (accounts.lost - accounts.late, "lost their peer, and failed for that"),
        (accounts.closed, "ended by the launcher's signal, after the failure"),
    )
    found: list[Cleared] = []
    done: set[int] = set(blamed)
    for ranks, why in reasons:
        left = sorted(ranks - done)
        if left:
            found.append(Cleared(tuple(left), f"{named_ranks(left)} {why}"))
            done.update(left)
    return tuple(found)
