"""model/waits.py: when a run waited for a node, from the events of its ledger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.records import DRAINING, NODE_AWAITED, NODE_FOUND, Event, Generation
from outlast.model.waits import Spans, drains, node_waits

AWAITED, FOUND, BEGUN = "awaited", "found", "begun"


@pytest.mark.parametrize(
    ("marks", "waited_s"),
    [
        ([], 0.0),
        ([(10.0, AWAITED), (40.0, FOUND)], 30.0),
        ([(10.0, AWAITED)], 90.0),  # the session ends while it waits
        ([(10.0, AWAITED), (30.0, BEGUN)], 20.0),  # another coordinator did not have to wait
        ([(10.0, AWAITED), (20.0, AWAITED), (40.0, FOUND)], 30.0),  # another one waits on
        ([(10.0, AWAITED), (40.0, FOUND), (41.0, BEGUN), (60.0, AWAITED), (65.0, FOUND)], 35.0),
        ([(5.0, FOUND), (10.0, BEGUN)], 0.0),
    ],
)
def test_a_wait_lasts_until_a_node_is_there(
    marks: list[tuple[float, str]], waited_s: float
) -> None:
    kinds = {AWAITED: NODE_AWAITED, FOUND: NODE_FOUND}
    events = [Event(at_s, 0.0, kinds[what]) for at_s, what in marks if what != BEGUN]
    begun = [Generation(2, 4, at_s) for at_s, what in marks if what == BEGUN]
    waits = node_waits([*events, Event(1.0, 0.0, "warning")], begun, end_s=100.0)
    assert waits.inside(0.0, 1000.0) == pytest.approx(waited_s)


times = st.floats(0.0, 100.0)


@given(spans=st.lists(st.tuples(times, times), max_size=6), from_s=times, until_s=times)
def test_the_time_inside_spans_counts_once(
    spans: list[tuple[float, float]], from_s: float, until_s: float
) -> None:
    """Method: compare with one count of many small cells. A span may lie in another one."""
    cells = 2_000
    width_s = 100.0 / cells
    centres = [(number + 0.5) * width_s for number in range(cells)]
    inside = sum(
        from_s <= at_s < until_s and any(low <= at_s < high for low, high in spans)
        for at_s in centres
    )
    edges = 2 * (len(spans) + 1)
    assert Spans(spans).inside(from_s, until_s) == pytest.approx(
        inside * width_s, abs=edges * width_s
    )


def test_drains_are_known_by_the_events_that_begin_them() -> None:
    begun = Event(1.0, 0.0, DRAINING, {"node": "a", "ranks": [0], "interruption": 3})
    damaged = Event(2.0, 0.0, DRAINING, {"node": "b"})
    assert drains([begun, damaged, Event(3.0, 0.0, "warning")]) == {3}
