"""What `--keep` says is read as it is written, and what cannot be meant is refused."""

from __future__ import annotations

import pytest

from outlast.errors import UsageError
from outlast.model.keep import AUTO, NEVER, Every, KeepOption, read_keep
from outlast.model.redundancy import Code


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("vault", KeepOption(vault=Every(steps=1))),
        ("vault:step", KeepOption(vault=Every(steps=1))),
        ("vault:auto", KeepOption(vault=AUTO)),
        ("disk:auto", KeepOption(disk=AUTO)),
        ("vault:never", KeepOption(vault=NEVER)),
        ("vault: 10steps , disk:10min", KeepOption(Every(steps=10), Every(seconds=600.0))),
        ("disk:1step", KeepOption(disk=Every(steps=1))),
        ("peers=1:step", KeepOption(peers=Every(steps=1))),
        ("vault:step, peers = 1:5steps", KeepOption(vault=Every(steps=1), peers=Every(steps=5))),
        ("peers=1:never", KeepOption(peers=NEVER)),
        ("peers=2", KeepOption(peers=Every(steps=1), copies=2)),
        (
            "disk:10min, peers=3:5steps",
            KeepOption(disk=Every(seconds=600.0), peers=Every(steps=5), copies=3),
        ),
        ("parity=4+2", KeepOption(parity=Every(steps=1), code=Code(4, 2))),
        ("parity = 2+1:10steps", KeepOption(parity=Every(steps=10), code=Code(2, 1))),
        (
            "parity=4+2:never,peers=1",
            KeepOption(peers=Every(steps=1), parity=NEVER, code=Code(4, 2)),
        ),
        ("disk:1h30m,vault:2s", KeepOption(Every(seconds=2.0), Every(seconds=5400.0))),
        (
            "disk:10min, s3://bucket/run:1h",
            KeepOption(
                disk=Every(seconds=600.0), objects=Every(seconds=3600.0), url="s3://bucket/run"
            ),
        ),
        ("gs://bucket/a", KeepOption(objects=Every(steps=1), url="gs://bucket/a")),
        ("az://box/a/:9steps", KeepOption(objects=Every(steps=9), url="az://box/a")),
        ("file:///away/a : 5s", KeepOption(objects=Every(seconds=5.0), url="file:///away/a")),
    ],
)
def test_places_and_intervals_are_read(text: str, kept: KeepOption) -> None:
    assert read_keep(text) == kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no place"),
        ("peers:step", "peers needs a number of copies"),
        ("peers=65:step", "64 other nodes at most can keep copies of an image, and not 65"),
        ("peers=1.5:step", "peers"),
        ("peers=1, peers=2", "names peers twice"),
        ("peers=0:step", "peers"),
        ("peers=:step", "peers"),
        ("peers=1:auto", "not by the clock"),
        ("peers=1:10min", "not by the clock"),
        ("peers=1, peers=1:step", "names peers twice"),
        ("parity:step", "parity is K+M"),
        ("parity=:step", "parity is K+M"),
        ("parity=4:step", "parity is K+M"),
        ("parity=4+3:step", "parity is K+M, with K of 1 to 16 and M of 1 or 2"),
        ("parity=0+1:step", "parity is K+M"),
        ("parity=17+2:step", "parity is K+M"),
        ("parity=4+2:10min", "not by the clock"),
        ("parity=4+2:auto", "not by the clock"),
        ("parity=4+2, parity=2+1", "names parity twice"),
        ("parity=4+2:step, peers=1:step", "names peers and parity"),
        ("s4://bucket/run:1h", "s4:// is no scheme"),
        ("s3://a/b:1h, s3://a/c:1h", "names two URLs"),
        ("s3://bucket/run:auto", "'auto' means nothing for a URL"),
        ("s3://bucket/run:never", "'never' means nothing for a URL"),
        ("s3://bucket/run:5", "has no unit"),
        ("s3://bucket/run:", "EVERY"),
        ("vault:step, vault:auto", "names vault twice"),
        ("vault:10", "has no unit"),
        ("vault:0steps", "EVERY"),
        ("vault:-5s", "EVERY"),
        ("vault:soon", "EVERY"),
        ("vault:", "EVERY"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--keep") as refused:
        read_keep(text)
    assert said in str(refused.value)


def test_only_never_is_never() -> None:
    assert NEVER.is_never
    assert not any(one.is_never for one in (AUTO, Every(steps=1), Every(seconds=0.5)))
