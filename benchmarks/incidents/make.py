"""Make incidents with truth: real gloo processes under a real torchrun, in which one or two ranks
go wrong.

    python benchmarks/incidents/make.py OUT --count 200             development seeds
    python benchmarks/incidents/make.py OUT --count 200 --judging   seeds that nothing was tried on

Each leaves `OUT/<seed>-<kind>/{evidence/, damaged/, truth.json}`: evidence as a user of torchrun
would have it, the same with some of it lost, and beside both the truth, which a diagnosis never
sees. A job's own folder, code and command lines say nothing of what was done to it
(`tests/diagnose/incidents`).

An incident counts only if what was meant did happen, by what its processes did and never by what a
diagnosis says of them; else it is made again:
    a hang      is looked at once every rank that nothing was done to stands still (its main thread
                sleeps, and has not run for REST_S), and all who can have saved dump and stack after
                that. A machine with much to do keeps ranks for seconds on their way to where they
                will wait
    who leaves  has ended before the launcher closed the others: one that was still on its way out
                when the launcher closed it has not left by itself

Limits: Linux; torch with gloo; about a second and a half of processor time for each. Nothing is
left running: the process that starts jobs kills and waits for everything below it after each
incident, and dies with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.incidents.evidence import damage, gather, marks_of_life
from benchmarks.incidents.plan import HANGS, STEPS_MAX, Plan, draw, seeds
from benchmarks.incidents.truth import truth_of

JOB = Path(__file__).parent / "job"
EVERY_S = 0.1  # how often a rank saves its flight recorder
# A hang has lasted that long before anybody looks. Of a job that called a collective just before
# (FRESH_S in diagnose/pipeline.py) a diagnosis says that it runs on.
SETTLED_S = 3.0
STACKS_AFTER_S = 0.5  # of a step
SHAPE_SETTLED_S = 3.0
REST_S = 0.3  # whose main thread has not run for so long stands where it waits
WRITTEN_S = 0.1  # a stack as old as that is written to its end
WITHIN_S = 30.0
READY_WITHIN_S = 300.0  # torch's import, on a machine with much to do
TRIES_COUNT = 4
# What happens beside the fault, and takes away from the evidence what the truth needs
ACCIDENTS = {
    # faulthandler walks stacks that are in use: seldom, it stumbles
    "SIGSEGV": "a rank crashed by itself",
    "Failed to parse reply file": (
        "torchrun fell over an error file that its own SIGTERM cut short, and names no exit code"
    ),
}
HIDDEN = ("outlast", "pytest", "bench", "incident")


class NotMadeError(RuntimeError):
    """The incident did not happen as planned, so its truth is unknown. Its folder is removed."""


class Stand:
    """The process that starts jobs, and the folder that its jobs live in, which is named after
    nothing.
    """

    def __enter__(self) -> Stand:
        self.folder = Path(tempfile.mkdtemp(prefix="gpt-", dir=_neutral_temp()))
        for source in JOB.glob("*.py"):
            shutil.copy(source, self.folder)
        env = {
            name: value
            for name, value in os.environ.items()
            if not any(word in f"{name}={value}".lower() for word in HIDDEN)
        }
        env |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.environ["PATH"],
        }
        self.process = subprocess.Popen(
            [sys.executable, "launch.py"],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=env,
        )
        self.unread = b""
        self.expect("ready", READY_WITHIN_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)

    def order(self, **what: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def answers(self, within_s: float) -> Iterator[dict[str, Any]]:
        """Yield the answers that are there, or come within this time."""
        assert self.process.stdout
        if b"\n" not in self.unread and select.select([self.process.stdout], [], [], within_s)[0]:
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                raise NotMadeError("the process that starts jobs is gone")
            self.unread += read
        while b"\n" in self.unread:
            line, self.unread = self.unread.split(b"\n", 1)
            yield json.loads(line)

    def expect(self, word: str, within_s: float) -> Any:
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            for answer in self.answers(0.1):
                if word in answer:
                    return answer[word]
        raise NotMadeError(f"no answer: {word}")


def _neutral_temp() -> str | None:
    """Return the usual temporary folder, unless its name tells something, as that of a test."""
    usual = tempfile.gettempdir()
    return "/tmp" if any(word in usual.lower() for word in HIDDEN) else usual


class Incident:
    """One job, from its start to its evidence."""

    def __init__(self, stand: Stand, plan: Plan) -> None:
        self.stand, self.plan = stand, plan
        self.scratch = Path(tempfile.mkdtemp(prefix="job-", dir=stand.folder))
        self.kept = self.scratch / "out"  # what the user finds
        self.at = self.scratch / "at"
        self.struck_s: float | None = None
        self.code: int | None = None
        # by rank: how its main thread stood, and since when (Unix seconds)
        self.stood: dict[int, tuple[str, float]] = {}

    def prepare(self) -> list[str]:
        plan = self.plan
        dumps = self.kept / Path(plan.dump_name).parent
        checkpoints = [self.scratch / "checkpoints" / f"rank_{rank}" for rank in range(plan.world)]
        for folder in (dumps, self.kept / "logs", self.kept / "stacks", self.at, *checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        ranks: dict[str, Any] = {}
        for strike in plan.strikes:
            if strike.note is not None:
                ranks[str(strike.rank)] = {str(strike.step): strike.note}
            if plan.kind == "disk" and plan.variant.startswith("full"):
                (checkpoints[strike.rank] / f"step_{strike.step}.pt").symlink_to("/dev/full")
        settings = {
            "layout": plan.layout,
            "mesh": plan.mesh,
            "timeout_s": plan.timeout_s or 600.0,
            "steps": STEPS_MAX,
            "workers": plan.workers,
            "ranks": ranks,
            "recorder": {
                "folder": str(dumps),
                "name": Path(plan.dump_name).name,
                "json": plan.json_dumps,
                "every_s": EVERY_S,
            },
            "stacks": str(self.kept / "stacks"),
            "stacks_after_s": STACKS_AFTER_S,
            "at": str(self.at),
            "checkpoints": str(self.scratch / "checkpoints"),
            **plan.settings,
        }
        (self.scratch / "settings.json").write_text(json.dumps(settings))
        tee = ["--tee", "3"] if plan.kept["tee"] else []
        return [
            "--standalone",
            "--nproc-per-node",
            str(plan.world),
            "--log-dir",
            str(self.kept / "logs"),
            "--redirects",
            "3",
            *tee,
            "train.py",
            str(self.scratch / "settings.json"),
        ]

    def run(self) -> None:
        argv = self.prepare()
        self.stand.order(argv=argv, log=str(self.kept / "torchrun.log"), env={})
        until_s = time.monotonic() + WITHIN_S
        while not self.over():
            if time.monotonic() > until_s:
                raise NotMadeError(f"{self.plan.name}: no end within {WITHIN_S:.0f} s")
            for answer in self.stand.answers(0.01):
                self.code = answer.get("ended", self.code)
            if self.struck_s is None:
                self.strike()
        if self.struck_s is None:
            raise NotMadeError(f"{self.plan.name}: it ended before anything was done to it")
        log = (self.kept / "torchrun.log").read_text()
        for said, why in ACCIDENTS.items():
            if said in log:
                raise NotMadeError(f"{self.plan.name}: {why}")
        closed = [
            rank
            for rank, place in self.places().items()
            if rank in self.plan.ranks and f"Sending process {place['pid']} closing signal" in log
        ]
        if closed and self.plan.kind == "uneven":
            raise NotMadeError(
                f"{self.plan.name}: the launcher closed rank {closed[0]} before it had left"
            )

    def places(self) -> dict[int, dict[str, Any]]:
        found = {}
        for rank in range(self.plan.world):
            with suppress(OSError, ValueError):
                found[rank] = json.loads((self.at / f"rank-{rank}.json").read_text())
        return found

    def strike(self) -> None:
        """Strike from outside if the plan has no note; otherwise see whether the record was met."""
        if all(strike.note is not None for strike in self.plan.strikes):
            met = [self.at / f"seen-{rank}" for rank in self.plan.ranks]
            ended = self.plan.kind == "uneven" and self.code is not None
            if (
                ended
                or all(path.exists() for path in met)
                or (self.plan.kind == "uneven" and self.left_early())
            ):
                self.struck_s = time.monotonic()
            return
        places = self.places()
        if not all(
            places.get(strike.rank, {}).get("step", -1) >= strike.step
            for strike in self.plan.strikes
        ):
            return
        number = signal.SIGSTOP if self.plan.kind == "stopped" else signal.SIGKILL
        for strike in self.plan.strikes:
            pid = places[strike.rank]["pid"]
            os.kill(self.loader_of(pid) if self.plan.kind == "loader" else pid, number)
        self.struck_s = time.monotonic()

    def left_early(self) -> bool:
        (strike,) = self.plan.strikes
        place = self.places().get(strike.rank, {})
        return place.get("phase") == "finish"

    def loader_of(self, pid: int) -> int:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            raise NotMadeError(f"{self.plan.name}: no loader worker")
        return int(children[0])

    def over(self) -> bool:
        """Return True once nothing more is to come.

        The launcher has ended; or the job hangs, and all who can have said so; or the launcher
        waits for a rank that cannot end.
        """
        if self.code is not None:
            return True
        plan, since_s = self.plan, self.since_s()
        if since_s < SETTLED_S:
            return False
        if plan.timeout_s is not None:
            return (
                plan.kind in ("stopped", "interpreter_lock")
                and "closing signal SIGTERM" in (self.kept / "torchrun.log").read_text()
                and self.quiet()
            )
        if plan.kind == "shape":  # gloo ends most of these
            return since_s > SHAPE_SETTLED_S and self.settled()
        return (plan.kind in HANGS or plan.variant == "barrier") and self.settled()

    def since_s(self) -> float:
        return -1.0 if self.struck_s is None else time.monotonic() - self.struck_s

    def settled(self) -> bool:
        """Return True if all ranks stand still and their evidence was saved after that.

        That is the flight recorder of each rank that can save one, and each stack. All of it must
        also come well after the fault.
        """
        silent = (
            set(self.plan.ranks) if self.plan.kind in ("stopped", "interpreter_lock") else set()
        )
        awake = [rank for rank in range(self.plan.world) if rank not in silent]
        rested_s = self.rested_s()
        if rested_s is None:
            return False
        now_s, saved = time.time(), marks_of_life(self.kept, self.plan)
        from_s = max(now_s - self.since_s() + SETTLED_S, rested_s)
        stacks = [
            self.kept / "stacks" / f"rank_{rank}.txt"
            for rank in (range(self.plan.world) if self.plan.kind != "stopped" else awake)
        ]
        written = [path.stat().st_mtime if path.exists() else 0.0 for path in stacks]
        return all(saved.get(rank, 0.0) > from_s for rank in awake) and all(
            rested_s < at_s < now_s - WRITTEN_S for at_s in written
        )

    def rested_s(self) -> float | None:
        """Return since when all ranks without a fault stand still; None while one of them moves."""
        now_s = time.time()
        for rank, place in self.places().items():
            if rank not in self.plan.ranks:
                stands = _stands(place["pid"])
                if not stands or self.stood.get(rank, ("", 0.0))[0] != stands:
                    self.stood[rank] = (stands, now_s)
        innocent = self.plan.world - len(self.plan.ranks)
        since_s = max((since_s for _, since_s in self.stood.values()), default=now_s)
        return since_s if len(self.stood) == innocent and since_s < now_s - REST_S else None

    def quiet(self) -> bool:
        """Return True once every process that can end has ended."""
        alive = [
            place["pid"]
            for rank, place in self.places().items()
            if rank not in self.plan.ranks and Path(f"/proc/{place['pid']}/stat").exists()
        ]
        return not any(_state(pid) not in ("Z", "") for pid in alive)

    def collect(self, folder: Path) -> None:
        plan = self.plan
        shutil.rmtree(folder, ignore_errors=True)
        running_since_s = (
            max((since_s for _, since_s in self.stood.values()), default=0.0)
            if self.code is None
            else None
        )
        gather(plan, self.kept, self.places(), folder / "evidence", stands_since_s=running_since_s)
        hidden = damage(plan, folder / "evidence", folder / "damaged")
        said = {
            "plan": plan.public(),
            "truth": truth_of(plan).public(),
            "hidden": hidden,
            "exit_code": self.code,
        }
        (folder / "truth.json").write_text(json.dumps(said, indent=1))

    def end(self) -> None:
        self.stand.order(end=True)
        self.stand.expect("gone", 30.0)
        shutil.rmtree(self.scratch, ignore_errors=True)


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _stands(pid: int) -> str:
    """Return how a main thread that sleeps stands: the same words for as long as it does not run.

    Return "" if it does not sleep.
    """
    with suppress(OSError):
        said = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
            if ":" in line
        )
        if said["State"].split()[0] == "S":
            return (
                f"{said['voluntary_ctxt_switches'].strip()}"
                f" {said['nonvoluntary_ctxt_switches'].strip()}"
            )
    return ""


def make(stand: Stand, plan: Plan, out: Path) -> Path:
    """Make an incident, and return its folder. Raises NotMadeError if it did not come about."""
    incident = Incident(stand, plan)
    folder = out / plan.name
    try:
        incident.run()
        incident.collect(folder)
    finally:
        incident.end()
    return folder


def make_all(
    plans: Iterable[Plan],
    out: Path,
    *,
    at_once: int = 2,
    said: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Make incidents. Return those that were not made, each with the reason.

    Each gets TRIES_COUNT tries.
    """
    todo: queue.SimpleQueue[Plan] = queue.SimpleQueue()
    failed: dict[str, str] = {}
    for plan in plans:
        todo.put(plan)
        failed[plan.name] = "nothing that starts jobs came up"

    def work() -> None:
        with Stand() as stand:
            while True:
                try:
                    plan = todo.get_nowait()
                except queue.Empty:
                    return
                for _ in range(TRIES_COUNT):
                    began_s = time.monotonic()
                    try:
                        make(stand, plan, out)
                    except NotMadeError as error:
                        failed[plan.name] = str(error)
                        continue
                    failed.pop(plan.name, None)
                    said(
                        f"{plan.name:28} {plan.variant:12} {plan.layout} {plan.mesh} ranks"
                        f" {plan.ranks} {time.monotonic() - began_s:.1f} s"
                    )
                    break

    with _threads(work, at_once):
        pass
    return failed


@contextmanager
def _threads(work: Callable[[], None], count: int) -> Iterator[None]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument(
        "--first", type=int, default=0, help="the first seed, counted from where the row begins"
    )
    parser.add_argument(
        "--judging", action="store_true", help="the row of seeds that nothing was tried on"
    )
    parser.add_argument("--kind", help="only this kind")
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    plans = [
        draw(seed, args.kind) for seed in seeds(args.count, judging=args.judging, first=args.first)
    ]
    began_s = time.monotonic()
    failed = make_all(
        plans, args.out, at_once=args.at_once, said=lambda line: print(line, flush=True)
    )
    print(f"{len(plans) - len(failed)} incidents in {time.monotonic() - began_s:.0f} s")
    for name, why in failed.items():
        print(f"not made: {name}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
