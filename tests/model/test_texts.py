"""model/texts.py cuts texts for people after whole words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.texts import ELLIPSIS, cut_at_word


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("step 30 is committed on a live rank", 35, "step 30 is committed on a live rank"),
        ("step 30 is committed on a live rank", 34, "step 30 is committed on a live..."),
        ("step 30 is committed, on a live rank", 24, "step 30 is committed..."),
        ("one two", 6, "one..."),
        ("a /very/long/path/that/is/one/word", 20, "a /very/long/path..."),
        ("unbroken" * 4, 10, "unbroke..."),
    ],
)
def test_a_text_is_cut_behind_a_word_that_is_whole(text: str, most: int, cut: str) -> None:
    """A single word that is longer than half of the room is cut inside."""
    assert cut_at_word(text, most) == cut


@given(
    words=st.lists(st.text("abcdef", min_size=1, max_size=8), min_size=1, max_size=30),
    most=st.integers(20, 80),
)
def test_whatever_is_cut_ends_in_a_word_of_the_text(words: list[str], most: int) -> None:
    text = " ".join(words)
    cut = cut_at_word(text, most)
    assert len(cut) <= most
    if cut != text:
        kept = cut.removesuffix(ELLIPSIS)
        assert kept != cut
        assert kept.split(" ") == words[: len(kept.split(" "))]
        assert cut_at_word(cut, most) == cut
