"""Scripts that have a group, a mesh or a collective of their own, which belongs to one generation.

A process that replaces a killed rank runs the script from its beginning, and what the script makes
there needs all ranks. So the survivors cannot go on in place: they enter main's function again, or
all ranks start over. The groups are used in each step, and what they sum up is in the weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Drill, Outcome

pytestmark = pytest.mark.timeout(150)
SCRIPT = "needs.py"
STEPS = 12
NEEDS = ("collective", "new_group", "imported", "init_mesh", "run_mesh", "run_device_mesh", "lazy")
# with the same sums as that one
SUMS = {"imported": "new_group", "init_mesh": "new_group", "run_mesh": "new_group"}


def cases() -> list[object]:
    """Return each need in both ways. The orders of wrapping and of asking for the rank
    alternate.
    """
    found = list[tuple[str, ...]]()
    for number, need in enumerate(NEEDS):
        for way in ("main", "module"):
            for spare in ("", "hot"):
                for rank in ("first", "unread"):
                    wrap = "before" if (number + (rank == "first") + (spare == "")) % 2 else "after"
                    found.append((need, way, wrap, rank, spare))
    return [pytest.param(*case, id="-".join(filter(None, case))) for case in found]


def struck(folder: Path, *arguments: str, spare: str, at: str = "forward") -> Outcome:
    """Kill rank 2 in step 4. If there is a spare, step 3 ends once it is parked."""
    ready = folder / "ready"
    flags = ("--spares", 1, "--spare-kind", spare) if spare else ()
    hold = ("--hold", ready) if spare else ()
    given = (SCRIPT, "--steps", STEPS, *hold, *arguments)
    strikes = [{"at": at, "rank": 2, "step": 4, "do": "SIGKILL"}]
    with Drill(folder, *given, flags=flags, strikes=strikes) as drill:
        if spare:
            drill.until(lambda: drill.parked(spare), "a parked spare")
            ready.touch()
        outcome = drill.finish()
    assert drill.fired(kind="strike"), str(outcome)
    return outcome


def nothing_is_lost(outcome: Outcome, calm: Outcome, way: str, *, spare: str) -> None:
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == calm.digests, str(outcome)
    assert len(outcome.interruptions) == 1, str(outcome)
    assert outcome.interruptions[0]["steps_lost"] == 0, str(outcome)
    outcome.ledger_is_sound()
    reason = outcome.interruptions[0]["reason"]
    processes = {pid for _, _, pid in outcome.commits}
    if way == "main":
        assert "survivors enter main's function again" in reason, str(outcome)
        assert ("taken by spares" in reason) == bool(spare), str(outcome)
        assert len(processes) == 5, str(outcome)
    else:
        assert "all ranks restart" in reason, str(outcome)
        assert len(processes) == 8, str(outcome)
        assert f"{SCRIPT}:" in outcome.stderr, str(outcome)  # the warning names the line


@pytest.mark.drill
@pytest.mark.parametrize(("need", "way", "wrap", "rank", "spare"), cases())
def test_a_script_with_a_group_of_its_own_survives_a_kill(
    tmp_path: Path, calm_run: CalmRun, need: str, way: str, wrap: str, rank: str, spare: str
) -> None:
    outcome = struck(
        tmp_path, "--need", need, "--way", way, "--wrap", wrap, "--rank", rank, spare=spare
    )
    calm = calm_run(SCRIPT, "--steps", STEPS, "--need", SUMS.get(need, need))
    nothing_is_lost(outcome, calm, way, spare=spare)


@pytest.mark.drill
@pytest.mark.parametrize("spare", ["", "hot", "warm"])
@pytest.mark.parametrize("way", ["main", "module"])
@pytest.mark.parametrize("need", ["run_mesh", "behind"])
def test_a_group_made_behind_a_step_is_not_carried_on(
    tmp_path: Path, calm_run: CalmRun, need: str, way: str, spare: str
) -> None:
    """Method: the same with warm spares, and with a group that is made after the block of
    step 2.
    """
    outcome = struck(
        tmp_path, "--need", need, "--way", way, "--rank", "unread", spare=spare, at="tail"
    )
    nothing_is_lost(outcome, calm_run(SCRIPT, "--steps", STEPS, "--need", need), way, spare=spare)


@pytest.mark.drill
@pytest.mark.parametrize("spare", ["", "hot"])
@pytest.mark.parametrize("way", ["main", "module"])
def test_a_replaced_rank_is_told_its_rank_by_torch_before_the_steps(
    tmp_path: Path, calm_run: CalmRun, way: str, spare: str
) -> None:
    """A script that only asks torch for its rank goes on in place, although the replacement has no
    peers at that place yet.
    """
    outcome = struck(tmp_path, "--need", "none", "--way", way, "--rank", "torch", spare=spare)
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == calm_run(SCRIPT, "--steps", STEPS, "--need", "none").digests, str(
        outcome
    )
    assert len(outcome.interruptions) == 1, str(outcome)
    assert "survivors go on in place" in outcome.interruptions[0]["reason"], str(outcome)
    assert len({pid for _, _, pid in outcome.commits}) == 5, str(outcome)
    outcome.ledger_is_sound()
