"""`outlast ckpt`: list and verify checkpoints, remove old ones, and export weights.

    outlast ckpt ls RUN                    what is there, and in which state
    outlast ckpt verify RUN                read every byte
    outlast ckpt plan-restore RUN          which one a restore takes, and how long that takes
    outlast ckpt prune RUN --keep-last 3   remove older ones
    outlast ckpt diff A B                  which tensors differ, and how far
    outlast ckpt now [RUN]                 let a run that is training write one now
    outlast ckpt export RUN FILE           the weights of a module in one file

RUN is the folder of a run or its name under runs/, a folder of checkpoints, or one checkpoint. The
first four also take a URL: s3://BUCKET/PATH, gs://, az:// or file:///PATH.

Exit codes:

0   done, and nothing is wrong
1   a checkpoint is bad, or two checkpoints differ
2   wrong usage, or there is no checkpoint
3   `now` was asked for, and the checkpoint is not written yet
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outlast.app import control
from outlast.app.checkpoints import ckpt_text
from outlast.app.checkpoints.ckpt_parser import parser as parser
from outlast.app.json_text import json_text
from outlast.app.progress import progress_bar
from outlast.app.words import console_for
from outlast.errors import UsageError
from outlast.model.texts import count, escaped, size_words, some
from outlast.runtime import clock
from outlast.runtime.evidence.reading import ReadingProgress
from outlast.runtime.objects import url_places
from outlast.runtime.objects.url_places import Place
from outlast.runtime.tiers import catalogue
from outlast.runtime.tiers.catalogue import BAD, INCOMPLETE, CatalogueEntry
from outlast.runtime.tiers.tier import Seen


def main(argv: Sequence[str]) -> int:
    """Run `outlast ckpt` and return its exit code."""
    args = parser().parse_args(list(argv))
    command: Callable[[Any], int] = _COMMANDS[args.command]
    return command(args)


# --- what is there --------------------------------------------------------------------------------


def _ls(args: Any) -> int:
    place = url_places.find(args.run)
    entries = catalogue.look(place.tier, step=place.step)
    return _show(args, place, entries)


def _verify(args: Any) -> int:
    place = url_places.find(args.run, step=args.step)
    total = catalogue.bytes_of(place.tier, step=place.step)
    with _reading(total) as seen:
        entries = list(catalogue.verify(place.tier, step=place.step, seen=seen))
    return _show(args, place, entries)


def _show(args: Any, place: Place, entries: Sequence[CatalogueEntry]) -> int:
    """Print checkpoints. Return 1 if one is bad, and 2 if there is none."""
    now_s = clock.wall_s()
    if args.json:
        facts = [ckpt_text.facts_of(one, place.tier, now_s=now_s) for one in entries]
        print(json_text({"place": place.tier.place, "checkpoints": facts}))
    elif entries:
        console = console_for(environment=os.environ)
        ckpt_text.print_table(console, place.tier, entries, now_s=now_s)
    else:
        raise _nothing(place)
    if any(one.state == BAD for one in entries):
        return 1
    return 0 if entries else UsageError.exit_code


def _plan_restore(args: Any) -> int:
    place = url_places.find(args.run)
    with _reading(catalogue.bytes_of(place.tier)) as seen:
        plan = catalogue.plan_restore(place.tier, seen=seen)
    if args.json:
        now_s = clock.wall_s()
        facts = {
            "place": place.tier.place,
            "restores": plan.entry and ckpt_text.facts_of(plan.entry, place.tier, now_s=now_s),
            "refused": [{"step": step, "reason": reason} for step, reason in plan.refused],
            "read_s": plan.read_s if plan.entry is not None else None,
        }
        print(json_text(facts))
    elif plan.entry is None and not plan.refused:
        raise _nothing(place)
    else:
        print(ckpt_text.plan_words(place.tier, plan))
    if plan.entry is not None:
        return 0
    return 1 if plan.refused else UsageError.exit_code


def _nothing(place: Place) -> UsageError:
    return UsageError(
        f"{place.tier.place} has no checkpoint",
        hint="`outlast run --checkpoint-every STEPS` writes them",
    )


# --- making room ----------------------------------------------------------------------------------


def _prune(args: Any) -> int:
    place = url_places.find(args.run)
    if place.step is not None:
        raise UsageError(
            f"{args.run} is one checkpoint", hint="name the run, or the folder of its checkpoints"
        )
    entries = catalogue.look(place.tier)
    newest = next((one.size_bytes or 0 for one in entries if one.state != INCOMPLETE), 0)
    with _reading(newest) as seen:
        gone = catalogue.prune(
            place.tier, keep=args.keep_last, every=args.keep_every, dry_run=args.dry_run, seen=seen
        )
    kept = [one.step for one in entries if one not in gone]
    if args.json:
        now_s = clock.wall_s()
        removed = [ckpt_text.facts_of(one, place.tier, now_s=now_s) for one in gone]
        facts = {"place": place.tier.place, "dry_run": args.dry_run, "removed": removed}
        print(json_text({**facts, "kept": kept}))
        return 0
    verb = "would be removed" if args.dry_run else "removed"
    for one in gone:
        size = "" if one.size_bytes is None else f", {size_words(one.size_bytes)}"
        print(f"step {one.step:,} {verb}{size}")
    print(f"{count(len(gone), 'checkpoint')} {verb}, {len(kept)} kept")
    return 0


def _now(args: Any) -> int:
    return control.ask(args, "checkpoint", run=args.run)


# --- contents -------------------------------------------------------------------------------------


def _export(args: Any) -> int:
    # torch takes a second to import, and `outlast ckpt --help` needs none
    from outlast.runtime.worker.saving import saved_weights

    found = saved_weights.read(Path(args.run), step=args.step)
    for reason in found.refused:
        print(f"warning: a newer checkpoint was passed over: {escaped(reason)}", file=sys.stderr)
    names = found.names()
    name = args.name or ("model" if "model" in names or len(names) != 1 else names[0])
    if not args.name and name not in names:
        raise UsageError(
            f"the checkpoint has weights of {some(names)}", hint="choose one by --name NAME"
        )
    file = Path(args.file)
    tensors = saved_weights.export(found, file, name=name, form=args.format)
    if args.json:
        facts = {"file": args.file, "tensors": tensors, "name": name, "step": found.step}
        print(json_text(facts))
        return 0
    print(f"{escaped(str(file))}: {count(tensors, 'tensor')} of {name}, step {found.step}")
    return 0


def _diff(args: Any) -> int:
    from outlast.runtime.worker.saving import weights_diff

    a = weights_diff.read_any(args.a, step=args.step)
    b = weights_diff.read_any(args.b, step=args.step_b)
    found, compared = weights_diff.compare(a, b)
    if args.json:
        sides = {"a": {"where": a.where, "step": a.step}, "b": {"where": b.where, "step": b.step}}
        facts = {"compared": compared, "differences": [asdict(one) for one in found]}
        print(json_text({**sides, "same": not found, **facts}))
    else:
        print(ckpt_text.diff_words(found, most=args.most, compared=compared))
    return 1 if found else 0


_COMMANDS: dict[str, Callable[[Any], int]] = {
    "ls": _ls,
    "verify": _verify,
    "plan-restore": _plan_restore,
    "prune": _prune,
    "now": _now,
    "diff": _diff,
    "export": _export,
}


@contextlib.contextmanager
def _reading(total_bytes: int) -> Iterator[Seen]:
    """Yield a function to call with each number of bytes read. It shows a bar if there are many."""
    done = 0
    with progress_bar() as show:

        def seen(more: int) -> None:
            nonlocal done
            done += more
            show(ReadingProgress("checkpoints", min(done, total_bytes), total_bytes))

        yield seen
