"""The order of a diagnosis, from what was read to the verdict, as pure code.

    1. incidents   evidence of an older attempt of the same job is set aside (`attempts.py`), and
                   so are outputs of earlier submissions (`earlier_outputs.py`)
    2. graph       the dumps show which rank waits for which, and which one is to blame by that
                   alone
    3. clocks      times of ranks are put on one clock, as collectives show them apart
    4. foreign     remarks of people (`prose.py`), lines that are older than the job or about
                   processes that are not its own (`foreign_lines.py`), states that passed
                   (`passed.py`), and lines that a dump refutes (`contradictions.py`) lose weight
    5. ends        the ends of the logs show which rank is behind, and whether the job had hung when
                   it was ended (`log_ends.py`)
    6. verdict     everything that is left is weighed together (`fuse/decide.py`)

The files are read around it, by `runtime/evidence/reading.py`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from outlast.diagnose import clocks, log_ends, same_job
from outlast.diagnose.accounting import with_other_jobs_marked
from outlast.diagnose.attempts import split_attempts
from outlast.diagnose.collectives import Blame, Dump, clock_offsets, find_blame
from outlast.diagnose.contradictions import with_contradicted_marked
from outlast.diagnose.earlier_outputs import without_earlier_outputs
from outlast.diagnose.file_series import with_ranks_of_series
from outlast.diagnose.findings import Finding
from outlast.diagnose.foreign_lines import (
    with_strangers_marked,
    without_foreign_lines,
)
from outlast.diagnose.fuse import decide
from outlast.diagnose.fuse.accounts import OUTSIDE
from outlast.diagnose.fuse.verdict_context import scheduler_of
from outlast.diagnose.interrupted import Interrupted
from outlast.diagnose.logs.headings import with_single_nodes
from outlast.diagnose.logs.went_on import with_handled_marked
from outlast.diagnose.passed import with_passed_marked
from outlast.diagnose.processes import with_ranks_of_processes
from outlast.diagnose.prose import with_remarks_marked
from outlast.diagnose.recovered import (
    has_recovered,
    with_earlier_attempts_marked,
    with_recovery,
)
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.together import with_shared_waits
from outlast.diagnose.task_labels import (
    with_global_ranks,
    with_ranks_of_tasks,
    without_local_ranks_of_spawn,
    without_node_labels,
)
from outlast.model.terms import Mechanism
from outlast.model.verdict import Evidence, Verdict

FRESH_S = 2.0  # a job that hangs is looked at later than that
CLOCKS_S = 0.5  # a file's time is that of the last tick


@dataclass(frozen=True, slots=True)
class Material:
    """The evidence of one incident, as it was read.

    ends         how far each writer had come, by the last lines of the logs
    had_dumps    files were there that are dumps, whether they could be read or not
    unreadable   names of dumps that could not be read, and why
    notes        what was noticed while reading, in sentences
    written_s    when each file was last written, Unix seconds, where the file system says so
    """

    findings: Sequence[Finding]
    samples: Sequence[same_job.Sample] = ()
    dumps: Sequence[Dump] = ()
    ends: Sequence[log_ends.LogEnd] = ()
    had_dumps: bool = False
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    written_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict; `blame` is None where there were no dumps. `notes` are sentences for people."""

    verdict: Verdict
    blame: Blame | None
    notes: tuple[str, ...]


def conclude(material: Material) -> Conclusion:
    """Decide from all that was read. The same material gives the same verdict."""
    notes: list[str] = []
    own, samples, submitted = without_earlier_outputs(material.findings, material.samples)
    notes += [submitted] if submitted else []
    kept = {sample.name for sample in samples}
    ends = [one for one in material.ends if one.name in kept]
    material = replace(material, samples=samples, ends=ends if submitted else material.ends)
    words = {sample.name: sample.words for sample in material.samples}
    own, remark = with_remarks_marked(list(with_single_nodes(own)), words)
    notes += [remark] if remark else []
    own = without_local_ranks_of_spawn(own, same_job.world_size(material.samples))
    own = with_ranks_of_tasks(
        with_global_ranks(without_node_labels(own)),
        has_launcher=any(sample.has_launcher for sample in material.samples),
    )
    own = with_ranks_of_series(
        own,
        [sample.name for sample in material.samples],
        same_job.world_size(material.samples),
    )
    own = with_ranks_of_processes(own)
    own = with_recovery(own, {end.name for end in material.ends if end.is_finished})
    own, again = with_earlier_attempts_marked(own)
    notes += [again] if again else []
    own, handled = with_handled_marked(own, recovered=has_recovered(own))
    notes += [handled] if handled else []
    split = split_attempts(own, material.dumps, material.written_s)
    notes += split.notes
    blame = (
        find_blame(
            split.dumps,
            unreadable=material.unreadable,
            world_size=same_job.world_size(material.samples),
        )
        if material.had_dumps and (split.dumps or material.unreadable or not material.dumps)
        else None
    )
    findings, blame = _on_one_clock(with_shared_waits(split.findings), split.dumps, blame, notes)
    findings, older = without_foreign_lines(findings, material.samples, material.written_s)
    notes += [older] if older else []
    findings, other_jobs = with_other_jobs_marked(findings, material.samples)
    notes += [other_jobs] if other_jobs else []
    findings, strangers = with_strangers_marked(
        findings,
        material.samples,
        last_signs_s=_last_signs_s(split.dumps),
        written_s=material.written_s,
    )
    notes += [strangers] if strangers else []
    findings, passed = with_passed_marked(findings, material.ends)
    notes += [passed] if passed else []
    findings, contradicted = with_contradicted_marked(findings, blame, split.dumps)
    notes += [contradicted] if contradicted else []
    findings = log_ends.with_ends(findings, material.ends)
    if _recorded_until_now(split.dumps, material.written_s, findings):
        findings = [*findings, _moves(split.dumps[0].name)]
    odd = (*same_job.notes_of(material.samples), *notes, *material.notes)
    slurm = [job for one in material.samples for job in one.identities.get("Slurm job", ())]
    scheduler = scheduler_of(findings, slurm)
    return Conclusion(decide(findings, blame=blame, notes=odd, scheduler=scheduler), blame, odd)


def _recorded_until_now(
    dumps: Sequence[Dump], written_s: Mapping[str, float], findings: Sequence[Finding]
) -> bool:
    """Return True if each rank called a collective just before its dump was written.

    Then the ranks ran, wherever one of them was. Of a job that has ended by itself nothing follows,
    because it may have ended in that moment; nor of files that were copied, which have other times.
    Nor of a run whose own record says that it hung: outlast takes stacks and dumps once a deadline
    has passed, and some are shorter than FRESH_S.
    """
    if any(isinstance(one, Interrupted) and one.mechanism is Mechanism.HANG for one in findings):
        return False
    has_ended = any(one.rule.startswith(("elastic.", "exit.")) for one in findings)
    from_outside = any(one.rule == OUTSIDE for one in findings)
    if len(dumps) < 2 or (has_ended and not from_outside):
        return False
    ages_s = [written_s.get(one.name, 0.0) - one.newest_ns / 1e9 for one in dumps]
    return all(-CLOCKS_S <= age_s <= FRESH_S for age_s in ages_s)


def _moves(name: str) -> Finding:
    rule = RULES["standing.moves"]
    said = "each rank called a collective just before its dump was written"
    return Finding(Evidence(name, None, said, rule.role), rule.name)


def _last_signs_s(dumps: Sequence[Dump]) -> list[float]:
    """Return when each rank last called a collective; empty if some rank's dump does not tell."""
    if any(not dump.newest_ns for dump in dumps):
        return []
    return [dump.newest_ns / 1e9 for dump in dumps]


def _on_one_clock(
    findings: Sequence[Finding], dumps: Sequence[Dump], blame: Blame | None, notes: list[str]
) -> tuple[Sequence[Finding], Blame | None]:
    # Without times besides those of the dumps there is nothing to put on their clock.
    if blame is None or all(one.at_s is None for one in findings):
        return findings, blame
    offsets = clock_offsets(dumps)
    if note := clocks.note_of(offsets):
        notes.append(note)
    right = clocks.on_one_clock(findings, offsets)
    return right, replace(
        blame, findings=tuple(clocks.on_one_clock(blame.findings, offsets, about=findings))
    )
