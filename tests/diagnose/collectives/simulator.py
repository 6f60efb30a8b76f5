"""A job that hangs, made of programs: ranks with a host that enqueues, a device that runs in order,
and a recorder. The truth is what was put in.

A collective is finished once it is the oldest operation of each member's device; so is a send with
its receive. A host enqueues up to `ahead` operations that are not finished (0: it waits for each,
as gloo does). A rank may be made to
    sleep     its host never comes to the operation at a place of its program
    go blind  nothing is seen to finish from that place on, though its device takes part: what a
              stuck watchdog or a lost device looks like
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Op:
    group: str  # key of the layout's groups
    kind: str = "all_reduce"
    size: int = 64
    peer: int | None = None  # global rank, of a send or receive
    is_send: bool = False


@dataclass
class Layout:
    """tp x pp x dp ranks, the first the fastest; groups by name to members, in the order in which
    they are made.
    """

    tp: int
    pp: int
    dp: int
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    descs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add("world", "default_pg", range(self.size))
        for kind, of in (
            ("tp", lambda r: self.at(r)[1:]),
            ("pp", lambda r: (self.at(r)[0], self.at(r)[2])),
            ("dp", lambda r: self.at(r)[:2]),
        ):
            rows: dict[Any, list[int]] = {}
            for rank in range(self.size):
                rows.setdefault(of(rank), []).append(rank)
            for row in rows.values():
                if len(row) > 1:
                    self.add(f"{kind}-{row[0]}", f"mesh_{kind}", row)

    @property
    def size(self) -> int:
        return self.tp * self.pp * self.dp

    def at(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // self.tp % self.pp, rank // self.tp // self.pp

    def add(self, name: str, desc: str, ranks: Any) -> None:
        self.groups[name], self.descs[name] = tuple(ranks), desc

    def of(self, rank: int, kind: str) -> str | None:
        return next(
            (
                name
                for name, ranks in self.groups.items()
                if name.startswith(f"{kind}-") and rank in ranks
            ),
            None,
        )

    def program(self, rank: int, steps: int, *, with_p2p: bool = True) -> list[Op]:
        """Of each step: forward and backward through the stages, gradients over the replicas, a sum
        over all.
        """
        tp, dp, pp = (self.of(rank, kind) for kind in ("tp", "dp", "pp"))
        stage = self.at(rank)[1]
        ops: list[Op] = []
        for _ in range(steps):
            for forward in (True, False):
                before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
                ops += self._move(rank, pp, before, is_send=False) if with_p2p else []
                ops += (
                    [Op(tp, "all_reduce", 32 + stage), Op(tp, "_all_gather_base", 16)] if tp else []
                )
                ops += self._move(rank, pp, after, is_send=True) if with_p2p else []
            ops += (
                [Op(dp, "_reduce_scatter_base", 128 + stage), Op(dp, "_all_gather_base", 128)]
                if dp
                else []
            )
            ops += [Op("world", "all_reduce", 1)]
        return ops

    def _move(self, rank: int, pp: str | None, stage: int, *, is_send: bool) -> list[Op]:
        if pp is None or not 0 <= stage < self.pp:
            return []
        return [
            Op(
                pp,
                "send" if is_send else "recv",
                8,
                rank + (stage - self.at(rank)[1]) * self.tp,
                is_send,
            )
        ]


@dataclass
class _Rank:
    program: list[Op]
    enqueued: int = 0
    executed: int = 0  # by the device
    seen: int = 0  # as finished, by the host and the recorder
    seqs: list[int] = field(default_factory=list)


class Job:
    def __init__(
        self,
        layout: Layout,
        *,
        steps: int = 2,
        ahead: int = 0,
        sleeps: dict[int, int] | None = None,
        blind: dict[int, int] | None = None,
        with_p2p: bool = True,
        programs: dict[int, list[Op]] | None = None,
    ) -> None:
        self.layout, self.ahead, self.sleeps, self.blind = layout, ahead, sleeps or {}, blind or {}
        self.ranks = [
            _Rank((programs or {}).get(rank) or layout.program(rank, steps, with_p2p=with_p2p))
            for rank in range(layout.size)
        ]
        for one in self.ranks:
            counts: dict[str, int] = {}
            for op in one.program:
                counts[op.group] = counts.get(op.group, 0) + (op.peer is None)
                one.seqs.append(counts[op.group])
        while self._enqueue() | self._execute():
            pass

    @property
    def asleep(self) -> set[int]:
        """Those that came to where they sleep."""
        return {rank for rank, place in self.sleeps.items() if self.ranks[rank].enqueued == place}

    @property
    def hangs(self) -> bool:
        return any(one.seen < one.enqueued for one in self.ranks)

    def _enqueue(self) -> bool:
        moved = False
        for rank, one in enumerate(self.ranks):
            while (
                one.enqueued < min(len(one.program), self.sleeps.get(rank, 1 << 30))
                and one.enqueued - one.seen <= self.ahead
            ):
                one.enqueued += 1
                moved = True
        return moved

    def _execute(self) -> bool:
        moved = False
        for rank, one in enumerate(self.ranks):
            if one.executed < one.enqueued:
                op, seq = one.program[one.executed], one.seqs[one.executed]
                others = self.layout.groups[op.group] if op.peer is None else (rank, op.peer)
                if all(self._is_there(other, rank, op, seq) for other in others):
                    for other in others:
                        self.ranks[other].executed += 1
                        self.ranks[other].seen = min(
                            self.ranks[other].executed, self.blind.get(other, 1 << 30)
                        )
                    moved = True
        return moved

    def _is_there(self, other: int, rank: int, op: Op, seq: int) -> bool:
        one = self.ranks[other]
        if one.executed >= one.enqueued:
            return False
        front = one.program[one.executed]
        if op.peer is None:
            return (
                front.group == op.group
                and front.peer is None
                and one.seqs[one.executed] == seq
                and (front.kind, front.size) == (op.kind, op.size)
            )
        return other == rank or (
            front.group == op.group and front.peer == rank and front.is_send is not op.is_send
        )

    # --- what its recorders leave -----------------------------------------------------------------

    def entries(self, rank: int, *, backend: str) -> Iterator[tuple[int, dict[str, Any]]]:
        one, mine = self.ranks[rank], self.numbers(rank)
        p2p, operations = 0, dict.fromkeys(mine, 0)
        for place in range(one.enqueued):
            op, done = one.program[place], place < one.seen
            members, is_p2p = self.layout.groups[op.group], op.peer is not None
            p2p += is_p2p
            operations[op.group] += 1
            if backend == "gloo" and is_p2p:
                continue
            name = (
                op.kind
                if not is_p2p
                else (
                    f"{op.kind}"
                    f" {members.index(rank)}{'->' if op.is_send else '<-'}{members.index(op.peer)}"
                )
            )
            out = op.size * len(members) if "gather" in op.kind else op.size
            yield (
                place,
                {
                    "record_id": place,
                    "pg_id": mine[op.group],
                    "process_group": (str(self.names()[op.group]), self.layout.descs[op.group]),
                    "thread_name": "python",
                    "thread_id": "1",
                    "collective_seq_id": one.seqs[place],
                    "p2p_seq_id": p2p if is_p2p else 0,
                    "op_id": operations[op.group],
                    "profiling_name": (
                        f"{backend}:{name.lstrip('_') if backend == 'gloo' else name}"
                    ),
                    "time_created_ns": 1_790_000_000_000_000_000 + place * 1_000_000 + rank,
                    "input_sizes": [[op.size]],
                    "input_dtypes": ["Float"],
                    "output_sizes": [[out]],
                    "output_dtypes": ["Float"],
                    "state": "completed" if done and backend == "nccl" else "scheduled",
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": 1 if done and backend == "nccl" else None,
                    "retired": done,
                    "timeout_ms": 600000,
                    "is_p2p": is_p2p,
                },
            )

    def names(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.layout.groups)}

    def numbers(self, rank: int) -> dict[str, int]:
        return {
            name: place
            for place, name in enumerate(
                name for name, ranks in self.layout.groups.items() if rank in ranks
            )
        }

    def dump(
        self, rank: int, *, backend: str = "nccl", only_active: bool = False
    ) -> dict[str, Any]:
        one, mine, names = self.ranks[rank], self.numbers(rank), self.names()
        entries = [
            entry
            for place, entry in self.entries(rank, backend=backend)
            if not only_active or place >= one.seen
        ]
        status = {}
        for group, number in mine.items():
            places = [place for place in range(one.enqueued) if one.program[place].group == group]
            # p2p and collectives are counted together, by the number that the last of them had
            last = [
                max(
                    one.seqs[place],
                    sum(one.program[earlier].group == group for earlier in range(place + 1)),
                )
                for place in places
            ]
            seen = [number for number, place in zip(last, places, strict=True) if place < one.seen]
            status[str(number)] = {
                "last_enqueued_collective": last[-1] if last else 0,
                "last_started_collective": -1,
                "last_completed_collective": seen[-1] if seen else 0,
            }
        config = (
            {
                str(names[group]): {
                    "name": str(names[group]),
                    "desc": self.layout.descs[group],
                    "ranks": str(list(self.layout.groups[group])),
                }
                for group in mine
            }
            if backend == "nccl"
            else {"": {"name": "", "desc": "", "ranks": "[]"}}
        )
        return {
            "version": "2.10",
            "comm_lib_version": "",
            "pg_config": config,
            "pg_status": status,
            "entries": entries,
        }

    def raw(self, rank: int, *, backend: str = "nccl", only_active: bool = False) -> bytes:
        dump = self.dump(rank, backend=backend, only_active=only_active)
        return json.dumps(dump).encode() if backend == "gloo" else pickle.dumps(dump, protocol=2)
