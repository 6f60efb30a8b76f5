"""A short run of the fuzzer of the parser and of the handshakes between nodes.

benchmarks/fuzz_channel.py runs it for minutes or hours. `make fuzz` does not run it.
"""

from __future__ import annotations

import pytest

from benchmarks import fuzz_channel
from outlast.runtime.network import trust


def test_nothing_that_a_peer_sends_breaks_a_handshake() -> None:
    done = fuzz_channel.fuzz(seed=26, first=1, minutes=1.0, attempts=400)
    assert done.total() == 400
    assert min(done[end] for end in ("leader", "voter", "images", "dialler")) > 50


def test_the_fuzzer_finds_a_stranger_who_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: each proof is taken for right."""
    monkeypatch.setattr(trust, "proves", lambda *_, **__: True)
    with pytest.raises(AssertionError, match="let a stranger in"):
        fuzz_channel.fuzz(seed=0, first=1, minutes=1.0, attempts=3_000)
