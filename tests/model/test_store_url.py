"""URLs of places for checkpoints are read as they are written. Texts that are no such URL are
refused.
"""

from __future__ import annotations

import pytest

from outlast.errors import UsageError
from outlast.model.store_url import StoreUrl, is_url, read_url


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("s3://bucket", StoreUrl("s3://bucket", "s3", "bucket", "")),
        ("s3://bucket/a/b/", StoreUrl("s3://bucket/a/b", "s3", "bucket", "a/b")),
        ("gs://bucket/run", StoreUrl("gs://bucket/run", "gs", "bucket", "run")),
        ("az://container/run", StoreUrl("az://container/run", "az", "container", "run")),
        ("file:///away/a%20b/", StoreUrl("file:///away/a%20b", "file", "", "/away/a%20b")),
    ],
)
def test_urls_are_read(text: str, read: StoreUrl) -> None:
    assert is_url(text)
    assert read_url(text, name="--keep") == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s4://bucket/run", "s4:// is no scheme"),
        ("http://host/run", "http:// is no scheme"),
        ("s3://", "does not name a bucket"),
        ("s3:///run", "does not name a bucket"),
        ("s3://bucket//run", "empty part"),
        ("s3://bucket/../other", "`..`"),
        ("s3://bucket/a b", "spaces"),
        ("s3://host:9000/run", "does not name a bucket"),
        ("s3://key:secret@bucket/run", "password"),
        ("az://container/run?sig=secret", "password"),
        ("file://host/run", "folder of this machine"),
        ("file:///", "folder of this machine"),
    ],
)
def test_what_is_no_such_url_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--keep") as refused:
        read_url(text, name="--keep")
    assert said in str(refused.value)
    assert refused.value.hint


def test_a_path_is_no_url() -> None:
    assert not any(map(is_url, ("runs/x", "/away/a:b", "s3:bucket")))
