"""`outlast stop`, `drain`, `cordon`, `uncordon` and `ckpt now`: ask something of a live run.

    outlast stop [RUN]                    as SIGTERM does: the step in flight is committed first
    outlast ckpt now [RUN]                write a checkpoint of the next step
    outlast drain NODE [--run RUN]        move the ranks of a node to other nodes
    outlast drain --all --one-at-a-time   drain every node, one after the other
    outlast cordon NODE, uncordon NODE    give a node no more work, or work again

The launcher of the run answers over a socket in the run's folder, or with --endpoint and the run's
token over the network. It writes into the ledger who asked, and why (--reason). Each command waits
until what it asks for is done. With --timeout it stops waiting, without taking the request back.

Exit codes: 0: done. 1: refused or failed. 2: wrong usage, or no such run. 3: not done yet.
"""

from __future__ import annotations

import argparse
import getpass
import platform
import sys
from collections.abc import Sequence

from outlast.app.control_parser import parser as parser
from outlast.app.json_text import json_text
from outlast.app.launch.nodes import address_of
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Request, RequestAnswer
from outlast.model.records import LED_ELSEWHERE
from outlast.model.texts import cut_at_word, escaped
from outlast.model.wire import WIRE_VERSION
from outlast.runtime.control_call import (
    ControlCall,
    FolderLauncher,
    LauncherAddress,
    RemoteLauncher,
)
from outlast.runtime.folders import run_folder
from outlast.runtime.ledger.view import look
from outlast.runtime.network import token

NOT_YET_EXIT = 3
_OVER = {"ended": "has ended well", "stopped": "was stopped", "failed": "has failed"}
_NO_ID = "none"  # the --rdzv-id of a run that was given none


def stop(argv: Sequence[str]) -> int:
    """Run `outlast stop` and return its exit code."""
    args = parser("stop").parse_args(list(argv))
    return ask(args, "stop", run=args.run)


def drain(argv: Sequence[str]) -> int:
    """Run `outlast drain` and return its exit code."""
    args = parser("drain").parse_args(list(argv))
    if args.all == (args.node is not None):
        raise UsageError("name one NODE, or give --all", hint="`outlast status` lists the nodes")
    if args.one_at_a_time and not args.all:
        raise UsageError("--one-at-a-time is about all nodes", hint="give it with --all")
    if args.all and not args.one_at_a_time:
        raise UsageError(
            "drained all at once, the nodes leave no room for any rank",
            hint="give --one-at-a-time with --all; `outlast stop` stops the run",
        )
    return ask(args, "drain_all" if args.all else "drain", node=args.node or "", run=args.run)


def cordon(argv: Sequence[str]) -> int:
    """Run `outlast cordon` and return its exit code."""
    args = parser("cordon").parse_args(list(argv))
    return ask(args, "cordon", node=args.node, run=args.run)


def uncordon(argv: Sequence[str]) -> int:
    """Run `outlast uncordon` and return its exit code."""
    args = parser("uncordon").parse_args(list(argv))
    return ask(args, "uncordon", node=args.node, run=args.run)


def ask(args: argparse.Namespace, what: str, *, run: str | None, node: str = "") -> int:
    """Ask the launcher of a run for something, show how it stands, and return the exit code.

    Raises UsageError if the time limit is negative, and OutlastError if no launcher answers.
    """
    if args.timeout is not None and args.timeout < 0:
        raise UsageError("--timeout takes seconds, 0 or more")
    launcher = _launcher(args, run)
    remote = isinstance(launcher, RemoteLauncher)
    reason = cut_at_word(args.reason, limits.CONTROL_REASON_CHARS)
    request = Request(WIRE_VERSION, what, node, reason, _own_name() if remote else "")
    last = RequestAnswer("waits", "the launcher")
    try:
        with ControlCall(launcher, request) as call:
            for last in call.answers(within_s=args.timeout):
                if last.state == "waits" and not args.json:
                    print(f"waiting: {escaped(last.text)}", flush=True)
            if what == "stop" and last.state == "done":
                call.wait_until_gone()
    except KeyboardInterrupt:
        print("it was asked for, and will still be done", file=sys.stderr)
        return limits.SIGINT_EXIT_CODE
    if args.json:
        facts = {**_facts(launcher), "what": what, "node": node or None}
        print(json_text(facts | {"state": last.state, "text": last.text}))
    elif last.state != "waits":
        print(f"{last.state}: {escaped(last.text)}")
    sys.stdout.flush()
    return {"done": 0, "refused": 1}.get(last.state, NOT_YET_EXIT)


def _launcher(args: argparse.Namespace, run: str | None) -> LauncherAddress:
    """Return the launcher that is asked. Raises OutlastError if the options do not name one."""
    if args.endpoint is None:
        if args.token_file is not None:
            raise UsageError(
                "--token-file is about requests over the network", hint="give it with --endpoint"
            )
        folder = run_folder.find(run)
        launcher = FolderLauncher(folder)
        if run_folder.holder(folder) is None:
            _check_not_over(launcher)
        return launcher
    address = address_of(args.endpoint)
    if address is None:
        raise UsageError(
            f"--endpoint {args.endpoint!r} is no address",
            hint="give HOST:PORT of the node that leads, as leader.json in the run's folder has it",
        )
    secret = token.read_token(token.take_from_environment(), args.token_file or "")
    if secret is None:
        raise UsageError(
            "a request over the network needs the token of the run",
            hint=f"set {token.VARIABLE}, or give --token-file",
        )
    return RemoteLauncher(*address, run or _NO_ID, secret)


def _check_not_over(launcher: FolderLauncher) -> None:
    """Raise UsageError if the ledger says that the run has ended.

    A copy of the ledger does not count: another node may lead the run on. If this node has handed
    the run over, wait until the new leader takes requests in this folder, or until CONTROL_LEADER_S
    are over.
    """
    folder = launcher.folder
    try:
        run = look(str(folder))
    except OutlastError:
        return  # the ledger cannot be read, so it does not say that
    if run.state not in _OVER or run.copied_ago_s is not None:
        return
    if run.records.sessions[-1].session.reason == LED_ELSEWHERE:
        launcher.wait_until_listens(within_s=limits.CONTROL_LEADER_S)
    else:
        raise UsageError(
            f"the run in {folder} {_OVER[run.state]} already",
            hint=f"`outlast report {folder}` shows how it went",
        )


def _facts(launcher: LauncherAddress) -> dict[str, str | None]:
    """Return which run was asked, for --json."""
    if isinstance(launcher, FolderLauncher):
        return {"run": launcher.folder.name, "path": str(launcher.folder)}
    assert isinstance(launcher, RemoteLauncher)
    return {"run": launcher.run, "path": None}


def _own_name() -> str:
    """Return who asks, for the ledger of a run on another machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name here
        user = "somebody"
    return f"{user}@{platform.node()}"
