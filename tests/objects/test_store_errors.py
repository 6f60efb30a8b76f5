"""What cannot work with a URL is said in one sentence, with what to do and exit code 2."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.runtime import objects
from outlast.runtime.objects.patience import RequestPatience
from outlast.runtime.objects.url_places import open_place
from tests.app.command import outlast, outlast_anew
from tests.objects import s3_server
from tests.objects.placed import put
from tests.objects.s3_server import S3Server
from tests.tiers.saved import save

HASTY = RequestPatience(request_s=2.0, retries=0, total_s=2.0)


def said(url: str) -> str:
    with pytest.raises(UsageError) as refused:
        open_place(url, patience=HASTY).try_writing()
    assert refused.value.hint
    return str(refused.value)


def test_a_bucket_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.shared(monkeypatch)
    assert said("s3://gone/run").startswith("s3://gone/run: there is no such bucket\n")


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.shared(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{S3Server().port}")
    assert said("s3://bucket/run").startswith("s3://bucket/run: it cannot be reached\n")


def test_a_server_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = s3_server.shared(monkeypatch)
    server.set_faults(delay_s=4.0)
    try:
        assert said("s3://bucket/run").startswith("s3://bucket/run: it does not answer in time\n")
    finally:
        server.set_faults()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the service that gives a machine its role is not there."""
    s3_server.shared(monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{S3Server().port}")
    text = said("s3://bucket/run")
    assert text.startswith("s3://bucket/run: no credentials were found\n")
    assert "AWS_ACCESS_KEY_ID" in text


def test_http_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.shared(monkeypatch)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "AWS_ALLOW_HTTP" in said("s3://bucket/run")


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "outlast.runtime.objects.object_tier", raising=False)
    monkeypatch.delattr(objects, "object_tier", raising=False)
    with pytest.raises(UsageError) as refused:
        open_place("s3://bucket/run")
    assert refused.value.hint == "pip install 'outlast[object-storage]'"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    url = (tmp_path / "file" / "root").as_uri()
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        open_place(url).try_writing()


def test_ckpt_reads_a_url_as_it_reads_a_folder(tmp_path: Path) -> None:
    """`ls`, `verify`, `plan-restore` and `prune`, at a folder by its URL."""
    save(tmp_path, 1, 2, 3)
    url = tmp_path.as_uri()
    assert "3 checkpoints" in outlast("ckpt", "ls", url).stdout
    assert outlast("ckpt", "verify", url, "--step", "2").returncode == 0
    assert outlast("ckpt", "verify", url, "--step", "9").returncode == 2
    assert "step 3 would be restored" in outlast("ckpt", "plan-restore", url).stdout
    assert outlast("ckpt", "prune", url, "--keep-last", "1").returncode == 0
    assert outlast("ckpt", "ls", url, "--json").stdout.count('"step"') == 1


@pytest.mark.slow
def test_ckpt_reads_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a bit is flipped in a bucket; `verify` finds it, `plan-restore` passes it over."""
    server = s3_server.shared(monkeypatch)
    url = server.new_url()
    put(url, tmp_path, 1, 2)
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    name = f"{url}/step-000000000002/rank-0.safetensors"
    data = bytearray(server.object(name))
    data[-1] ^= 1
    server.set_object(name, bytes(data))
    listed = outlast_anew("ckpt", "ls", url, "--json", **aws)
    assert listed.returncode == 0, listed
    assert '"tier": "object"' in listed.stdout
    verified = outlast_anew("ckpt", "verify", url, **aws)
    assert verified.returncode == 1
    assert "step 2 is bad" in verified.stdout
    planned = outlast_anew("ckpt", "plan-restore", url, **aws)
    assert "step 1 would be restored" in planned.stdout
    for wrong, message in (("s3://gone/x", "no such bucket"), ("s4://a/b", "s4:// is no scheme")):
        refused = outlast_anew("ckpt", "ls", wrong, **aws)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused
