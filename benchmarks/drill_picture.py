"""Draw a drill as a picture, from the folder that it has left.

    outlast drill llama3-day --seed 1 --run-dir day -- examples/train_gpt.py --steps 800
    python -m benchmarks.drill_picture day --keep benchmarks/results/llama3_drill.json
    python -m benchmarks.drill_picture benchmarks/results/llama3_drill.json \
        --out docs/llama3-drill.svg

The first command of this program keeps what a picture needs in one small file: the score, when each
fault struck, and some points of the steps of both runs. The second one draws it. So the picture in
README.md is up to date once the file is that of a new drill.

Its colours are those of the reader's page, light or dark. It has no script and loads nothing.
"""

from __future__ import annotations

import argparse
import html
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Point = tuple[float, int]
POINTS = 240  # of a line of steps
FIRST_STEPS = 3  # seconds count from this step, as in a plan
LABELS_MOST = 14  # faults whose kinds are written above them
WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 560, 118, 348  # of the steps over time
BARS_LEFT, BARS_RIGHT = 720, 840
ROWS_MOST = 9
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 }
.figure { font-size: 20px; font-weight: 600 }
.quiet { fill: #57606a; font-size: 12px }
.axis { stroke: #d0d7de }
.calm { fill: none; stroke: #8c959f; stroke-width: 1.5; stroke-dasharray: 4 4 }
.fire { fill: none; stroke: #0a66c2; stroke-width: 2 }
.fault { stroke: #bc4c00 }
.bar { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.quiet { fill: #9198a1 }
.axis { stroke: #3d444d }
.calm { stroke: #9198a1 }
.fire { stroke: #58a6ff }
.fault { stroke: #f0883e }
.bar { fill: #f0883e }
}
"""
PLANS = {
    "llama3": "54 days of Llama 3's failures, 1,440 times as fast",
    "llama3-day": "A day of Llama 3's failures in a minute",
}


def kept(folder: Path) -> dict[str, Any]:
    """Return what a picture needs of a drill, which is in its folder."""
    score = json.loads((folder / "score.json").read_text())
    fire, calm = (_steps(folder / f"{name}.steps.jsonl") for name in ("under-fire", "undisturbed"))
    began_s = _began_s(fire)
    faults = [json.loads(line) for line in (folder / "under-fire.jsonl").read_text().splitlines()]
    return {
        "score": score,
        "faults": [
            {"at_s": round(one["at_s"] - began_s, 2), "kind": one["kind"], "rank": one["rank"]}
            for one in faults
        ],
        "under_fire": _thinned(fire),
        "undisturbed": _thinned(calm),
    }


def _steps(path: Path) -> list[Point]:
    lines = map(json.loads, path.read_text().splitlines())
    return [(one["at_s"], one["step"]) for one in lines]


def _began_s(steps: Sequence[Point]) -> float:
    return next((at_s for at_s, step in steps if step >= FIRST_STEPS), steps[0][0])


def _thinned(steps: Sequence[Point]) -> list[Point]:
    """Return points from the third step on, in seconds since then. A pause keeps both its ends."""
    began_s = _began_s(steps)
    some = [(round(at_s - began_s, 2), step) for at_s, step in steps if at_s >= began_s]
    apart_s = some[-1][0] / POINTS
    out = some[:1]
    for before, one in itertools.pairwise(some):
        if one[0] - before[0] > apart_s and before != out[-1]:
            out.append(before)
        if one[0] - out[-1][0] >= apart_s or one is some[-1]:
            out.append(one)
    return out


# --- the picture ----------------------------------------------------------------------------------


def picture(drill: dict[str, Any]) -> str:
    """Return the picture as SVG."""
    score = drill["score"]
    title = PLANS.get(score["plan"], f"The drill {score['plan']}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{html.escape(_summary(score))}">',
        f"<style>{STYLE}</style>",
        _text(20, 28, title, "title"),
        *_figures(score),
        *_progress(drill),
        *_bars(score["lost_s_by_class"]),
        _text(20, HEIGHT - 8, _footer(score), "quiet"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(score: dict[str, Any]) -> str:
    return (
        f"{score['survived']} of {score['faults_fired']} faults survived,"
        f" {_number(score['steps_lost'])} committed steps lost, ETTR"
        f" {_share(score['ettr_training'])}."
    )


def _figures(score: dict[str, Any]) -> Iterator[str]:
    """Yield the four figures below the title."""
    median_s = score["mttr_s"]["median"]
    equal = {True: "equal, bit for bit", False: "DIFFERENT", None: "not compared"}
    figures = (
        (f"{score['survived']:,} of {score['faults_fired']:,}", "faults survived"),
        (_number(score["steps_lost"]), "committed steps lost"),
        ("-" if median_s is None else f"{median_s:.2f} s", "median to the next new step"),
        (_share(score["ettr_training"]), "of the training time kept (ETTR)"),
    )
    for number, (value, name) in enumerate(figures):
        yield _text(20 + 185 * number, 62, value, "figure")
        yield _text(20 + 185 * number, 79, name, "quiet")
    yield _text(WIDTH - 20, 28, f"state at the end: {equal[score['digest_equal']]}", "quiet", "end")


def _progress(drill: dict[str, Any]) -> Iterator[str]:
    """Yield the steps over time, of both runs, and the faults."""
    fire, calm = drill["under_fire"], drill["undisturbed"]
    to_s = max(fire[-1][0], calm[-1][0])
    most = max(fire[-1][1], calm[-1][1])

    def place(point: Point) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * point[0] / to_s
        return x, BOTTOM - (BOTTOM - TOP) * point[1] / most

    def line(points: Iterable[Point], name: str) -> str:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
        return f'<polyline class="{name}" points="{path}"/>'

    yield f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>'
    yield _text(LEFT - 8, TOP + 4, f"{most:,}", "quiet", "end")
    yield _text(LEFT - 8, BOTTOM, "0", "quiet", "end")
    yield _text(LEFT, BOTTOM + 18, "steps, from the third on", "quiet")
    yield _text(RIGHT, BOTTOM + 18, f"{to_s:.0f} s", "quiet", "end")
    for number, one in enumerate(drill["faults"]):
        x, _ = place((one["at_s"], 0))
        yield f'<path class="fault" d="M{x:.1f} {TOP}V{BOTTOM}" stroke-opacity="0.7"/>'
        if len(drill["faults"]) <= LABELS_MOST:
            y = TOP - 4 - 11 * (number % 2)
            yield _text(x, y, one["kind"].replace("_", " "), "quiet", "middle")
    yield line(calm, "calm")
    yield line(fire, "fire")
    x = LEFT + 12
    yield f'<path class="fire" d="M{x} {TOP + 14}h24"/>' + _text(x + 30, TOP + 18, "under fire")
    yield f'<path class="calm" d="M{x} {TOP + 32}h24"/>' + _text(x + 30, TOP + 36, "undisturbed")
    yield f'<path class="fault" d="M{x + 12} {TOP + 42}v14"/>' + _text(x + 30, TOP + 54, "a fault")


def _bars(lost_s: dict[str, float]) -> Iterator[str]:
    """Yield how long the run would have trained instead, by the class that a fault stands for."""
    rows = sorted(lost_s.items(), key=lambda pair: -pair[1])[:ROWS_MOST]
    most = max((seconds for _, seconds in rows), default=0.0) or 1.0
    yield _text(RIGHT + 24, TOP - 15, "seconds of training lost, by class", "quiet")
    for number, (name, seconds) in enumerate(rows):
        y = TOP + 2 + 25 * number
        width = (BARS_RIGHT - BARS_LEFT - 40) * seconds / most
        yield _text(BARS_LEFT - 6, y + 13, name.replace("_", " "), "quiet", "end")
        yield f'<rect class="bar" x="{BARS_LEFT}" y="{y}" width="{width:.1f}" height="16" rx="2"/>'
        yield _text(BARS_LEFT + width + 5, y + 13, f"{seconds:.1f}", "quiet")


def _footer(score: dict[str, Any]) -> str:
    return (
        f"outlast drill {score['plan']} --seed {score['seed']}"
        f" --time-scale {score['time_scale']:g}, {score['steps']:,} steps"
    )


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    kind = f' class="{name}"' if name else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{where}>{html.escape(text)}</text>'


def _number(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("drill", type=Path, help="a folder of a drill, or what was kept of one")
    parser.add_argument("--keep", type=Path, help="write what a picture needs to this file")
    parser.add_argument("--out", type=Path, help="draw it into this file")
    args = parser.parse_args()
    drill = kept(args.drill) if args.drill.is_dir() else json.loads(args.drill.read_text())
    if args.keep is not None:
        args.keep.write_text(json.dumps(drill) + "\n")
    if args.out is not None:
        args.out.write_text(picture(drill))


if __name__ == "__main__":
    main()
