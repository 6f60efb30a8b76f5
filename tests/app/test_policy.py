"""`outlast policy`: what it prints, for people and for programs; and the page about it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from outlast.engine.default_policy import TEXT, default_policy
from outlast.model.policy import Action, parse
from outlast.model.records import Event
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger
from tests.app.command import outlast
from tests.ledger.a_run import META, fill

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-policy.md"
GPU: dict[str, Any] = {
    "class": "gpu",
    "mechanism": "signal",
    "confidence": 0.6,
    "ranks": [{"rank": 3, "confidence": 0.9}],
    "nodes": ["gpu-07"],
    "evidence": [],
}


def write(path: Path, *verdicts: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, verdicts)))
    return str(path)


def replayed(cwd: Path, *incidents: str, policy: str = "default") -> list[dict[str, Any]]:
    done = outlast("policy", "test", policy, *incidents, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["policy"] == policy
    return facts["incidents"]


def test_what_is_shown_is_what_is_in_force(tmp_path: Path) -> None:
    done = outlast("policy", "show", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, TEXT)
    assert parse(done.stdout, source="shown") == default_policy()


def test_a_policy_that_can_be_read_is_said_rule_by_rule(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'schema = 1\n[[rule]]\nid = "it"\naction = "shrink"\notherwise = "exclude"\ndry_run ='
        " true\n"
    )
    done = outlast("policy", "check", "mine.toml", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "mine.toml: 1 rule",
        "  it: shrink, otherwise exclude (dry run)",
        "note: shrink waits for a node with room and drains; if none comes the run stops",
    ]


def test_incidents_are_replayed_one_after_the_other(tmp_path: Path) -> None:
    write(tmp_path / "both.jsonl", GPU, GPU | {"confidence": 0.7})
    done = outlast("policy", "test", "default", "both.jsonl", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "1. both.jsonl, line 1, at 0 s: gpu, confidence 0.60, on gpu-07",
        "   page",
        (
            "   because rule broken-node would drain: confidence 0.60 is below 0.8, and there were"
            " fewer than 2 such incidents on one node; rule broken-node: page"
        ),
        "2. both.jsonl, line 2, at 3,600 s: gpu, confidence 0.70, on gpu-07",
        "   drain gpu-07",
        "   because rule broken-node: drain gpu-07 (confidence 0.70, incident 2 there)",
    ]


def test_programs_get_the_same(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.json", GPU) for number in range(2)]
    first, second = replayed(tmp_path, *files)
    assert (first["action"], first["held"], first["wanted"], first["rule"]) == (
        "page",
        "confidence",
        "drain",
        "broken-node",
    )
    assert (second["action"], second["nodes"], second["at_s"], second["dry_run"]) == (
        "drain",
        ["gpu-07"],
        3600.0,
        False,
    )
    assert replayed(tmp_path, *files) == [first, second]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    write(tmp_path / "incidents" / "b.json", GPU | {"nodes": ["second"]})
    write(tmp_path / "incidents" / "a.json", GPU | {"nodes": ["first"]})
    (tmp_path / "incidents" / "notes.txt").write_text("not read")
    assert [one["blamed"] for one in replayed(tmp_path, "incidents")] == [["first"], ["second"]]


def test_without_a_node_the_rank_has_one_of_its_own(tmp_path: Path) -> None:
    [one] = replayed(
        tmp_path,
        write(
            tmp_path / "one.json",
            {"class": "gpu", "confidence": 0.9, "ranks": [{"rank": 3, "confidence": 0.9}]},
        ),
    )
    assert one["nodes"] == ["the node of rank 3"]


def test_a_runs_ledger_holds_its_verdicts_at_their_times(tmp_path: Path) -> None:
    """The second interruption was over with the first: their verdicts are of one outage, and do not
    count twice.
    """
    folder = RunFolder.create(tmp_path / META.name, name=META.name, version="0.1.0", options={})
    ledger = Ledger.create(folder.ledger, META, pid=os.getpid())
    fill(ledger)
    for at_s, interruption in ((111.0, 1), (112.0, 2), (117.0, 3)):
        ledger.add(
            Event(
                at_s, META.started_wall_s, "verdict", {"interruption": interruption, "verdict": GPU}
            )
        )
    ledger.end_session(ended_s=120.0, state="ended", exit_code=0, reason="")
    ledger.close()
    folder.close()
    for place in (META.name, f"{META.name}/ledger.db"):
        said = replayed(tmp_path, place)
        assert [(one["at_s"], one["action"]) for one in said] == [
            (11.0, "page"),
            (12.0, "page"),
            (17.0, "drain"),
        ]


def test_a_dry_run_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "dry.toml").write_text('schema = 1\ndry_run = true\n[[rule]]\naction = "stop"\n')
    write(tmp_path / "one.json", GPU)
    done = outlast("policy", "test", "dry.toml", "one.json", cwd=tmp_path)
    assert "   would stop\n   because rule 1: stop (dry run)\n" in done.stdout


def test_names_that_a_terminal_would_obey_are_made_visible(tmp_path: Path) -> None:
    write(tmp_path / "one.json", GPU | {"nodes": ["\x1b[31mred"], "confidence": 0.9})
    done = outlast("policy", "test", "default", "one.json", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert "drain \\x1b[31mred" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["policy"], "the following arguments are required: ACTION", "--help"),
        (["policy", "tset"], "invalid choice: 'tset'", ""),
        (
            ["policy", "check", "none.toml"],
            "none.toml cannot be read: No such file or directory",
            "",
        ),
        (
            ["policy", "check", "wrong.toml"],
            "wrong.toml, rule broken: there is no key 'acton'",
            "did you mean 'action'?",
        ),
        (
            ["policy", "test", "default", "empty"],
            "empty holds no incidents",
            "a verdict is what `outlast diagnose --json` prints",
        ),
        (
            ["policy", "test", "default", "wrong.toml"],
            "wrong.toml, line 1 is not JSON",
            "the output of `outlast diagnose --json`",
        ),
        (
            ["policy", "test", "default", "times.jsonl"],
            "some incidents have times, and some have none",
            "give each an at_s",
        ),
        (
            ["policy", "test", "default", "one.json", "--apart", "soon"],
            "'soon' is not a number of seconds",
            "",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_of_usage(
    tmp_path: Path, arguments: list[str], error: str, hint: str
) -> None:
    (tmp_path / "wrong.toml").write_text('schema = 1\n[[rule]]\nid = "broken"\nacton = "page"\n')
    (tmp_path / "empty").mkdir()
    write(tmp_path / "one.json", GPU)
    write(tmp_path / "times.jsonl", GPU, {"at_s": 3, "verdict": GPU})
    done = outlast(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert hint in done.stderr


# --- the page -------------------------------------------------------------------------------------


def test_the_policies_on_the_page_can_be_read() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    assert all(parse(block, source="docs/how-to/write-a-policy.md").rules for block in blocks)


def test_the_page_says_what_each_action_does_and_each_rule_of_the_default() -> None:
    page = PAGE.read_text()
    assert [action for action in Action if f"| `{action.value}` |" not in page] == []
    assert [rule.id for rule in default_policy().rules if f"`{rule.id}`" not in page] == []
