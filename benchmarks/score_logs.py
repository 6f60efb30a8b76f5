"""How often `outlast diagnose` is right about labelled excerpts of logs, and how sure it is then.

    python benchmarks/score_logs.py [--data ../shared/data/logs] [--mutants 3] [--seed 1] [--json]

The folder holds *.txt and truth.json: for each file the classes that count as right. It is not part
of this project.

right               the class is in the accepted set
without its source  the same, with every rule dropped whose sources all are the excerpt's own (gpud,
                    gcm, ...), and the grades' probabilities refitted on the excerpts of other
                    sources (a beta prior of ten observations at the table's value)
mutated             other hosts, pids, PCI addresses, ranks, dates and prefixes, files in drawn
                    order, 10,000 healthy lines and teardown mixed in
without its truth   lines that hold a word of the accepted classes' vocabulary removed (below; not
                    the rules' patterns): the verdict must be unknown, or below 0.5
reliability         the verdict's confidence against how often its first-named class is right; Brier
                    score beside always naming the commonest class at its frequency among the other
                    excerpts
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _mutants import mutate

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import WEIGHTS, Weights, decide
from outlast.diagnose.fuse.weigh import votes_of
from outlast.diagnose.logs import read_lines
from outlast.diagnose.rules import RULES, Grade
from outlast.model.verdict import Verdict

PRIOR = 10.0  # observations that a grade's stated probability counts for when it is refitted
BINS = 5
SURE = 0.8
# Words by which a person would find the line that says why. Chosen apart from the rules.
VOCABULARY: dict[str, str] = {
    "host_memory": r"oom|memory|shm|kill|bus error|bad_alloc|-9|space",
    "gpu_oom": r"memory|oom",
    "hbm": r"ecc|xid|dbe|memory",
    "sram": r"ecc|xid|sram",
    "gpu": r"xid|gpu|cuda|aer|nvrm|bus|pcie",
    "nvlink": r"multicast|nvlink|nvswitch|xid|sxid|link",
    "network": r"network|ib|link|port|completion|mlx5|cable|status=",
    "nic": r"mlx5|nic|firmware",
    "storage": r"space|disk|i/o|input/output|nfs|blocked|jfs|juicefs|errno 5",
    "ssd": r"nvme|i/o|xfs|disk",
    "cpu": r"lockup|mce|rcu|cpu",
    "system_memory": r"edac|dimm|memory|mce",
    "thermal": r"temp|therm|heat",
    "io_board": r"power|pcie",
    "power_supply": r"power",
    "gpu_system_processor": r"gsp|xid|rpc",
    "software_bug": r"segfault|error|illegal|misaligned|assert|xid|thread|  |timeout",
    "user_code": r"error|assert|index|shape|illegal|xid|thread|  |timeout",
    "user_data": r"error|shape|data|timeout",
    "straggler": r"elapsed|sec|slow",
    "host_maintenance": r"preempt|requeue|maint|drain|signal",
    "dependency": r"version|import|module|driver",
    "chassis": r"aer|pcie|link",
}


def findings_of(files: Mapping[str, Sequence[str]]) -> list[Finding]:
    return [
        one
        for name, lines in files.items()
        for one in read_lines(
            (line.encode("utf-8", "surrogateescape") + b"\n" for line in lines), name=name
        )
    ]


def first_named(verdict: Verdict) -> str:
    """Return what the confidence is about: the class, or for `unknown` the likeliest other one."""
    if verdict.failure_class.value != "unknown":
        return verdict.failure_class.value
    return verdict.others[0][0].value if verdict.others else ""


def source_of(name: str) -> str:
    """Return the excerpt's repository: the letters with which its name begins."""
    found = re.match(r"[a-z]+", name)
    return found.group() if found else name


def own_rules(source: str) -> set[str]:
    """Return the rules that come from this source alone."""
    return {
        rule.name
        for rule in RULES.values()
        if all(
            part.strip().lower().removeprefix("incident:").strip().startswith(source)
            for part in rule.source.split(";")
        )
    }


def refitted(
    excerpts: Mapping[str, list[Finding]], truth: Mapping[str, list[str]], leave_out: str
) -> Weights:
    said: dict[Grade, list[bool]] = defaultdict(list)
    for name, findings in excerpts.items():
        if source_of(name) != leave_out:
            for vote in votes_of(findings, WEIGHTS)[:1]:
                said[vote.rule.grade].append(vote.failure_class.value in truth[name])
    return Weights(
        grades={
            grade: (p * PRIOR + sum(said[grade])) / (PRIOR + len(said[grade])) if p else 0.0
            for grade, p in WEIGHTS.grades.items()
        }
    )


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion."""
    if count == 0:
        return 0.0, 1.0
    z, p = 1.96, hits / count
    middle, half = (
        (p + z * z / (2 * count)) / (1 + z * z / count),
        z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / (1 + z * z / count),
    )
    return max(0.0, middle - half), min(1.0, middle + half)


def reliability(pairs: Sequence[tuple[float, bool]]) -> list[dict[str, float]]:
    table = []
    for number in range(BINS):
        inside = [
            (p, right)
            for p, right in pairs
            if number / BINS <= p < (number + 1) / BINS or (number == BINS - 1 and p >= 1)
        ]
        hits = sum(right for _, right in inside)
        low, high = wilson(hits, len(inside))
        table.append(
            {
                "from": number / BINS,
                "to": (number + 1) / BINS,
                "count": len(inside),
                "said": sum(p for p, _ in inside) / len(inside) if inside else 0.0,
                "right": hits,
                "low": low,
                "high": high,
            }
        )
    return table


def brier(pairs: Iterable[tuple[float, bool]]) -> float:
    """Return the Brier score of confidences, each with whether it was right."""
    some = list(pairs)
    return sum((p - right) ** 2 for p, right in some) / max(1, len(some))


def base_rate(truth: Mapping[str, list[str]]) -> list[tuple[float, bool]]:
    """Return the confidences of somebody who always names the commonest class of the others."""
    pairs = []
    for name, accepted in truth.items():
        others = Counter(
            one
            for other, some in truth.items()
            if other != name
            for one in some
            if one != "unknown"
        )
        usual, count = others.most_common(1)[0]
        pairs.append((count / (len(truth) - 1), usual in accepted))
    return pairs


def without_truth(lines: Sequence[str], accepted: Sequence[str]) -> list[str]:
    """Return the lines that hold no word of the vocabulary of the accepted classes."""
    words = "|".join(VOCABULARY[one] for one in accepted if one in VOCABULARY)
    return (
        [line for line in lines if not re.search(words, line, re.IGNORECASE)]
        if words
        else list(lines)
    )


Truth = Mapping[str, list[str]]  # the classes that count as right, by the name of an excerpt
Texts = Mapping[str, list[str]]  # the lines of each excerpt


def score(folder: Path, *, mutants: int, seed: int) -> dict[str, Any]:
    """Return the figures of all excerpts of a folder."""
    truth: dict[str, list[str]] = json.loads((folder / "truth.json").read_text())
    texts = {
        name: (folder / name).read_text("utf-8", "surrogateescape").splitlines() for name in truth
    }
    excerpts = {name: findings_of({name: lines}) for name, lines in texts.items()}
    verdicts = {name: decide(found, blame=None) for name, found in excerpts.items()}
    right = {name: verdict.failure_class.value in truth[name] for name, verdict in verdicts.items()}
    pairs = [
        (verdict.confidence, first_named(verdict) in truth[name])
        for name, verdict in verdicts.items()
    ]
    return {
        "count": len(truth),
        "right": sum(right.values()),
        "missed": {
            name: [
                verdicts[name].failure_class.value,
                round(verdicts[name].confidence, 2),
                truth[name],
            ]
            for name in truth
            if not right[name]
        },
        "wrong_and_sure": [
            name for name in truth if not right[name] and verdicts[name].confidence >= SURE
        ],
        "without_its_source": without_its_source(truth, excerpts),
        **of_mutants(truth, texts, right, mutants=mutants, rng=random.Random(seed)),
        **of_stripped(truth, texts),
        "reliability": reliability(pairs),
        "brier": brier(pairs),
        "brier_base_rate": brier(base_rate(truth)),
    }


def without_its_source(truth: Truth, excerpts: Mapping[str, list[Finding]]) -> int:
    """Count what is right without the rules and the weights that come from the same source."""
    right = 0
    for name, found in excerpts.items():
        dropped = own_rules(source_of(name))
        kept = [one for one in found if one.rule not in dropped]
        verdict = decide(kept, blame=None, weights=refitted(excerpts, truth, source_of(name)))
        right += verdict.failure_class.value in truth[name]
    return right


def of_mutants(
    truth: Truth, texts: Texts, right: Mapping[str, bool], *, mutants: int, rng: random.Random
) -> dict[str, Any]:
    """Return the figures of excerpts whose lines were changed at random."""
    changed: list[tuple[str, Verdict]] = []
    for name in truth:
        for _ in range(mutants):
            changed.append((name, decide(findings_of(mutate(texts[name], rng)), blame=None)))
    missed = Counter(
        f"{name}: {v.failure_class.value} {v.confidence:.2f}"
        for name, v in changed
        if v.failure_class.value not in truth[name] and right[name]
    )
    return {
        "mutants": len(changed),
        "mutants_right": sum(v.failure_class.value in truth[name] for name, v in changed),
        "mutants_missed": dict(missed),
        "mutants_wrong_and_sure": sum(
            v.failure_class.value not in truth[name] and v.confidence >= SURE for name, v in changed
        ),
    }


def of_stripped(truth: Truth, texts: Texts) -> dict[str, Any]:
    """Return the figures of excerpts without the lines that say the truth: unknown is right."""
    stripped = {
        name: decide(findings_of({name: without_truth(texts[name], truth[name])}), blame=None)
        for name in truth
        if truth[name] != ["unknown"]
    }
    return {
        "stripped": len(stripped),
        "stripped_still_named": {
            name: [v.failure_class.value, round(v.confidence, 2)]
            for name, v in stripped.items()
            if v.failure_class.value != "unknown" and v.confidence >= 0.5
        },
    }


def show(result: Mapping[str, Any]) -> None:
    count, right, mutants, still = (
        result["count"],
        result["right"],
        result["mutants"],
        result["stripped_still_named"],
    )
    low, high = wilson(right, count)
    print(
        f"right                {right} of {count}, {right / count:.1%} (95 %: {low:.0%} to"
        f" {high:.0%})"
    )
    print(f"  wrong and sure     {len(result['wrong_and_sure'])} with confidence >= {SURE}")
    for name, (said, confidence, accepted) in result["missed"].items():
        print(f"  missed             {name}: {said} {confidence}, accepted {', '.join(accepted)}")
    print(f"without its source   {result['without_its_source']} of {count}")
    if mutants:
        share, sure = result["mutants_right"] / mutants, result["mutants_wrong_and_sure"]
        print(
            f"mutated              {result['mutants_right']} of {mutants}, {share:.1%}; wrong and"
            f" sure: {sure}"
        )
    for name, times in result["mutants_missed"].items():
        print(f"  lost by mutation   {name} ({times}x)")
    print(
        f"without its truth    {len(still)} of {result['stripped']} still named with confidence >="
        f" 0.5: {still}"
    )
    print("confidence           said   right      95 %")
    for row in result["reliability"]:
        print(
            f"  {row['from']:.1f} to {row['to']:.1f}         {row['said']:.2f}   {row['right']:2d}"
            f" of {row['count']:2d}   {row['low']:.2f} to {row['high']:.2f}"
        )
    print(
        f"Brier score          {result['brier']:.3f}; always the commonest class at its frequency:"
        f" {result['brier_base_rate']:.3f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="score the diagnosis of labelled logs")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).parents[2] / "shared" / "data" / "logs",
        help="folder with *.txt and truth.json",
    )
    parser.add_argument("--mutants", type=int, default=3, help="mutants of each excerpt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.data / "truth.json").is_file():
        print(f"no truth.json in {options.data}: nothing to score", file=sys.stderr)
        return 2
    result = score(options.data, mutants=options.mutants, seed=options.seed)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
