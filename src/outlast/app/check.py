"""`outlast check`: read a training script and say, before it runs, what outlast would refuse, what
it could not keep, and what a failure costs.

Exit codes   0 nothing to change, 1 there is something to change, 2 wrong usage.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from outlast.app.command_line import Parser
from outlast.diagnose.script_text import Remark, ScriptText, read_script
from outlast.errors import UsageError
from outlast.model.texts import escaped
from outlast.runtime.given import read_text


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    text = _read(args.script)
    if args.json:
        facts = {
            "script": args.script,
            "calls_outlast": text.calls_outlast,
            "after_failure": text.after_failure,
            "remarks": [dataclasses.asdict(one) for one in text.remarks],
            "adoption": [dataclasses.asdict(one) for one in text.adoption],
        }
        print(json.dumps(facts, indent=2))
    else:
        _show(escaped(args.script), text)
    return int(bool(text.remarks))


def parser() -> Parser:
    out = Parser(
        prog="outlast check",
        description=(
            "Read a training script and say what outlast would refuse or could not keep. The script"
            " is not run, and what it does in other files is not seen."
        ),
    )
    out.add_argument("script", metavar="SCRIPT", help="the training script")
    out.add_argument("--json", action="store_true", help="print JSON, for programs")
    return out


def _read(path: str) -> ScriptText:
    try:
        return read_script(read_text(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read as Python: {error}", hint="give the training script itself"
        ) from None


def _show(path: str, text: ScriptText) -> None:
    how = "calls outlast" if text.calls_outlast else "makes no outlast call"
    if not text.remarks and not text.after_failure:
        print(f"{path} {how}: nothing to change was found.")
        return
    print(f"{path} {how}. {text.after_failure}".rstrip())
    for one in text.remarks:
        print("\n".join(["", *_lines(path, one)]))
    if text.adoption:
        print("\nTo lose no step, adopt outlast:")
        for one in text.adoption:
            print("\n".join(_lines(path, one)))


def _lines(path: str, one: Remark) -> list[str]:
    return [f"{path}:{one.line}: {escaped(one.what)}", f"    {escaped(one.do)}"]
