"""`outlast check`: find the parts of a training script that outlast refuses or cannot keep.

The command reads the script. Then it runs the script for a few steps undisturbed, and once more
while ranks are killed and replaced. It compares the two runs bit by bit. With `--static` it only
reads the script.

Exit codes:

0   nothing has to be changed
1   something has to be changed
2   wrong usage
3   undetermined: nothing was found, but something could not be compared
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from outlast.app.checks.check_files import ScriptFiles, script_files
from outlast.app.checks.check_trial import Findings, TrialOptions, try_script
from outlast.app.command_line import Parser, add_json, finite, split_at_dashes, whole
from outlast.diagnose.scripts.script_calls import Remark
from outlast.diagnose.scripts.script_text import ScriptText, read_script
from outlast.errors import UsageError
from outlast.model.limits import TRIAL_LIMIT_S, TRIAL_STEPS, TRIAL_STEPS_LEAST
from outlast.model.texts import escaped

UNDETERMINED = 3
_NOT_RUN = "what a failure costs: the script was not run, because each rank would start ranks again"


def main(argv: Sequence[str]) -> int:
    own, given = split_at_dashes(argv)  # the words after them belong to the script
    args = parser().parse_args(own)
    files = script_files(args.script, as_module=args.module)
    text = _read(files)
    found = None if args.static else _try(args, files, given, text)
    read = text.remarks
    if found and found.trained:
        found, read = _without_unused(found, read)
    remarks = _merged(read, found.remarks if found else ())
    if args.json:
        print(json.dumps(_facts(files.path, text, remarks, found), indent=2))
    else:
        _show(escaped(os.path.relpath(files.path)), text, remarks, found)
    if remarks:
        return 1
    return UNDETERMINED if found and found.undetermined else 0


def parser() -> Parser:
    out = Parser(
        prog="outlast check",
        usage="outlast check [options] SCRIPT [options] [-- arguments of the script]",
        description=(
            "Find out what outlast would refuse in a training script, and which state it could not"
            " keep. The script is run for a few steps in the current folder, twice or three times,"
            " and ranks are killed. Files that it writes by Python or torch.save are put back."
        ),
    )
    out.add_argument("script", metavar="SCRIPT", help="the training script")
    out.add_argument(
        "-m", "--module", action="store_true", help="SCRIPT is a module, as in `python -m SCRIPT`"
    )
    out.add_argument("--static", action="store_true", help="only read the script; run nothing")
    out.add_argument(
        "--nproc-per-node", type=whole, default=2, metavar="N", help="number of ranks (default: 2)"
    )
    out.add_argument(
        "--steps",
        type=whole,
        default=TRIAL_STEPS,
        metavar="K",
        help=f"end the script after step K (default: {TRIAL_STEPS})",
    )
    out.add_argument(
        "--time-limit",
        type=finite,
        default=TRIAL_LIMIT_S,
        metavar="SECONDS",
        help=f"stop all runs after this time (default: {TRIAL_LIMIT_S:g})",
    )
    add_json(out)
    return out


def _try(args: Any, files: ScriptFiles, given: list[str], text: ScriptText) -> Findings:
    options = TrialOptions(
        script=os.path.abspath(files.path),
        module=files.module,
        home=os.path.realpath(files.root),
        arguments=tuple(given),
        workers=args.nproc_per_node,
        steps=args.steps,
        limit_s=args.time_limit,
    )
    if options.workers < 2:
        raise UsageError(
            f"--nproc-per-node {options.workers}: a rank is replaced with the help of another",
            hint="give 2 or more, or --static to only read the script",
        )
    if options.steps < TRIAL_STEPS_LEAST:
        raise UsageError(
            f"--steps {options.steps}: ranks are killed in steps 4 and 6",
            hint=f"give {TRIAL_STEPS_LEAST} or more",
        )
    if options.limit_s <= 0:
        raise UsageError(f"--time-limit {options.limit_s:g}: no time", hint="give seconds")
    if text.starts_ranks:
        return Findings(undetermined=(_NOT_RUN,))
    print(
        f"outlast check: runs {escaped(args.script)} up to step {options.steps} in"
        f" {escaped(os.getcwd())}, with {options.workers} processes, at least twice. Files that it"
        " writes are put back.",
        file=sys.stderr,
    )
    return try_script(options, text)


def _read(files: ScriptFiles) -> ScriptText:
    try:
        return read_script(files.source, files.others)
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(
            f"{files.path}:{error.lineno}: this is not Python {version}: {error.msg}",
            hint="give the training script itself, and a Python that can run it",
        ) from None
    except ValueError as error:
        raise UsageError(
            f"{files.path} cannot be read as Python: {error}",
            hint="give the training script itself",
        ) from None


def _without_unused(found: Findings, read: Sequence[Remark]) -> tuple[Findings, tuple[Remark, ...]]:
    """Turn remarks on what the trial did not use into notes.

    outlast refuses these things where they are used, and the script has trained to its end.
    """
    notes = [
        f"Not used with these arguments: line {one.line}, {one.what}."
        for one in read
        if not one.used
    ]
    kept = tuple(one for one in read if one.used)
    return dataclasses.replace(found, seen=(*found.seen, *notes)), kept


def _merged(read: Sequence[Remark], tried: Sequence[Remark]) -> list[Remark]:
    """Return all remarks by their lines. Those of the trial on a variable or a line count more."""
    names = {one.about for one in tried if one.about}
    lines = {one.line for one in tried if not one.about and not one.file}
    kept = [one for one in read if one.about not in names and one.line not in lines]
    return sorted([*kept, *tried], key=lambda one: (one.file, one.line))


def _facts(
    script: str, text: ScriptText, remarks: Sequence[Remark], found: Findings | None
) -> dict[str, object]:
    facts: dict[str, object] = {
        "script": script,
        "calls_outlast": text.calls_outlast,
        "after_failure": text.after_failure,
        "remarks": [dataclasses.asdict(one) for one in remarks],
        "adoption": [dataclasses.asdict(one) for one in text.adoption],
    }
    if found is not None:
        facts["trial"] = {
            "seen": list(found.seen),
            "undetermined": list(found.undetermined),
            "files_put_back": list(found.touched),
        }
    return facts


def _show(path: str, text: ScriptText, remarks: Sequence[Remark], found: Findings | None) -> None:
    how = "calls outlast" if text.calls_outlast else "makes no outlast call"
    if remarks or text.after_failure:
        print(f"{path} {how}. {text.after_failure}".rstrip())
    else:
        print(f"{path} {how}: nothing to change was found.")
    for one in remarks:
        print("\n".join(["", *_lines(path, one)]))
    if text.adoption:
        print("\nTo lose no step, adopt outlast:")
        for one in text.adoption:
            print("\n".join(_lines(path, one)))
    if found is not None:
        _show_trial(found)


def _show_trial(found: Findings) -> None:
    print()
    for one in found.undetermined:
        print(f"Not determined: {escaped(one, lines=True)}")
    for one in found.seen:
        print(escaped(one))
    if found.touched:
        print(f"Files that the script wrote and that are as before again: {len(found.touched)}")
        for path in found.touched[:10]:
            print(f"    {escaped(path)}")


def _lines(path: str, one: Remark) -> list[str]:
    place = escaped(os.path.relpath(one.file)) if one.file else path
    return [f"{place}:{one.line}: {escaped(one.what)}", f"    {escaped(one.do)}"]
