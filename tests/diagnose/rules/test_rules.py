"""The tables: each rule has a source, runs in linear time, and gets to see every line that it would
match.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.lines import _SIEVE, LINE_BYTES
from outlast.diagnose.rules import LINE_RULES, RULES, by_priority
from outlast.diagnose.rules.table import Grade, Rule, needles_of, root, well_sourced
from outlast.model.terms import FailureClass
from outlast.model.verdict import Role

try:
    from re import _parser as sre_parse  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse  # type: ignore[no-redef]

# for one rule and one line; the line is read once, in well under a millisecond, by a pattern that
# behaves
BOUND_S = 0.5


@pytest.mark.parametrize(
    "source", ["", "I think so", "incident: one", "incident: one; incident: one", "a blog"]
)
def test_a_rule_without_a_source_is_refused(source: str) -> None:
    with pytest.raises(AssertionError, match="no source"):
        root("x", "some words", FailureClass.GPU, Grade.LIKELY, source, priority=1)


@pytest.mark.parametrize(
    "source", ["nvidia Xid catalogue", "linux mm/oom_kill.c", "incident: one; incident: another"]
)
def test_a_maker_or_two_incidents_are_a_source(source: str) -> None:
    assert well_sourced(source)


def test_every_rule_has_a_source_and_names_are_given_once() -> None:
    assert all(well_sourced(rule.source) for rule in RULES.values())
    names = [rule.name for rule in LINE_RULES]
    assert len(names) == len(set(names)) > 150


def test_rules_with_a_pattern_are_exactly_those_with_a_priority() -> None:
    assert {rule.name for rule in LINE_RULES} == {
        rule.name for rule in RULES.values() if rule.pattern
    }
    assert all((rule.priority > 0) == bool(rule.pattern) for rule in RULES.values())
    with pytest.raises(AssertionError, match="priority"):
        root("x", "some words", FailureClass.GPU, Grade.LIKELY, "nvidia", priority=0)


def test_priorities_alone_decide_the_order_of_the_rules() -> None:
    """Method: shuffle the rows, and cut them into tables at random; the order stays the same.

    Two rules with one priority are refused, as their order would be that of the tables.
    """
    rng = random.Random(1)
    for _ in range(20):
        rows = list(LINE_RULES)
        rng.shuffle(rows)
        cut = rng.randrange(len(rows))
        assert by_priority([rows[cut:], rows[:cut]]) == LINE_RULES
    twin = replace(LINE_RULES[0], name="twin")
    with pytest.raises(AssertionError, match="one priority"):
        by_priority([LINE_RULES, [twin]])


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
            "loader.bus",
            "loader.gone",
        ),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "host.shm", "disk.full"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "cuda.oom",
            "python.other",
        ),
    ],
)
def test_of_two_rules_that_match_a_line_the_smaller_priority_decides(
    line: str, first: str, second: str
) -> None:
    """A rule that knows more about a line has a smaller number than one that knows less."""
    matching = [rule.name for rule in LINE_RULES if re.search(rule.pattern, line.lower())]
    assert matching[0] == first
    assert second in matching
    assert [finding.rule for finding in read_lines([line.encode()], name="log")] == [first]


def test_only_roots_and_messengers_point_to_a_class() -> None:
    assert not [
        rule.name
        for rule in RULES.values()
        if rule.role in (Role.EFFECT, Role.ADVICE) and rule.failure_class is not None
    ]


def test_every_class_has_a_root_rule_that_can_name_it() -> None:
    """A class that nothing can name would never be said. `unknown` is what is left."""
    named = {
        rule.failure_class
        for rule in RULES.values()
        if rule.role is Role.ROOT and rule.grade is not Grade.HINT
    }
    assert set(FailureClass) - {FailureClass.UNKNOWN} <= named


def repeats(parsed: Any, inside: bool = False) -> list[str]:
    """What could take more than linear time: a repeat in a repeat, and a wide repeat of anything
    that is not bounded.
    """
    found = []
    for op, argument in parsed:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            _, high, body = argument
            if inside and high > 1:
                found.append("a repeat in a repeat")
            if high == sre_parse.MAXREPEAT and (len(body) > 1 or str(body[0][0]) == "ANY"):
                found.append("an unbounded repeat of more than one class of characters")
            found += repeats(body, inside or high > 1)
        elif name == "SUBPATTERN":
            found += repeats(argument[-1], inside)
        elif name == "BRANCH":
            for branch in argument[1]:
                found += repeats(branch, inside)
    return found


@pytest.mark.parametrize("rule", LINE_RULES, ids=lambda rule: rule.name)
def test_no_pattern_repeats_a_repeat(rule: Rule) -> None:
    assert not repeats(sre_parse.parse(rule.pattern))
    words = re.sub(r"\\[A-Z]|\?P<", "", rule.pattern)
    assert words == words.lower(), "lines are looked at in lower case"


@pytest.mark.parametrize("pattern", [r"(?:ab+)+cdef", r"x.*yzzz", r"(a{1,3}){2,9}bcde"])
def test_a_pattern_that_repeats_a_repeat_is_seen(pattern: str) -> None:
    assert repeats(sre_parse.parse(pattern))


def test_every_pattern_reads_a_hostile_line_in_time() -> None:
    """Method: for each rule, lines of the greatest length made of its own literals, of digits,
    spaces and hex, none of which ends in a match.
    """
    slow = []
    for rule in LINE_RULES:
        pattern = re.compile(rule.pattern)
        for piece in (
            *(needle.decode() for needle in rule.needles[:12]),
            "0",
            " ",
            "a",
            "0000:",
            "error ",
            "task a:1 ",
            "[ ",
        ):
            line = (piece * (LINE_BYTES // len(piece) + 1))[:LINE_BYTES]
            begun = time.process_time()
            pattern.search(line)
            if time.process_time() - begun > BOUND_S:
                slow.append((rule.name, piece))
    assert not slow


def drawn(parsed: Any, rng: random.Random) -> str:
    """A text that the parsed pattern matches; repeats are short."""
    text = ""
    for op, argument in parsed:
        name = str(op)
        if name == "LITERAL":
            text += chr(argument)
        elif name == "NOT_LITERAL":
            text += "q" if argument != ord("q") else "k"
        elif name == "ANY":
            text += rng.choice("abc 1")
        elif name == "IN":
            text += rng.choice(
                [
                    one
                    for one in map(chr, range(32, 127))
                    if re.match(re.compile(_class(argument)), one)
                ]
            )
        elif name == "BRANCH":
            text += drawn(rng.choice(argument[1]), rng)
        elif name == "SUBPATTERN":
            text += drawn(argument[-1], rng)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = argument
            text += "".join(
                drawn(body, rng) for _ in range(rng.randint(low, min(int(high), low + 3)))
            )
    return text


def _class(items: Any) -> str:
    parts = []
    for op, argument in items:
        name = str(op)
        if name == "NEGATE":
            parts.append("^")
        elif name == "LITERAL":
            parts.append(re.escape(chr(argument)))
        elif name == "RANGE":
            parts.append(f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}")
        else:
            parts.append(
                {
                    "CATEGORY_DIGIT": r"\d",
                    "CATEGORY_SPACE": r"\s",
                    "CATEGORY_WORD": r"\w",
                    "CATEGORY_NOT_SPACE": r"\S",
                }[str(argument)]
            )
    return f"[{''.join(parts)}]"


@pytest.mark.parametrize("rule", LINE_RULES, ids=lambda rule: rule.name)
def test_the_sieve_lets_through_whatever_a_rule_would_match(rule: Rule) -> None:
    """Method: 40 texts drawn from the rule's own pattern, where they match it as a line (boundaries
    are not drawn).
    """
    number, rng, pattern = (
        LINE_RULES.index(rule),
        random.Random(rule.name),
        re.compile(rule.pattern),
    )
    parsed = sre_parse.parse(rule.pattern)
    tried = [
        line for line in (drawn(parsed, rng) for _ in range(40)) if pattern.search(line.lower())
    ]
    assert tried
    for line in tried:
        assert number in _SIEVE.found([b"before\n", line.lower().encode() + b"\n"]).get(1, ()), line


@pytest.mark.parametrize(
    ("pattern", "needles"),
    [
        (r"plain words", [b"plain words"]),
        (r"one word|other\d+", [b"one word", b"other"]),
        (r"x(?:first|second)y", [b"first", b"second"]),
        (r"abc\d+longer(?:x|yyyyy)", [b"longer"]),
        (r"(?:maybe)?surely", [b"surely"]),
        (r"\d+", []),
        (r"(?:abcd|\d)", []),
    ],
)
def test_needles_are_what_every_match_holds(pattern: str, needles: list[bytes]) -> None:
    assert list(needles_of(pattern)) == needles
