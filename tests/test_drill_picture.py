"""The picture of a drill: it says what the score says, and README's is that of the kept drill."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drill_picture import POINTS, kept, picture

HOME = Path(__file__).parents[1]
KEPT, PICTURE = HOME / "benchmarks/results/llama3_drill.json", HOME / "docs/llama3-drill.svg"
SCORE: dict[str, Any] = {
    "plan": "llama3-day",
    "seed": 7,
    "steps": 1000,
    "time_scale": 1440.0,
    "faults_fired": 2,
    "survived": 2,
    "steps_lost": 0,
    "digest_equal": True,
    "ettr_training": 0.9591,
    "mttr_s": {"median": 0.361, "p95": 1.7, "max": 1.7},
    "lost_s_by_class": {"gpu": 1.25, "software_bug": 0.5, "<network>": 0.0},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a drill: steps of 0.1 s, and a pause of 5 s after step 500 under fire."""
    (tmp_path / "score.json").write_text(json.dumps(SCORE))
    for name, pause_s in (("under-fire", 5.0), ("undisturbed", 0.0)):
        lines = [{"at_s": 100.0, "step": 0}]
        lines += [
            {"at_s": 110.0 + 0.1 * step + pause_s * (step > 500), "step": step}
            for step in range(1, 1001)
        ]
        text = "\n".join(map(json.dumps, lines)) + "\n"
        (tmp_path / f"{name}.steps.jsonl").write_text(text)
    faults = [
        {"at_s": 160.0, "kind": "kill", "rank": 1, "pid": 7},
        {"at_s": 180.0, "kind": "lose_store", "rank": -1, "pid": 8},
    ]
    (tmp_path / "under-fire.jsonl").write_text("\n".join(map(json.dumps, faults)) + "\n")
    return tmp_path


def test_what_is_kept_is_small_and_shows_each_pause(folder: Path) -> None:
    drill = kept(folder)
    assert drill["faults"][0] == {"at_s": 49.7, "kind": "kill", "rank": 1}
    fire = drill["under_fire"]
    assert fire[0] == (0.0, 3)
    assert fire[-1] == (104.7, 1000)
    assert len(fire) <= POINTS + 10
    assert (49.7, 500) in fire, "it stood still from here"
    assert (54.8, 501) in fire, "to here"
    assert kept(folder)["undisturbed"][-1] == (99.7, 1000)


def test_the_picture_says_what_the_score_says(folder: Path) -> None:
    """It is one file that loads nothing, and has colours for a dark page."""
    drawn = picture(json.loads(json.dumps(kept(folder))))
    root = ET.fromstring(drawn)
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in (
        "A day of Llama 3's failures in a minute",
        "2 of 2",
        "0",
        "0.36 s",
        "95.9 %",
        "state at the end: equal, bit for bit",
        "lose store",
        "software bug",
        "outlast drill llama3-day --seed 7 --time-scale 1440, 1,000 steps",
    ):
        assert text in texts, text
    assert "prefers-color-scheme: dark" in drawn
    assert "script" not in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    assert root.attrib["aria-label"].startswith("2 of 2 faults survived")


def test_a_drill_of_which_little_is_known_is_drawn_too(folder: Path) -> None:
    drill = kept(folder)
    unknown = {"steps_lost": None, "ettr_training": None, "digest_equal": None}
    drill["score"] |= unknown | {"plan": "ours", "lost_s_by_class": {}}
    drill["score"]["mttr_s"] = dict.fromkeys(("median", "p95", "max"))
    ET.fromstring(picture(drill))
    assert "The drill ours" in picture(drill)


@pytest.mark.skipif(not KEPT.exists(), reason="no drill is kept")
def test_the_picture_of_the_readme_is_that_of_the_kept_drill() -> None:
    """Draw it again after a new drill: the head of benchmarks/drill_picture.py says how."""
    drill = json.loads(KEPT.read_text())
    assert PICTURE.read_text() == picture(drill)
    readme = (HOME / "README.md").read_text()
    assert "docs/llama3-drill.svg" in readme
    score = drill["score"]
    assert f"{score['survived']} of {score['faults_fired']} faults" in readme
