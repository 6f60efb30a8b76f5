"""The worked screens of docs/reference/diagnosis.md are what the command prints."""

from __future__ import annotations

import pytest

from tests.diagnose.worked.page import KINDS, PAGE, block_of, screen_of


@pytest.mark.parametrize("kind", KINDS)
def test_the_worked_screens_are_what_the_command_prints(kind: str) -> None:
    """Method: the kept incident of each kind.

    `python -m tests.diagnose.worked.page` writes the page again after a change of the screen.
    """
    found = block_of(kind, PAGE.read_text())
    screen, code = screen_of(kind)
    assert found[2] == screen
    assert int(found[4]) == code
