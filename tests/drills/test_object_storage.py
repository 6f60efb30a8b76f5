"""`outlast run --keep s3://...` as its user sees it: the machine is lost, the bucket is damaged, or
the server is gone. Whatever happens to the bucket, training goes on, and its state is that of an
undisturbed run.

The server is moto's, over HTTP, in a process of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from outlast.runtime.objects.url_places import open_place
from outlast.runtime.tiers import local
from tests.app.command import outlast_anew
from tests.drills._host_run import HostRun
from tests.drills._pids import alive, below, until
from tests.drills._run import CalmRun, Drill, Outcome, drilled
from tests.objects import s3_server
from tests.objects.s3_server import S3Server

STEPS = 40
SCRIPT = ("ddp.py", "--steps", STEPS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Yield a server of this test, which the test may kill. The environment names it."""
    with s3_server.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def kept(*places: str) -> tuple[str, ...]:
    return ("--keep", ", ".join(("vault:never", *places)))


def uploads(outcome: Outcome, what: str = "written") -> list[int]:
    found = outcome.report["checkpoints"]
    return [one["step"] for one in found if (one["tier"], one["outcome"]) == ("object", what)]


def is_well(outcome: Outcome, expected: dict[int, str]) -> None:
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected, str(outcome)


def kill_all(drill: Drill) -> None:
    """Kill the launcher, and check that its processes are gone, including the uploader."""
    pids = below(drill.process.pid)
    drill.process.kill()
    drill.process.wait(10)
    until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)


def lose_machine(drill: Drill) -> None:
    """Remove everything that a run has on its machine."""
    vault = drill.vault()
    kill_all(drill)
    shutil.rmtree(drill.folder)
    shutil.rmtree(vault, ignore_errors=True)


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_run_whose_machine_is_lost_goes_on_from_its_bucket(
    tmp_path: Path, server: S3Server, calm_run: CalmRun
) -> None:
    """Run folder, checkpoints and shared memory are gone. The run keeps its id and its URL."""
    expected = calm_run(*SCRIPT, workers=2).digests
    url = server.new_url()
    flags = kept("disk:5steps", f"{url}:10steps")
    tier = open_place(url)
    with Drill(tmp_path, *SCRIPT, "--pause", "0.1", workers=2, flags=flags) as drill:
        drill.until(
            lambda: [one.step for one in tier.step_folders() if one.has_manifest][:1] >= [15],
            "an upload after step 10",
        )
        lose_machine(drill)
    run = tier.manifest(next(one.step for one in tier.step_folders() if one.has_manifest)).run
    outcome = drilled(tmp_path, *SCRIPT, workers=2, flags=("--resume", *flags))
    is_well(outcome, expected)
    assert f"from {url}" in outcome.stderr
    assert outcome.report["run"] == run
    assert uploads(outcome)[-1] == STEPS
    assert tier.why_not(STEPS) == ""
    assert len([one for one in tier.step_folders() if one.has_manifest]) == 2


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_damaged_bucket_gives_the_newest_good_checkpoint(
    tmp_path: Path, server: S3Server, calm_run: CalmRun
) -> None:
    """Method: the folder of checkpoints is lost, and the newest checkpoint at the URL has a flipped
    bit.

    Each of the first two sessions uploads the checkpoint of its end.
    """
    expected = calm_run(*SCRIPT, workers=2).digests
    url = server.new_url()
    flags = kept("disk:5steps", url)
    for steps, more in ((10, ()), (20, ("--resume",))):
        first = drilled(tmp_path, "ddp.py", "--steps", steps, workers=2, flags=(*more, *flags))
        assert first.code == 0, str(first)
        assert uploads(first)[-1] == steps
    name = f"{url}/step-{20:012d}/rank-0.safetensors"
    data = bytearray(server.object(name))
    data[-1] ^= 1
    server.set_object(name, bytes(data))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    outcome = drilled(tmp_path, *SCRIPT, workers=2, flags=("--resume", *flags))
    is_well(outcome, expected)
    assert f"warning: a checkpoint was refused: {name} does not match its checksum" in (
        outcome.stderr
    )
    begun = uploads(first)[-2]
    assert f"at step {begun} from" in outcome.stderr
    assert uploads(outcome)[-1] == STEPS


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_server_that_goes_away_costs_training_nothing(
    tmp_path: Path, server: S3Server, calm_run: CalmRun
) -> None:
    """Method: the server is killed during the run, and never comes back. A line and the report say
    so.
    """
    expected = calm_run(*SCRIPT, workers=2).digests
    flags = kept("disk:5steps", server.new_url())
    with Drill(
        tmp_path, *SCRIPT, "--pause", "0.05", workers=2, flags=flags, within_s=200.0
    ) as drill:
        drill.until(lambda: drill.step >= 7, "step 7")
        server.kill()
        outcome = drill.finish()
    is_well(outcome, expected)
    outcome.ledger_is_sound()
    assert uploads(outcome, "failed"), outcome.report["checkpoints"]
    assert "warning: a checkpoint cannot be uploaded" in outcome.stderr
    assert "warning: the newest checkpoint is not at" in outcome.stderr
    assert any("cannot be uploaded" in text for text in outcome.report["warnings"])
    assert local.checkpoints(tmp_path / "run" / "checkpoints")[0].manifest.step == STEPS


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_what_cannot_work_is_reported_before_anything_is_written(
    tmp_path: Path, server: S3Server
) -> None:
    """Method: one command after another, each with something wrong. No run folder is made."""
    used, script = server.new_url(), tmp_path / "train.py"
    script.write_text("")
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    first = drilled(tmp_path, "ddp.py", "--steps", 4, workers=2, flags=kept("disk:2steps", used))
    assert first.code == 0, str(first)
    folder = tmp_path / "other"

    def refused(*flags: str, **more: str) -> str:
        said = outlast_anew(
            "run", "--nproc-per-node", "1", "--run-dir", folder, *flags, script, **{**aws, **more}
        )
        assert said.returncode == 2, said
        assert not (folder / "run.json").exists()
        return said.stderr

    assert "there is no such bucket" in refused("--keep", "s3://gone/run:1h")
    assert "has checkpoints of the run" in refused("--keep", f"{used}:1h")
    assert "how often" in refused("--keep", server.new_url())
    assert "there is none" in refused("--upload-rate", "5MB/s")
    nobody = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{S3Server().port}"}
    assert "cannot be reached" in refused("--keep", "s3://bucket/run:1h", **nobody)
    assert "no checkpoint to go on from" in refused("--keep", "s3://bucket/new:1h", "--resume")
    again = outlast_anew(
        "run", "--nproc-per-node", "1", "--run-dir", tmp_path / "run", "--resume",
        "--from-scratch", "--keep", f"{used}:1h", script, **aws,
    )  # fmt: skip  # one argument a line would hide what happens
    assert (again.returncode, "--from-scratch" in again.stderr) == (2, True), again


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_url_alone_keeps_checkpoints_in_the_run_folder_first(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """A folder given by its URL needs no additional package. The upload rate is limited as well."""
    expected = calm_run(*SCRIPT, workers=2).digests
    away = tmp_path / "away"
    flags = (*kept(f"{away.as_uri()}:10steps"), "--upload-rate", "100MB/s")
    outcome = drilled(tmp_path, *SCRIPT, workers=2, flags=flags)
    is_well(outcome, expected)
    for root in (tmp_path / "run" / "checkpoints", away):
        newest = local.checkpoints(root)[0]
        assert newest.manifest.step == STEPS
        local.verify(newest)


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}")
def test_a_node_that_takes_the_lead_uploads_from_then_on(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Method: the host that leads, and uploads, is killed after the first upload."""
    away = tmp_path / "away"
    flags = ("--keep", f"vault:never, disk:20steps, {away.as_uri()}")
    run = HostRun(three_hosts, tmp_path, "--steps", 160, nodes=2, spares=1, flags=flags)
    run.until(lambda: local.checkpoints(away), "the first upload")
    first = local.checkpoints(away)[0].manifest.step
    three_hosts.kill(0)
    del run.processes[0]
    codes = run.finish()
    assert codes == {1: 0, 2: 0}, f"{codes}\n{run}"
    newest = local.checkpoints(away)[0]
    assert newest.manifest.step == 160 > first, str(run)
    local.verify(newest)
    saved = [one for one in run.report()["checkpoints"] if one["tier"] == "object"]
    assert saved[-1]["step"] == 160
