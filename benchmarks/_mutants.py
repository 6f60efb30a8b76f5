"""Rewrite an incident's log as another site would have written it.

Names, numbers, dates, prefixes and the order of files are others, and many healthy lines are mixed
in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise

_PCI = re.compile(r"\b([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?=[:.)]| )")
_PID = re.compile(r"((?:pid|PID|process|Process|Thread|tid)[ =:'(]{1,3})(\d{3,9})")
_RANK = re.compile(r"(\[rank|\[default|\[Rank | Rank |rank {6}: |\brank )(\d{1,4})\b")
_DATE = re.compile(r"\b(20\d\d)([-/])(\d\d)([-/])(\d\d)")
_TIME = re.compile(r"\b([01]\d|2[0-3]):([0-5]\d):([0-5]\d)\b")
_HOST = re.compile(r"\b(?:node|host|gpu|worker|jean-zay-iam|cn|ip|nid|slurm|compute)[-_]?\d{1,4}\b")
PREFIXES = (
    "",
    "",
    "[rank{r}]: ",
    "{r}: ",
    "2031-02-03T04:05:{s:02d}.123456Z ",
    "Feb  3 04:05:{s:02d} nodex7 job[77]: ",
    "[default{r}]:",
    "(Trainer pid=4242) ",
)


def mutate(lines: list[str], rng: random.Random) -> dict[str, list[str]]:
    """Return the files of a mutant, in a drawn order.

    They are the excerpt, renamed and with healthy lines in it, and healthy files beside it.
    """
    changed = _prefixed(_renamed(lines, rng), rng)
    noise = healthy(10_000, rng)
    places = sorted(rng.sample(range(len(noise)), 3))
    parts = _cut(changed, rng)
    main = (
        noise[: places[0]]
        + [
            line
            for part, at in zip(parts, places, strict=False)
            for line in (*part, *noise[at : at + 400])
        ]
        + noise[places[-1] :]
    )
    files = {"main.log": main, "rank_901.log": healthy(500, rng), "agent.log": teardown(rng)}
    names = list(files)
    rng.shuffle(names)
    return {name: files[name] for name in names}


def _cut(lines: list[str], rng: random.Random) -> list[list[str]]:
    """Cut into three parts at most, never inside an indented block, a table or headers."""
    inner = re.compile(r"^\s|^\[|Thread|Traceback|^-|^=|^$|File |Error")
    cuts = [
        at
        for at in range(1, len(lines))
        if not inner.search(lines[at]) and not inner.search(lines[at - 1])
    ]
    chosen = sorted(rng.sample(cuts, min(2, len(cuts))))
    bounds = [0, *chosen, len(lines)]
    parts = [lines[a:b] for a, b in pairwise(bounds)]
    return parts + [[] for _ in range(3 - len(parts))]


def _renamed(lines: list[str], rng: random.Random) -> list[str]:
    """Give the lines other ranks, pids, devices, hosts and times; equal ones stay equal."""
    kept: dict[str, str] = {}

    def once(kind: str, text: str, make: Callable[[], str]) -> str:
        return kept.setdefault(kind + text, make())

    world = 1 + max(
        (int(found[2]) for line in lines for found in _RANK.finditer(line) if int(found[2]) < 4096),
        default=0,
    )
    ranks = rng.sample(range(world), world)  # a world stays one: its ranks change places
    years, hours = rng.randrange(1, 6), rng.randrange(24)
    out = []
    for line in lines:
        line = _PCI.sub(
            lambda m: once(
                "pci",
                m.group(),
                lambda: f"{m[1]}:{rng.randrange(1, 255):02x}:{rng.randrange(32):02x}",
            ),
            line,
        )
        line = _PID.sub(
            lambda m: m[1] + once("pid", m[2], lambda: str(rng.randrange(1000, 4_000_000))), line
        )
        line = _RANK.sub(
            lambda m: m[1] + str(ranks[int(m[2])] if int(m[2]) < world else int(m[2])), line
        )
        line = _DATE.sub(lambda m: f"{int(m[1]) + years}{m[2]}{m[3]}{m[4]}{m[5]}", line)
        line = _TIME.sub(
            lambda m: (
                f"{(int(m[1]) + hours) % 24:02d}:{m[2]}:{m[3]}"
                if hours + int(m[1]) < 24
                else m.group()
            ),
            line,
        )
        line = _HOST.sub(
            lambda m: once("host", m.group(), lambda: f"gpu-{rng.randrange(1, 999):03d}"), line
        )
        out.append(line)
    return out


def _prefixed(lines: list[str], rng: random.Random) -> list[str]:
    """Put one launcher's label before every line, unless the lines are stacks or tables.

    Tools print those without a label.
    """
    prefix = rng.choice(PREFIXES)
    whole = any(re.search(r"Thread \d|Root Cause|^\[rank|^\[default|^\{", line) for line in lines)
    return (
        lines
        if whole or not prefix
        else [prefix.format(r=rng.randrange(8), s=at % 60) + line for at, line in enumerate(lines)]
    )


def healthy(count: int, rng: random.Random) -> list[str]:
    """Return lines of runs in which nothing is wrong."""
    made: list[Callable[[int], str]] = [
        lambda i: (
            f" [2030-05-01 12:{i // 60 % 60:02d}:{i % 60:02d}.123] iteration {i:8d}/ 100000 |"
            f" consumed samples: {i * 512} | elapsed time per iteration (ms):"
            f" {500 + rng.uniform(-4, 4):.1f} | learning rate: 1.0E-04 | lm loss:"
            f" {rng.uniform(1, 3):.6E} | loss scale: 1.0 | grad norm: {rng.uniform(0, 1):.3f} |"
            " number of nan iterations: 0 |"
        ),
        lambda i: (
            f"node{i % 64}:{1000 + i % 8}:{2000 + i} [{i % 8}] NCCL INFO Channel {i % 24:02d}/0 :"
            f" {i % 8}[{i % 8}] -> {(i + 1) % 8}[{(i + 1) % 8}] via P2P/CUMEM/read"
        ),
        lambda i: (
            f"[rank{i % 8}]: INFO train.py:88] step {i} loss {rng.uniform(1, 3):.3f} tokens/s"
            f" {rng.randrange(30000, 32000)} memory 61.2GiB"
        ),
        lambda i: (
            f"May  1 12:{i // 60 % 60:02d}:{i % 60:02d} node{i % 64} systemd[1]: Started Session"
            f" {i} of User trainer."
        ),
        lambda i: (
            f"May  1 12:{i // 60 % 60:02d}:{i % 60:02d} node{i % 64} kernel: [{i}.123456] docker0:"
            f" port 1(veth{i:x}) entered forwarding state"
        ),
        lambda i: (
            f"saving checkpoint at iteration {i} to ckpt/iter_{i:07d} | successfully saved"
            f" checkpoint in 12.{i % 10}s"
        ),
        lambda i: (
            f"[2030-05-01 12:00:{i % 60:02d},123] [INFO] [engine.py:123:step] [Rank 0] step={i},"
            " skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]"
        ),
        lambda i: (
            f"node{i % 64}:{1000 + i % 8}:{2000 + i} [{i % 8}] NCCL INFO comm 0x55d0c0"
            f" rank {i % 8} nranks 8 cudaDev {i % 8} busId 1000 commId 0x12 - Init COMPLETE"
        ),
        lambda i: (
            "FutureWarning: `torch.cpu.amp.autocast(args...)` is deprecated. Please use"
            " `torch.amp.autocast('cpu', args...)` instead."
        ),
        lambda i: (
            f"eval: iteration {i} | validation loss {rng.uniform(1, 3):.4f} | ppl"
            f" {rng.uniform(3, 20):.3f} | errors: 0 | failed: 0"
        ),
    ]
    return [rng.choice(made)(i) for i in range(count)]


def teardown(rng: random.Random) -> list[str]:
    """Return the lines that every job prints while it is closed, for whatever reason."""
    rank = rng.randrange(8)
    return [
        (
            "W0501 12:00:01.123000 140 torch/distributed/elastic/multiprocessing/api.py:897]"
            " Sending process 1234 closing signal SIGTERM"
        ),
        (
            "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting"
            " down workers"
        ),
        (
            f"[rank{rank}]:[W501 12:00:01.123456789 ProcessGroupNCCL.cpp:1496] Warning: WARNING:"
            " destroy_process_group() was not called before program exit"
        ),
        (
            f"[rank{rank}]:[W501 12:00:01.123456789 ProcessGroupNCCL.cpp:1783] [PG ID 0 PG GUID 0"
            f' Rank {rank}] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore'
            " server has shut down too early), with error: Broken pipe"
        ),
        (
            "[rank2]:[W501 12:00:01.123456789 TCPStore.cpp:125] [c10d] recvValue failed on"
            " SocketImpl(fd=87, addr=[a]:1, remote=[b]:2): Failed to recv, got 0 bytes. Connection"
            " was likely closed."
        ),
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        (
            "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning:"
            " resource_tracker: There appear to be 8 leaked semaphore objects to clean up at"
            " shutdown"
        ),
    ]
