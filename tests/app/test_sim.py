"""`outlast sim`: what it says, for people and for programs, and how it ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from outlast.app import sim
from outlast.engine.coordinator import decisions
from outlast.engine.restore import RestoreVerdict
from outlast.errors import UsageError
from outlast.sim.simulated_run import simulate_seed
from tests.app.command import outlast

PLAN = (
    'schema = 1\n[[fault]]\nid = "mine"\nkind = "kill"\ntarget = { rank = 1 }\nwhen = { on_mark ='
    ' "voting", nth = 2 }\n'
)
KEYS = {
    "seed",
    "options",
    "result",
    "violations",
    "faults",
    "marks",
    "events",
    "sim_s",
    "wall_s",
    "trace_digest",
}


def test_a_life_is_said_with_what_was_drawn_and_what_struck(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    done = outlast(
        "sim",
        "--seed",
        "5",
        "--recovery-mode",
        "in_place",
        "--ranks",
        "3",
        "--faults",
        "plan.toml",
        "--for-s",
        "0",
        "--trace",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "seed 5: way in_place, ranks 3" in done.stdout
    assert "fault mine kill       rank 1    on_mark voting, nth 2        fired" in done.stdout
    assert "FAULT mine: kill strikes worker" in done.stdout
    assert "\nok   trace " in done.stdout


def test_the_json_has_the_fields_of_the_contract_and_is_the_same_twice(tmp_path: Path) -> None:
    first, second = (
        json.loads(outlast("sim", "--seed", "5", "--json", cwd=tmp_path).stdout) for _ in range(2)
    )
    assert set(first) >= KEYS
    assert first | {"wall_s": 0} == second | {"wall_s": 0}


def test_a_swarm_is_one_summary(tmp_path: Path) -> None:
    done = outlast("sim", "--seeds", "40", "--first", "100", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["seeds"], facts["result"], facts["bad"]) == (0, 40, "ok", [])
    assert outlast("sim", "--seeds", "0", cwd=tmp_path).returncode == 3, "nothing was looked at"


def test_a_swarm_ends_when_its_time_is_up(tmp_path: Path) -> None:
    done = outlast("sim", "--swarm", "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " count (a fault struck, a regroup ran, a step was committed after it); " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (
            ["sim"],
            "one of --seed, --seeds, --swarm, --shrink and --replay",
            "try `outlast sim --seed 1`",
        ),
        (
            ["sim", "--seed", "1", "--swarm", "3"],
            "one of --seed, --seeds, --swarm, --shrink and --replay",
            "try `outlast sim --seed 1`",
        ),
        (["sim", "--seed", "x"], "argument --seed: 'x' is not a whole number from 0", "--help"),
        (["sim", "--seed", "1", "--ranks", "0"], "ranks is 0", "from 1 to 100000"),
        (
            ["sim", "--seed", "1", "--faults", "none.toml"],
            "none.toml cannot be read: No such file or directory",
            "",
        ),
        (
            ["sim", "--seed", "1", "--ranks", "2", "--faults", "plan.toml"],
            "fault mine strikes rank 2, but there are 2",
            "ranks are 0 to 1",
        ),
    ],
)
def test_what_cannot_be_simulated_is_an_error_of_usage(
    tmp_path: Path, arguments: list[str], error: str, hint: str
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("rank = 1", "rank = 2"))
    done = outlast(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert hint in done.stderr


def test_a_broken_rule_is_said_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The protocol is broken on purpose: all ranks go back to a step older than all sealed."""
    decide = decisions.decide_sharded

    def older(**seen: Any) -> RestoreVerdict:
        verdict = decide(**seen)
        return RestoreVerdict(verdict.step - 1, {}, -1, (), "") if verdict.step else verdict

    monkeypatch.setattr(decisions, "decide_sharded", older)
    seed = next(
        seed
        for seed in range(100)
        if sim.main(["--seed", str(seed), "--recovery-mode", "sharded", "--json"]) == 1
    )
    capsys.readouterr()
    assert sim.main(["--seed", str(seed), "--recovery-mode", "sharded"]) == 1
    page = capsys.readouterr().out
    assert "broken at " in page
    replay = next(line for line in page.splitlines() if line.startswith("replay it: outlast sim "))
    assert sim.main(shlex.split(replay.removeprefix("replay it: outlast sim "))) == 1
    capsys.readouterr()
    assert sim.main(["--shrink", str(seed), "--recovery-mode", "sharded"]) == 1
    assert "where PLAN holds\n\nschema = 1\n" in capsys.readouterr().out


def test_the_command_that_replays_a_life_says_all_that_was_drawn() -> None:
    """Of the first seeds, among them larger runs, some that are asked to stop twice, and some that
    warn.
    """
    for seed in range(40):
        life = simulate_seed(seed=seed, given={})
        args = sim.parser().parse_args(shlex.split(sim.replay_command(life))[2:])
        given = {name: value for name in sim.DRAWN if (value := getattr(args, name)) is not None}
        assert simulate_seed(seed=seed, given=given).trace_digest == life.trace_digest, (
            f"seed {seed}"
        )


def test_what_is_given_is_not_drawn_with_something_else() -> None:
    """A second stop is drawn with the first, and warnings with the pace."""
    lives = [simulate_seed(seed=seed, given={"again_s": 7.5, "warns": True}) for seed in range(5)]
    assert {(life.options.again_s, life.options.warns) for life in lives} == {(7.5, True)}


def test_a_life_is_lived_again_from_its_json(tmp_path: Path) -> None:
    (tmp_path / "life.json").write_text(
        outlast("sim", "--seed", "7", "--json", cwd=tmp_path).stdout
    )
    again = outlast("sim", "--replay", "life.json", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    changed = json.loads((tmp_path / "life.json").read_text()) | {"trace_digest": "0"}
    (tmp_path / "life.json").write_text(json.dumps(changed))
    other = outlast("sim", "--replay", "life.json", cwd=tmp_path)
    assert other.returncode == 1
    assert "this run differs from the one in life.json" in other.stderr


def test_one_thing_at_a_time() -> None:
    with pytest.raises(UsageError, match="one of --seed"):
        sim.main(["--shrink", "1", "--seeds", "3"])
