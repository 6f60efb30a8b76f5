"""What a launcher of a run on several nodes does at a signal, while it leads and while it
does not.
"""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.app.launch.run_takeover import Leadership


def a_leadership(
    *, leads: bool, successors: tuple[str, ...] = (), is_in: bool = True
) -> tuple[Leadership, list[Any]]:
    """Return a leadership whose parts record what they are told."""
    told: list[Any] = []
    view = SimpleNamespace(print_line=lambda text: told.append(("tell", text)))
    place: Any = SimpleNamespace(view=view)  # only the part of it that is used
    leadership = Leadership(place)
    agent: Any = SimpleNamespace(
        is_in=is_in,
        leave=lambda code, reason: told.append(("leave", code)),
        preempted=lambda code, reason: told.append(("preempted", code)),
    )
    leadership.set_agent(agent)
    if leads:
        coordinator = SimpleNamespace(
            quorum=SimpleNamespace(successors=successors),
            driver=SimpleNamespace(ask_stop=lambda reason, code: told.append(("stop", code))),
            close=lambda: told.append("closed"),
        )
        ledger = SimpleNamespace(
            end_session=lambda **said: told.append(said["exit_code"]), close=lambda: None
        )
        shut: Any = SimpleNamespace(close=lambda: None)
        leadership.led = SimpleNamespace(  # type: ignore[assignment]  # only the part that is used
            coordinator=coordinator,
            ledger=ledger,
            folder=shut,
            control=shut,
            copier=SimpleNamespace(close=lambda *, is_last: None),
            is_over=False,
            pager=None,
            uploads=None,
        )
    return leadership, told


@pytest.mark.parametrize(
    ("leads", "successors", "number", "does"),
    [
        (False, (), signal.SIGTERM, ("preempted", 143)),
        (False, (), signal.SIGINT, ("leave", 130)),
        (True, ("b", "c"), signal.SIGTERM, ("preempted", 143)),
        (True, ("b", "c"), signal.SIGINT, ("stop", 130)),
        (True, (), signal.SIGTERM, ("stop", 143)),
    ],
)
def test_a_notice_drains_a_node_that_leads_if_somebody_can_take_over(
    leads: bool, successors: tuple[str, ...], number: signal.Signals, does: tuple[str, int]
) -> None:
    leadership, told = a_leadership(leads=leads, successors=successors)
    leadership._on_signal(number)
    assert told == [does]


def test_a_second_notice_to_the_node_that_leads_stops_the_run() -> None:
    leadership, told = a_leadership(leads=True, successors=("b", "c"))
    for _ in range(2):
        leadership._on_signal(signal.SIGTERM)
    assert told == [("preempted", 143), ("stop", 143)]


def test_an_empty_node_that_leads_hands_the_run_over_before_it_leaves() -> None:
    leadership, told = a_leadership(leads=True, successors=("b", "c"))
    assert leadership.hand_run_over()
    assert leadership.led is None
    assert told[0] == "closed", "it grants nothing any more"
    assert told[1] == ("tell", "this node hands the run over: b or c leads it from now on")


def test_a_node_that_leads_stays_if_nobody_can_take_over() -> None:
    """Method: the voters were lost during the drain. If the node's machine is taken away then, the
    run stops.
    """
    leadership, told = a_leadership(leads=True)
    assert not leadership.hand_run_over()
    assert told == []
    leadership, told = a_leadership(leads=True, successors=("b", "c"))
    leadership._on_signal(signal.SIGUSR1)
    assert leadership.led is not None
    leadership.led.coordinator.quorum.successors = ()  # type: ignore[misc]
    assert not leadership.hand_run_over()
    assert told[-1] == ("stop", 143)
