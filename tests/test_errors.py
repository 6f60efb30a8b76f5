"""The texts of errors: alone they have a hint, within a sentence they have none."""

from __future__ import annotations

import errno

import pytest

from outlast.errors import CorruptError, message_of


def test_an_error_that_stands_alone_ends_with_its_hint() -> None:
    error = CorruptError("the file is damaged", hint="restore it")
    assert str(error) == "the file is damaged\n\nhint: restore it"
    assert error.message == "the file is damaged"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CorruptError("the file is damaged", hint="restore it"), "the file is damaged"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "No space left on device"),
        (OSError("an error without a number"), "an error without a number"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
    ids=repr,
)
def test_within_a_sentence_an_error_has_no_hint_and_no_number(error: Exception, said: str) -> None:
    assert message_of(error) == said
