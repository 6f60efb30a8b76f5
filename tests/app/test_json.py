"""What every command with --json prints for programs: one strict JSON object, whatever its flags.

Method    The cases come from the commands' own parsers. A flag without a value, a flag with choices
          and a number that is not finite make their cases by themselves; any other flag takes its
          value from VALUES, and a test fails until it has one there. So does a new command.
Speed     The commands run in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from outlast.app import cli, control
from outlast.app.command_line import Parser, finite
from outlast.app.views import run_views
from outlast.engine.coordinator.requests import RunRequest
from outlast.model.records import Meta
from outlast.runtime import clock
from outlast.runtime.coordinator.control_socket import ControlSocket
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.loop import Loop
from tests.ledger import a_run
from tests.tiers.saved import save

OPTIONS = Path(__file__).parents[2] / "docs/reference/options.md"
ROWS = re.findall(r"^\| ([0-9]+(?:, [0-9]+)*) \|", OPTIONS.read_text(), re.MULTILINE)
EXIT_CODES = {int(one) for row in ROWS for one in row.split(", ")}
WITHOUT = {"run"}  # torchrun's parser makes that of `run`, which prints no JSON
UNKNOWN = 3

# What a command is called with in all of its cases. {given} is the folder that `given` fills.
BASE: Mapping[str, tuple[str, ...]] = {
    "status": ("{given}/ended",),
    "report": ("{given}/ended",),
    "diagnose": ("{given}/oom",),
    "policy test": ("default", "{given}/verdict.json"),
    "calibrate": ("{given}/ended",),
    "import": ("--csv", "{given}/watched.csv"),
    "plan": ("--preset", "lab-8", "--replicas", "2", "--cores", "1"),
    "sim": ("--seed", "5"),
    "check": ("--static", "{given}/script.py"),
    "drill": ("{given}/none.toml",),
    "ckpt ls": ("{given}/saved",),
    "ckpt verify": ("{given}/saved",),
    "ckpt plan-restore": ("{given}/saved",),
    "ckpt prune": ("{given}/saved",),
    "ckpt diff": ("{given}/a.safetensors", "{given}/a.safetensors"),
    "ckpt export": ("{given}/none", "weights.safetensors"),
    "stop": ("{given}/live",),  # which refuses it: it would wait for the launcher's end
    "ckpt now": ("{given}/live",),
    **dict.fromkeys(("drain", "cordon", "uncordon"), ("node-a", "--run", "{given}/live")),
}
# The exit code of BASE, where it is not 0: a stop that is refused, no such plan, no such run.
BASE_CODES = {"stop": 1, "drill": 2, "ckpt export": 2}
FEW = ("--replicas", "2", "--cores", "1")
TABLE = ("--csv", "{given}/failures.csv")
FLEET = ("--units", "64", "--from", "2025-01-01", "--to", "2025-06-01", "--class", "DBE=hbm")


@dataclasses.dataclass(frozen=True)
class Case:
    """One command line. `alone`: without what BASE says. `code`: the exit code it is to have."""

    arguments: tuple[str, ...]
    alone: bool = False
    code: int = 0


def of_asking(code: int = 0) -> Mapping[str, tuple[Case, ...]]:
    """Return the cases of the flags of all commands that ask something of a live run."""
    return {
        "--reason": (of("--reason", "a fan is broken", code=code),),
        "--timeout": (of("--timeout", "5", code=code), of("--timeout", "-1", code=2)),
        # over the network (tests/processes/test_control_remote.py): no token, and no endpoint
        "--endpoint": (of("--endpoint", "127.0.0.1:1", code=2), of("--endpoint", "x:0", code=2)),
        "--token-file": (of("--token-file", "{given}/none", code=2),),
    }


def of(*arguments: str, alone: bool = False, code: int = 0) -> Case:
    return Case(arguments, alone=alone, code=code)


IN_RUN = {"--run": (of("--run", "{given}/live"), of("--run", "{given}/ended", code=2))}

# The cases of each flag that takes a value, or that does not stand by itself.
VALUES: Mapping[str, Mapping[str, tuple[Case, ...]]] = {
    "report": {
        "--html": (of("--html", "page.html", code=2),),  # a page, or JSON
        "--md": (of("--md", code=2),),
        "--table": (of("--table"), of("--table", "{given}/lost")),
        "--tokens-per-step": (of("--tokens-per-step", "16M"), of("--tokens-per-step", "x", code=2)),
        "--flops-per-step": (of("--flops-per-step", "4e19"),),
        "--price": (of("--price", "2.5/h"), of("--price", "1e307/h")),
        "--predict": (
            of("--predict", "{given}/cluster.toml"),
            of("--predict", "{given}/none", code=2),
        ),
    },
    "diagnose": {
        "--html": (of("--html", "page.html"),),
        "--explain": (of("--explain", code=2),),  # draws for people
        "--time-limit": (of("--time-limit", "60"), of("--time-limit", "0", code=2)),
        "--collect": (of("--collect", "out", code=2),),  # with paths: it gathers, or it reads
        "--pid": (of("--pid", "1", code=2),),  # only with --collect
        "--job": (of("--job", "1", code=2),),
        "--watch": (of("--watch", alone=True, code=2),),  # without logs; with some it follows them
        "--quiet-after": (of("--quiet-after", "5"), of("--quiet-after", "0", code=2)),
    },
    "check": {  # which runs the script without --static (tests/drills/checked)
        "--nproc-per-node": (of("--nproc-per-node", "4"),),
        "--steps": (of("--steps", "9"),),
        "--time-limit": (of("--time-limit", "60"),),
        "-m": (of("-m", code=2), of("--module", code=2)),  # no module has the name of the script
    },
    "ckpt verify": {"--step": (of("--step", "2"), of("--step", "9", code=2))},
    "ckpt prune": {
        "--keep-last": (of("--keep-last", "1"), of("--keep-last", "0")),
        "--keep-every": (of("--keep-every", "2"),),
    },
    "ckpt diff": {  # steps are those of runs, and these are files
        "--step": (of("--step", "2", code=2),),
        "--step-b": (of("--step-b", "2", code=2),),
        "--most": (of("--most", "1"),),
    },
    "ckpt export": {  # of weights that there are: tests/worker
        "--format": tuple(of("--format", one, code=2) for one in ("safetensors", "torch", "dcp")),
        "--name": (of("--name", "w", code=2),),
        "--step": (of("--step", "2", code=2),),
    },
    "drill": {  # which trains with a plan that there is (tests/drills/test_drill_command.py)
        "--seed": (of("--seed", "7", code=2),),
        "--time-scale": (of("--time-scale", "2", code=2),),
        "--nproc-per-node": (of("--nproc-per-node", "2", code=2),),
        "--hosts": (of("--hosts", "5", code=2),),
        "--allow-missing": (of("--allow-missing", code=2),),
        "--spares": (of("--spares", "1", code=2),),
        "--run-dir": (of("--run-dir", "new", code=2),),
        "--predict": (of("--predict", "{given}/cluster.toml", code=2),),
        "--html": (of("--html", "page.html", code=2),),
        # which train (tests/drills/test_drill_against.py)
        "--against": (of("--against", "torchrun", code=2),),
        "--against-script": (of("--against-script", "ddp.py", code=2),),
        "--against-python": (of("--against-python", "python", code=2),),
        "--steps": (of("--steps", "9", code=2),),
    },
    "policy test": {"--apart": (of("--apart", "60"), of("--apart", "inf", code=2))},
    "calibrate": {
        "--csv": (of(*TABLE, *FLEET, alone=True), of("--csv", "{given}/watched.csv", alone=True)),
        "--units": (of(*TABLE, *FLEET, alone=True), of("--units", "64", code=2)),
        "--from": (of(*TABLE, "--from", "2025-01-01", alone=True, code=2),),
        "--to": (of(*TABLE, "--to", "2025-01-01", alone=True, code=2),),
        "--class": (of(*TABLE, *FLEET, alone=True), of("--class", "DBE=hbm", code=2)),
        "--out": (of("--out", "cluster.toml"),),
        "--drill": (of("--drill", "mix.toml"), of("--drill", "none/mix.toml", code=2)),
    },
    "import": {
        "--csv": (of(*TABLE, *FLEET, alone=True), of("--csv", "{given}/none", alone=True, code=2)),
        "--sacct": (of("--sacct", "{given}/jobs", alone=True), of("--sacct", "x", code=2)),
        "--torchrun": (of("--torchrun", "{given}/oom", alone=True, code=2),),
        "--no-diagnosis": (of("--no-diagnosis", code=2),),
        "--job-name": (
            of("--sacct", "{given}/jobs", "--job-name", "llama", alone=True),
            of("--job-name", "llama", code=2),
        ),
        "--units": (of(*TABLE, *FLEET, alone=True), of("--units", "64", code=2)),
        "--from": (of(*TABLE, "--from", "2025-01-01", alone=True, code=2),),
        "--to": (of(*TABLE, "--to", "2025-01-01", alone=True, code=2),),
        "--class": (of(*TABLE, *FLEET, alone=True),),
        "--run-dir": (of("--run-dir", "new"), of("--run-dir", "{given}/ended", code=2)),
    },
    "plan": {
        "--preset": (of(*FEW, "--preset", "rsc-2", "--days", "1d", alone=True),),
        "--cluster": (of(*FEW, "--cluster", "{given}/cluster.toml", alone=True),),
        "--ledger": (of(*FEW, "--ledger", "{given}/ended", "--days", "1min", alone=True),),
        "--gpus": (of("--gpus", "64"), of("--gpus", "nan", code=2)),
        "--days": (of("--days", "5h"), of("--days", "inf", code=2)),
        "--params": (of("--params", "1B"),),
        "--gpus-per-node": (of("--gpus-per-node", "4"),),
        "--nodes-per-rack": (of("--nodes-per-rack", "3"),),
        "--step": (of("--step", "2s"),),
        "--mttf": (of("--mttf", "1000h"), of("--mttf", "never")),
        "--bandwidth": (of("--bandwidth", "2TB/s"),),
        "--save": (of("--save", "3s"), of("--save", "0s")),
        "--interval": (of("--interval", "10min"), of("--interval", "disk=never")),
        "--detect": (of("--detect", "mean=5s"),),
        "--restart": (of("--restart", "median=1min,p95=2min"),),
        "--take": (of("--take", "7s"),),
        "--spares": (of("--spares", "1", "--gpus", "64"),),
        "--repair": (of("--repair", "8h"),),
        "--price": (of("--price", "2.5/h"), of("--price", "1e307/h")),
        "--set": (of("--set", "repair.wrong=10%"),),
        "--optimise": (of("--optimise", "interval"), of("--optimise", "spares,tiers")),
        "--budget": (of("--budget", "2%", "--optimise", "spares"), of("--budget", "2%", code=2)),
        "--scale": (of("--scale", "1e3:3e3"),),
        "--power": (
            of("--power"),
            of("--power", "--mttf", "never"),
            of("--power", "--mttf", "30min", "--days", "2h"),  # hardly a step stays
        ),
        "--placement": (
            of("--placement", "peers=1"),
            of("--placement", "parity=4+2:step", "--gpus", "64"),
            of("--placement", "vault:auto", code=2),
        ),
        "--domains": (
            of("--domains", "none", "--placement", "peers=1"),
            of("--domains", "5,3", "--placement", "peers=1", "--gpus", "64"),
            of("--domains", "5,3", code=2),
        ),
        "--seed": (of("--seed", "3"),),
        "--replicas": (of("--replicas", "3"), of("--replicas", "1", code=2)),
        "--cores": (of("--cores", "2"),),
        "--ray": (of("--ray", "127.0.0.1:1", code=2),),
        "--html": (of("--html", "page.html"),),
        "--chart": (of("--chart", "chart.svg", code=0 if find_spec("matplotlib") else 2),),
        "--write": (of("--write", "cluster.toml"),),
    },
    "stop": of_asking(code=1),
    "ckpt now": of_asking(),
    **{name: of_asking() | IN_RUN for name in ("cordon", "uncordon")},
    "drain": {
        **of_asking(),
        **IN_RUN,
        "--one-at-a-time": (of("--one-at-a-time", code=2),),  # only with --all
        "--all": (
            of("--all", code=2),  # with a node, and not one at a time
            of("--all", "--one-at-a-time", "--run", "{given}/live", alone=True),
        ),
    },
    "sim": {
        "--seed": (of("--seed", "7", alone=True),),
        "--seeds": (of("--seeds", "3", alone=True), of("--seeds", "0", alone=True, code=3)),
        "--swarm": (of("--swarm", "0.01", "--steps", "3", "--ranks", "2", alone=True),),
        "--first": (of("--seeds", "2", "--first", "9", "--steps", "3", alone=True),),
        "--shrink": (of("--shrink", "5", alone=True),),
        "--replay": (of("--replay", "{given}/life.json", alone=True),),
        "--faults": (of("--faults", "{given}/plan.toml", "--ranks", "3"),),
        "--ranks": (of("--ranks", "3"),),
        "--spares": (of("--spares", "1"),),
        "--steps": (of("--steps", "3"),),
        "--phase-after": (of("--phase-after", "2"),),
        "--latency-s": (of("--latency-s", "0.002"),),
        "--first-step-s": (of("--first-step-s", "0.5"),),
        "--nodes": (of("--nodes", "2", "--ranks", "4"),),
        "--spare-nodes": (of("--spare-nodes", "1", "--nodes", "3", "--ranks", "4"),),
        "--peer-copies": (of("--peer-copies", "--nodes", "2", "--recovery-mode", "sharded"),),
        "--parity": (
            of("--parity", "1+1", "--peer-copies", "--nodes", "2", "--recovery-mode", "sharded"),
        ),
        "--peers": (
            of("--peers", "2", "--peer-copies", "--nodes", "3", "--recovery-mode", "sharded"),
            of("--peers", "0", code=2),
        ),
        "--domains": (
            of("--domains", "2", "--peer-copies", "--nodes", "3", "--recovery-mode", "sharded"),
        ),
        "--beat-s": (of("--beat-s", "0.3"),),
        "--drift": (of("--drift", "0.001"),),
        "--step-s": (of("--step-s", "0.1"),),
        "--for-s": (of("--for-s", "1"),),
        "--again-s": (of("--again-s", "0.2", "--for-s", "1"),),
        "--failures": (of("--failures", "1", "--for-s", "5"), of("--failures", "1", code=2)),
        "--checkpoint-every": (of("--checkpoint-every", "2"),),
        "--keep-every": (of("--keep-every", "2"),),
        "--replicas": (of("--replicas", "2", "--ranks", "4", "--recovery-mode", "sharded"),),
        "--max-restarts": (of("--max-restarts", "1"),),
    },
}
# What a command may be given beside the files of BASE.
OTHERS: Mapping[str, tuple[Case, ...]] = {
    command: tuple(
        of(f"{{given}}/{name}", alone=True)
        for name in ("failed", "lost", "live", "unborn", "over-at-once")
    )
    for command in ("status", "report")
} | {
    "calibrate": (
        of("{given}/ended", "{given}/lost", alone=True),
        of("{given}/unborn", alone=True, code=2),
        of("{given}/over-at-once", alone=True, code=2),
    ),
    "policy test": (
        of("default", "{given}/ended", alone=True, code=2),
        of("default", "{given}/nan.json", alone=True, code=2),
    ),
    "diagnose": (
        of("{given}/evidence", alone=True, code=UNKNOWN),
        of("{given}/missing", alone=True, code=2),
    ),
}


# --- the commands and their parsers ---


def commands() -> dict[str, Parser]:
    """Return the parser of each command that has --json, by the words that call it."""
    found: dict[str, Parser] = {}
    for name in cli.COMMANDS.keys() - WITHOUT:
        module = importlib.import_module(cli.COMMANDS[name].module)
        parser = module.parser(name) if module in (run_views, control) else module.parser()
        found |= {name: parser}
        found |= {f"{name} {sub}": one for sub, one in subparsers(parser).items()}
    return {words: one for words, one in found.items() if "--json" in one._option_string_actions}


def subparsers(parser: argparse.ArgumentParser) -> dict[str, Any]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def cases() -> Iterator[Any]:
    for command, parser in sorted(commands().items()):
        base = of(code=BASE_CODES.get(command, 0))
        yield from (case_of(command, one) for one in (base, *OTHERS.get(command, ())))
        for action in parser._actions:
            if action.option_strings and action.dest not in ("help", "json"):
                yield from (case_of(command, one) for one in of_flag(command, action))


def case_of(command: str, case: Case | str) -> Any:
    text = case if isinstance(case, str) else " ".join(case.arguments)
    return pytest.param(command, case, id=f"{command} {text}".strip())


def of_flag(command: str, action: argparse.Action) -> Iterator[Case | str]:
    flag = action.option_strings[0]
    given = VALUES.get(command, {}).get(flag)
    if given is not None:
        yield from given
    elif action.choices is not None:
        yield from (of(flag, str(one)) for one in action.choices)
    elif action.nargs == 0:
        yield from (of(one) for one in action.option_strings)
    else:
        yield f"{flag} has no value in VALUES: give it one"
    if action.type in (float, finite):
        yield from (of(flag, one, code=2) for one in ("nan", "inf"))


# --- what they are called with ---


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs, evidence and files for all cases; one of the runs is live."""
    root = tmp_path_factory.mktemp("given")
    for name, state in (("ended", "ended"), ("failed", "failed")):
        made = a_run.ended_run(root / f"{name}-made", state=state, exit_code=1, reason="why")
        made.rename(root / name)
    a_run.lost_run(root / "lost-made").rename(root / "lost")
    a_run_without_a_step(root / "unborn", over=False)
    a_run_without_a_step(root / "over-at-once", over=True)
    (root / "evidence").mkdir()
    (root / "evidence" / "rank0.log").write_text("nothing of note\n")
    (root / "oom").mkdir()
    (root / "oom" / "dmesg.log").write_text(
        "[12345.678] Out of memory: Killed process 4242 (python) total-vm:1kB\n"
    )
    (root / "verdict.json").write_text(VERDICT)
    (root / "nan.json").write_text(VERDICT.replace("0.6", "NaN"))
    (root / "failures.csv").write_text(FAILURES)
    (root / "watched.csv").write_text(WATCHED)
    (root / "jobs").write_text(JOBS)
    (root / "plan.toml").write_text(PLAN)
    (root / "script.py").write_text("print('trained')\n")
    save(root / "saved", 1, 2)
    save_file({"w": np.ones(3)}, root / "a.safetensors")
    (root / "life.json").write_text(called("sim", "--seed", "5", "--json")[1])
    assert called("plan", *BASE["plan"], "--write", str(root / "cluster.toml"))[0] == 0
    folder, ledger = a_run.live_run(root / "live-made")
    (root / "live").symlink_to(folder.path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        with a_launcher_that_answers(folder.path):
            yield root


@contextlib.contextmanager
def a_launcher_that_answers(folder: Path) -> Iterator[None]:
    """Answer at once all that is asked of the run in `folder`: done, and a stop is refused."""
    loop = Loop()
    socket = ControlSocket(loop, folder, tell=print)

    def asked(one: RunRequest) -> None:
        socket.answer(one.number, "refused" if one.what == "stop" else "done", one.what)

    socket.open(asked)
    over = threading.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until(over.is_set, within_s=600.0), daemon=True
    )

    def look() -> None:
        loop.call_at(clock.now_s() + 0.05, look)

    look()
    thread.start()
    yield
    over.set()
    thread.join(10.0)
    socket.close()
    loop.close()


FAILURES = "time,class,gpu\n2025-01-05,DBE,1\n2025-02-05,gpu,2\n2025-02-07,network,3\n"
VERDICT = (
    '{"class": "gpu", "mechanism": "signal", "confidence": 0.6, '
    '"ranks": [], "nodes": ["n"], "evidence": []}'
)
WATCHED = "node,time,class,start,end\na,20,gpu,0,100\nb,,,0,100\n"
JOBS = (
    "JobID|JobName|State|ExitCode|Start|End\n"
    "7|llama|NODE_FAIL|0:0|2025-01-01T00:00:00|2025-01-02T00:00:00\n"
)
PLAN = (
    'schema = 1\n[[fault]]\nid = "mine"\nkind = "kill"\n'
    'target = { rank = 1 }\nwhen = { on_mark = "voting", nth = 2 }\n'
)


def a_run_without_a_step(path: Path, *, over: bool) -> None:
    """A launcher that vanished at once, or a run that was over in no time at all."""
    folder = RunFolder.create(path, name="toy", version="0.1.0", options={})
    meta = Meta("toy", "toy", 2, "0.1.0", a_run.ZERO_S, a_run.META.started_wall_s)
    ledger = Ledger.create(folder.ledger, meta, pid=os.getpid())
    with contextlib.closing(folder), contextlib.closing(ledger):
        if over:
            ledger.end_session(ended_s=a_run.ZERO_S, state="stopped", exit_code=143, reason="")


def called(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that runs in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(list(arguments))
    return code, out.getvalue(), errors.getvalue()


def strict(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


# --- the rules ---


@pytest.mark.parametrize(("command", "case"), list(cases()))
def test_what_programs_read_is_one_strict_json_object(
    command: str, case: Case | str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong usage (exit code 2) says nothing on stdout, and an error on stderr."""
    if isinstance(case, str):
        pytest.fail(f"outlast {command} {case}")
    monkeypatch.chdir(tmp_path)
    base = () if case.alone else BASE[command]
    words = [one.replace("{given}", str(given)) for one in (*base, *case.arguments)]
    code, out, errors = called(*command.split(), *words, "--json")
    assert code == case.code, errors or out[:2000]
    assert code in EXIT_CODES
    if code == 2:
        assert (out, errors[:7]) == ("", "error: ")
    else:
        assert isinstance(strict(out), dict)


def test_every_value_is_of_a_flag_that_there_is() -> None:
    known = {command: set(parser._option_string_actions) for command, parser in commands().items()}
    assert set(BASE) == set(known)
    for command, values in VALUES.items():
        assert set(values) <= known[command], command
