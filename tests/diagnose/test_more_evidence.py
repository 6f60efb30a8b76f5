"""More evidence never makes the answer worse.

Small incidents of four ranks are written here as text: logs, stacks, dumps and a kernel's log, as
torchrun, py-spy, gloo's recorder and Linux write them. Each is diagnosed from every set of these
parts, and from the whole with a stranger's evidence beside it. Nothing is started and no file is
read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from outlast.diagnose.collectives import read_dump
from outlast.diagnose.logs import read_lines
from outlast.diagnose.pipeline import Material, conclude
from outlast.model.terms import Mechanism
from outlast.model.verdict import Verdict
from tests.diagnose._gloo_dump import all_reduce, dump_of

RANKS = range(4)
BEGAN_NS = 1_795_246_423_000_000_000  # 2026-11-21 07:33:43 UTC
AT = "2026-11-21T07:35:{second:02}.000000+00:00"
PARTS = ("logs", "stacks", "dumps", "kernel")
CODE = {-9: " (SIGKILL)", -11: " (SIGSEGV)", -15: " (SIGTERM)"}
PEER = "[rank{rank}]: RuntimeError: [gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:6068"
WAITS = [
    "all_reduce (torch/distributed/distributed_c10d.py:3252)",
    "step (train.py:90)",
    "<module> (train.py:99)",
]
QUIET = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"


@dataclass
class Incident:
    """What rank 2 did, and what counts as right.

    classes   right; `unknown` is never wrong, and right where no part tells more
    innocent  ranks that may not be named
    """

    classes: frozenset[str]
    logs: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, str] = field(default_factory=dict)
    dumps: dict[str, bytes] = field(default_factory=dict)
    kernel: dict[str, str] = field(default_factory=dict)
    innocent: frozenset[int] = frozenset({0, 1, 3})


# --- what is written ------------------------------------------------------------------------------


def launcher(codes: dict[int, int]) -> str:
    """torchrun's log: rank 2 is observed first, and the others are closed or lost their peer."""
    first = "E1121 07:35:10.1 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed"
    closes = "".join(
        f"W1121 07:35:10.0 9 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process"
        f" {100 + rank} closing signal SIGTERM\n"
        for rank, code in codes.items()
        if rank != 2 and code == -15
    )
    rows = {
        rank: f"  time      : 2026-11-21_07:35:10\n  host      : node1\n  rank      : {rank}"
        f" (local_rank: {rank})\n  exitcode  : {code} (pid: {100 + rank}){CODE.get(code, '')}\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/x.html\n"
        for rank, code in codes.items()
    }
    others = "".join(f"[{at}]:\n{text}" for at, text in rows.items() if at != 2)
    return (
        f"{closes}{first} (exitcode: {codes[2]}) local_rank: 2 (pid: 102) of binary: python\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n"
        f"{others}Root Cause (first observed failure):\n[0]:\n{rows[2]}=========\n"
    )


def logs(said: dict[int, str], codes: dict[int, int] | None = None) -> dict[str, str]:
    """Each rank's own log, which begins with steps, and the launcher's if the job has ended."""
    steps = "".join(f"step {at} done\n" for at in range(9))
    found = {f"logs/r/attempt_0/{rank}/stdout.log": steps for rank in RANKS}
    found |= {f"logs/r/attempt_0/{rank}/stderr.log": text for rank, text in said.items()}
    return found if codes is None else found | {"logs/launcher.log": launcher(codes)}


def ended(code: int, said: str) -> dict[str, str]:
    """Rank 2 ends by itself, rank 1 loses it, and the others are closed."""
    return logs({1: PEER.format(rank=1), 2: said}, {0: -15, 1: 1, 2: code, 3: -15})


def raised(error: str) -> str:
    return (
        "[rank2]: Traceback (most recent call last):\n"
        f'[rank2]:   File "/srv/train.py", line 31, in step\n[rank2]: {error}\n'
    )


def stacks(frames: dict[int, list[str]]) -> dict[str, str]:
    """Two looks of py-spy at each rank, in which nothing moves."""

    def look(rank: int) -> str:
        body = "".join(f"    {frame}\n" for frame in frames.get(rank, WAITS))
        head = f"Process {100 + rank}: python train.py\nPython v3.11.9"
        return f'{head}\n\nThread {100 + rank} (idle): "MainThread"\n{body}\n'

    return {f"stacks/stack_rank_{rank}.txt": look(rank) * 2 for rank in RANKS}


def dumps(
    done: dict[int, int],
    *,
    waits: frozenset[int] = frozenset(),
    sizes: dict[int, int] | None = None,
) -> dict[str, bytes]:
    """gloo's recorder of each rank: `done` all-reduces, and one more for those in `waits`."""

    def dump(rank: int) -> bytes:
        count = done[rank] + (rank in waits)
        return dump_of(
            all_reduce(
                seq,
                done=seq <= done[rank],
                at_ns=BEGAN_NS + seq * 10_000_000_000,
                size=(sizes or {}).get(rank, 7) if seq == count else 7,
            )
            for seq in range(1, count + 1)
        ).encode()

    return {f"dumps/fr_rank_{rank}": dump(rank) for rank in RANKS}


def in_other_group() -> dict[str, bytes]:
    """Rank 2 reduces in a group in which no other rank has called anything; the others wait for it
    in the first.
    """
    read = dumps(dict.fromkeys(RANKS, 9), waits=frozenset({0, 1, 3}))
    top = json.loads(read["dumps/fr_rank_2"])
    at_ns = BEGAN_NS + 100_000_000_000
    top["entries"].append(all_reduce(1, done=False, at_ns=at_ns, number=10, group=(1, "data")))
    return {**read, "dumps/fr_rank_2": json.dumps(top).encode()}


def kernel(*lines: str) -> dict[str, str]:
    said = "".join(f"{AT.format(second=8)} node1 kernel: {line}\n" for line in (QUIET, *lines))
    return {"dmesg-of-node1.txt": said}


def killed(pid: int, command: str = "python", group: str = "/") -> tuple[str, ...]:
    return (
        f"{command} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={group},task_memcg={group},task={command},"
        f"pid={pid},uid=0",
        f"Memory cgroup out of memory: Killed process {pid} ({command}) total-vm:1kB, anon-rss:7kB",
    )


# --- the incidents --------------------------------------------------------------------------------

BEHIND = dumps({0: 9, 1: 9, 2: 9, 3: 9}, waits=frozenset({0, 1, 3}))
# Dumps made each second: rank 0's is from before the others', and rank 2 died in its own step.
EACH_SECOND = dumps({0: 7, 1: 9, 2: 8, 3: 9}, waits=frozenset({0, 1, 3}))
SLEEPS = ["fetch (data.py:12)", *WAITS[1:]]
LOCKED = ["acquire (threading.py:9)", "put (cache.py:12)", *WAITS[1:]]
RECEIVES = ["recv (torch/distributed/distributed_c10d.py:2799)", "exchange (train.py:7)", WAITS[2]]
OTHER_LINE = [WAITS[0], "step (train.py:91)", WAITS[2]]
CODES = frozenset({"user_code", "software_bug"})
INCIDENTS: dict[str, Callable[[], Incident]] = {
    "sleeps": lambda: Incident(CODES, logs({}), stacks({2: SLEEPS}), BEHIND, kernel()),
    "locked": lambda: Incident(CODES, logs({}), stacks({2: LOCKED}), BEHIND, kernel()),
    "receives": lambda: Incident(CODES, logs({}), stacks({2: RECEIVES}), BEHIND, kernel()),
    "another group": lambda: Incident(
        CODES, logs({}), stacks({2: OTHER_LINE}), in_other_group(), kernel()
    ),
    "wider": lambda: Incident(
        CODES,
        logs({}),
        stacks({}),
        dumps(dict.fromkeys(RANKS, 9), waits=frozenset(RANKS), sizes={2: 3}),
        kernel(),
    ),
    "killed": lambda: Incident(frozenset(), ended(-9, "step 9\n"), {}, EACH_SECOND, kernel()),
    "killed for memory": lambda: Incident(
        frozenset({"host_memory"}), ended(-9, "step 9\n"), {}, EACH_SECOND, kernel(*killed(102))
    ),
    "crashed": lambda: Incident(
        CODES, ended(-11, "Fatal Python error: Segmentation fault\n"), {}, EACH_SECOND, kernel()
    ),
    "a wrong value": lambda: Incident(
        frozenset({"user_code"}), ended(1, raised("ValueError: no")), {}, EACH_SECOND, kernel()
    ),
    "a full disk": lambda: Incident(
        frozenset({"storage"}),
        ended(1, raised("OSError: [Errno 28] No space left on device")),
        {},
        EACH_SECOND,
        kernel(),
    ),
    "a taken port": lambda: Incident(
        CODES,
        ended(1, raised("OSError: [Errno 98] Address already in use")),
        {},
        EACH_SECOND,
        kernel(),
    ),
    "ended by a signal": lambda: Incident(
        frozenset(), ended(-15, "step 9\n"), {}, EACH_SECOND, kernel()
    ),
}
ECHO = """\
def check(loss, step):
    if torch.isnan(loss):
        raise ValueError(f"loss is nan at step {step}")
    assert torch.isfinite(loss), f"loss is inf: {loss}"
except torch.cuda.OutOfMemoryError as e:
    print("CUDA out of memory. Tried to allocate", e)
"""


def other_jobs_kill(one: Incident) -> None:
    name, text = next(iter(one.kernel.items()))
    added = kernel(*killed(990_123, "python3", "/user.slice"))[name]
    one.kernel[name] = text + added.partition("\n")[2]


def echo(one: Incident) -> None:
    name = "logs/r/attempt_0/0/stdout.log"
    one.logs[name] = ECHO + one.logs[name]


def older_attempt(one: Incident) -> None:
    """Dumps of an attempt of an hour before, in which another rank was awaited."""
    earlier = dumps({0: 9, 1: 9, 2: 9, 3: 9}, waits=frozenset({0, 1, 2}))
    for name, raw in earlier.items():
        top = json.loads(raw)
        for entry in top["entries"]:
            entry["time_created_ns"] -= 3_600_000_000_000
        one.dumps[f"earlier/{name}"] = json.dumps(top).encode()


STRANGERS = {
    "another job's kill": other_jobs_kill,
    "an echo of source": echo,
    "an older attempt's dumps": older_attempt,
}


def verdict_of(one: Incident, parts: frozenset[str]) -> Verdict:
    """Diagnose from these parts alone."""
    texts = {
        name: text
        for part in ("logs", "stacks", "kernel")
        if part in parts
        for name, text in getattr(one, part).items()
    }
    findings = [
        found
        for name, text in texts.items()
        for found in read_lines(text.encode().splitlines(keepends=True), name=name)
    ]
    read = [read_dump(raw, name=name) for name, raw in one.dumps.items() if "dumps" in parts]
    return conclude(Material(findings, dumps=read, had_dumps=bool(read))).verdict


def sets() -> Iterator[frozenset[str]]:
    for count in range(1, len(PARTS) + 1):
        yield from map(frozenset, itertools.combinations(PARTS, count))


@pytest.mark.parametrize("name", INCIDENTS)
def test_no_set_of_parts_is_answered_wrongly(name: str) -> None:
    one = INCIDENTS[name]()
    for parts in sets():
        said = verdict_of(one, parts)
        named = said.failure_class.value
        assert named in {*one.classes, "unknown"}, (sorted(parts), named, said.reason)


@pytest.mark.parametrize("name", INCIDENTS)
def test_no_part_makes_the_answer_worse(name: str) -> None:
    """A right class stays right or becomes unknown, and no innocent is added."""
    one = INCIDENTS[name]()
    said = {parts: verdict_of(one, parts) for parts in sets()}
    for less, more in itertools.permutations(said, 2):
        if not less < more:
            continue
        was_right = said[less].failure_class.value in one.classes
        assert not was_right or said[more].failure_class.value in {*one.classes, "unknown"}
        added = innocents(one, said[more]) - innocents(one, said[less])
        assert not added, (sorted(less), sorted(more), added, said[more].reason)


@pytest.mark.parametrize("name", INCIDENTS)
def test_the_whole_names_the_rank_and_nobody_else(name: str) -> None:
    got = verdict_of(INCIDENTS[name](), frozenset(PARTS))
    assert [one.rank for one in got.ranks] == [2], got.reason


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("name", INCIDENTS)
def test_a_strangers_evidence_changes_neither_class_nor_rank(name: str, stranger: str) -> None:
    one = INCIDENTS[name]()
    before = verdict_of(one, frozenset(PARTS))
    STRANGERS[stranger](one)
    after = verdict_of(one, frozenset(PARTS))
    assert after.failure_class is before.failure_class, after.reason
    assert [one.rank for one in after.ranks] == [one.rank for one in before.ranks], after.reason


def innocents(one: Incident, said: Verdict) -> set[int]:
    return {blamed.rank for blamed in said.ranks} & one.innocent


def test_ranks_that_lost_their_peers_and_ended_did_not_hang() -> None:
    """Dumps that a thread saves each second are older than the end, and look like a wait.

    The control: the same dumps hang where nothing tells of an end.
    """
    lost = {rank: PEER.format(rank=rank) for rank in (1, 2)}
    one = Incident(frozenset(), logs(lost, {0: -15, 1: 1, 2: 1, 3: -15}))
    one.dumps = dumps({0: 9, 1: 8, 2: 9, 3: 9}, waits=frozenset({0, 2, 3}))
    assert verdict_of(one, frozenset({"logs", "dumps"})).mechanism is Mechanism.LOST_CONTACT
    assert verdict_of(one, frozenset({"dumps"})).mechanism is Mechanism.HANG
