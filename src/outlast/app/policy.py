"""`outlast policy`: what outlast does once a failure has been diagnosed.

    outlast policy show                          print the default policy, to be copied and changed
    outlast policy check POLICY                  check that a policy can be read, and list its rules
    outlast policy test POLICY INCIDENT...       show what it would have done in recorded incidents,
                                                 one after the other

POLICY is a file, or `default`. An INCIDENT is a file with the output of `outlast diagnose --json`,
one object or one on each line; a folder of such files; or a run's folder, whose ledger holds the
verdicts of its interruptions. No action is taken. Exit codes: 0, or 2 for input that cannot be
read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.app.command_line import Parser, add_json
from outlast.app.json_text import json_text
from outlast.engine.default_policy import TEXT
from outlast.engine.policy import ActionVerdict
from outlast.engine.replay import replay
from outlast.errors import OutlastError, UsageError
from outlast.model.policy import Action, Policy, parse
from outlast.model.recorded import Recorded
from outlast.model.texts import escaped
from outlast.runtime.evidence.incidents import read_incidents
from outlast.runtime.folders.given import read_text

APART_S = 3_600.0
DEFAULT = "default"


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    try:
        if args.doing == "show":
            print(TEXT, end="")
        elif args.doing == "check":
            _check(args.policy)
        else:
            _test(args)
    except OutlastError as error:  # files and their names may hold anything
        raise type(error)(escaped(error.message), hint=escaped(error.hint)) from None
    sys.stdout.flush()
    return 0


def parser() -> Parser:
    out = Parser(
        prog="outlast policy",
        description=(
            "Show, check or try a policy. It says what outlast does once a failure has been"
            " diagnosed (docs/how-to/write-a-policy.md)."
        ),
    )
    doing = out.add_subparsers(dest="doing", required=True, metavar="ACTION", parser_class=Parser)
    doing.add_parser("show", help="print the default policy, to be copied and changed")
    check = doing.add_parser(
        "check",
        help="check that a policy can be read",
        description="Check that a policy can be read, and list its rules.",
    )
    test = doing.add_parser(
        "test",
        help="show what a policy would have done in recorded incidents",
        description=(
            "Show what a policy would have done in recorded incidents, one after the other. No"
            " action is taken."
        ),
    )
    for one in (check, test):
        one.add_argument("policy", metavar="POLICY", help="a file (TOML), or `default`")
    test.add_argument(
        "incidents",
        nargs="+",
        metavar="INCIDENT",
        help=(
            "output of `outlast diagnose --json` in a file, a folder of such files, or the folder"
            " of a run"
        ),
    )
    test.add_argument(
        "--apart",
        type=_apart,
        metavar="SECONDS",
        default=APART_S,
        help=f"time between two incidents that carry no time (default: {APART_S:g})",
    )
    add_json(test)
    return out


def _apart(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _read(name: str) -> Policy:
    return parse(
        TEXT if name == DEFAULT else read_text(name),
        source="the default policy" if name == DEFAULT else name,
    )


def _check(name: str) -> None:
    policy = _read(name)
    rules = "1 rule" if len(policy.rules) == 1 else f"{len(policy.rules)} rules"
    dry_run = ", nothing of which is done (dry_run)" if policy.dry_run else ""
    print(f"{escaped(name)}: {rules}{dry_run}")
    for rule in policy.rules:
        dry = " (dry run)" if rule.dry_run and not policy.dry_run else ""
        print(f"  {escaped(rule.id)}: {rule.action.value}, otherwise {rule.otherwise.value}{dry}")
    if any(rule.action is Action.SHRINK for rule in policy.rules):
        print("note: shrink waits for a node with room and drains; if none comes the run stops")


def _test(args: argparse.Namespace) -> None:
    policy = _read(args.policy)
    incidents = [one for path in args.incidents for one in read_incidents(path)]
    timed = {one.at_s is None for one in incidents}
    if len(timed) > 1:
        raise UsageError(
            "some incidents have times, and some have none",
            hint="replay them apart, or give each an at_s",
        )
    decided = replay(incidents, policy=policy, apart_s=args.apart)
    facts = [_facts(one, at_s, said) for one, at_s, said in decided]
    if args.json:
        print(json_text({"policy": args.policy, "incidents": facts}))
        return
    for number, one in enumerate(facts, 1):
        _show(number, one)


def _facts(one: Recorded, at_s: float, said: ActionVerdict) -> dict[str, Any]:
    verdict = one.verdict
    about = {
        "incident": one.source,
        "at_s": round(at_s, 6),
        "class": verdict.failure_class.value,
        "confidence": round(verdict.confidence, 4),
    }
    return about | said.facts()


def _show(number: int, facts: Mapping[str, Any]) -> None:
    where = f", on {_listed(facts['blamed'])}" if facts["blamed"] else ""
    print(
        f"{number}. {escaped(facts['incident'])}, at {facts['at_s']:,.0f} s: {facts['class']},"
        f" confidence {facts['confidence']:.2f}{where}"
    )
    done = " ".join(part for part in (facts["action"], _listed(facts["nodes"])) if part)
    print(f"   {'would ' if facts['dry_run'] and facts['action'] != 'retry' else ''}{done}")
    print(f"   because {escaped(facts['reason'])}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(escaped, names))
