"""The flags of `outlast run`: torchrun's, read by torch's own parser, and those of outlast. A flag
that one node cannot honour is refused by name.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.app.launch.torchrun import ObjectOptions, RunOptions, StatusOptions, read_command_line
from outlast.engine.default_policy import default_policy
from outlast.engine.durable import Retention
from outlast.errors import CapacityError, UsageError
from outlast.model.keep import Every
from outlast.model.limits import CHECKPOINTS_KEPT_COUNT, WORKERS_MAX_COUNT
from outlast.model.policy import Action
from outlast.model.redundancy import Code
from outlast.runtime.agent.oom import OomKill, OomWatch
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.worker.script.arguments import parse


@pytest.fixture(scope="module")
def reader() -> Iterator[ZygoteClient]:
    os.environ["PET_ROLE"] = "from_environment"  # the parser reads it when it is created
    zygote = ZygoteClient.start()
    yield zygote
    zygote.kill()
    del os.environ["PET_ROLE"]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def read(reader: ZygoteClient, *argv: str) -> RunOptions:
    options = read_command_line(list(argv), reader)
    assert isinstance(options, RunOptions)
    return options


def test_a_zygote_that_dies_without_reading_has_ended_and_is_no_crash() -> None:
    """Method: the other end of the socket is closed with an unread message, so the kernel resets
    the connection.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"unread")
    theirs.close()
    client = ZygoteClient(subprocess.Popen(["true"]), ours)
    with pytest.raises(CapacityError, match=r"^the process that imports torch ended\n"):
        client.parse(["train.py"])
    client.kill()


def test_a_zygote_that_the_kernel_kills_for_memory_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the process kills itself, and the kernel's counter of OOM kills is made to rise."""
    monkeypatch.setattr(OomWatch, "judge", lambda self, now_s, pid=0: OomKill.OURS)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    client = ZygoteClient(subprocess.Popen(["sh", "-c", "kill -9 $$"]), ours)
    with pytest.raises(
        CapacityError, match="ended by signal 9, while the kernel counted"
    ) as caught:
        client.parse(["train.py"])
    assert caught.value.hint.startswith("allow more memory")
    client.kill()


def test_our_flags_come_before_the_script_and_its_own_are_left_alone(
    reader: ZygoteClient, script: str
) -> None:
    own = ["--spares", "9", "--nproc-per-node", "7", "-h", "--", "--x", "--unknown"]
    options = read(
        reader,
        "--standalone",
        "--nproc_per_node",
        "4",
        "--spares=2",
        "--preload",
        "json",
        "--preload",
        "csv",
        script,
        *own,
    )
    assert options.program.script == script
    assert options.program.args == tuple(own)
    assert (options.workers, options.spares.count, options.spares.kind, options.preload) == (
        4,
        2,
        "hot",
        ("json", "csv"),
    )


@pytest.mark.parametrize(
    "own",
    [
        ["--checkpoint", "X"],  # several of outlast's flags begin like this
        ["--check=1"],
        ["--run", "3"],
        ["--n", "2"],
        ["--lo=DEBUG"],
        ["--hang"],
        ["-n", "4"],
        ["--resume"],
        ["--checkpoint-every", "9"],
        ["--help"],
        ["--version"],
        ["--nnodes=abc"],
    ],
    ids=" ".join,
)
def test_whatever_follows_the_script_is_the_scripts(
    reader: ZygoteClient, script: str, own: list[str]
) -> None:
    options = read(reader, "--spares=2", script, *own)
    assert options.program.args == tuple(own)
    assert options.spares.count == 2
    assert not options.checkpoints.resume
    assert options.checkpoints.every_steps is None


@pytest.mark.parametrize("flag", ["--spare=2", "--checkpoint=5", "--nproc=2", "--res", "--standa"])
def test_our_flags_are_not_abbreviated(reader: ZygoteClient, script: str, flag: str) -> None:
    with pytest.raises(UsageError, match="unknown option " + flag.partition("=")[0]):
        read(reader, flag, script)


def test_ours_have_their_defaults_and_their_values(reader: ZygoteClient, script: str) -> None:
    plain = read(reader, script)
    assert (
        plain.workers,
        plain.spares.count,
        plain.checkpoints.every_steps,
        plain.hang_after_s,
        plain.zygote,
    ) == (1, 0, None, None, True)
    asked = [
        "--spare-kind",
        "warm",
        "--run-dir",
        "r",
        "--resume",
        "--checkpoint-every",
        "5",
        "--checkpoint-dir",
        "c",
        "--keep-last",
        "7",
        "--keep-every",
        "100",
        "--hang-after",
        "2.5",
        "--no-zygote",
    ]
    full = read(reader, *asked, script)
    assert (full.spares.kind, full.run_dir, full.hang_after_s, full.zygote) == (
        "warm",
        "r",
        2.5,
        False,
    )
    assert (full.checkpoints.every_steps, full.checkpoints.folder, full.checkpoints.resume) == (
        5,
        "c",
        True,
    )
    assert (plain.checkpoints.retention, full.checkpoints.retention) == (
        Retention(CHECKPOINTS_KEPT_COUNT, 0),
        Retention(7, 100),
    )


def test_a_policy_is_read_before_anything_begins(
    reader: ZygoteClient, script: str, tmp_path: Path
) -> None:
    policy = tmp_path / "mine.toml"
    policy.write_text('schema = 1\n[[rule]]\naction = "page"\n')
    assert read(reader, script).policy == default_policy()
    assert [one.action for one in read(reader, "--policy", str(policy), script).policy.rules] == [
        Action.PAGE
    ]
    policy.write_text('schema = 1\n[[rule]]\naction = "pages"\n')
    with pytest.raises(
        UsageError,
        match=(
            r"mine\.toml, rule 1: action is 'pages', which is not known\n\n"
            r"hint: did you mean 'page'"
        ),
    ):
        read_command_line(["--policy", str(policy), script], reader)


def test_defaults_of_the_environment_hold_as_in_torchrun(reader: ZygoteClient, script: str) -> None:
    assert read(reader, script).meeting.role == "from_environment"
    assert read(reader, "--role", "given", script).meeting.role == "given"


def test_zero_restarts_differ_from_an_absent_flag(
    reader: ZygoteClient, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value 0 is torchrun's default, but not that of outlast."""
    given = [(), ("--max-restarts", "0"), ("--max_restarts=2",)]
    assert [read(reader, *flags, script).meeting.max_restarts for flags in given] == [None, 0, 2]
    monkeypatch.setenv("PET_MAX_RESTARTS", "0")
    asked = [parse([*flags, script])["options"]["max_restarts"] for flags in given]
    assert asked == [0, 0, 2]


def test_a_worker_count_may_be_a_word(reader: ZygoteClient, script: str) -> None:
    assert read(reader, "--nproc-per-node", "cpu", script).workers >= 1
    assert read(reader, "--nproc-per-node", "auto", script).workers >= 1


def test_entries_are_scripts_modules_and_programs(reader: ZygoteClient, script: str) -> None:
    assert read(reader, script).program.entry == "script"
    assert read(reader, "--run-path", script).program.entry == "script"
    assert read(reader, "-m", "json.tool").program.entry == "module"
    assert read(reader, "--no-python", "sh", "-c", "true").program.entry == "program"


def test_meeting_points_on_one_node_are_taken_over(reader: ZygoteClient, script: str) -> None:
    static = read(
        reader,
        "--nnodes",
        "1",
        "--node-rank",
        "0",
        "--master-addr",
        "127.0.0.2",
        "--master-port",
        "29511",
        "--rdzv-id",
        "me",
        script,
    ).meeting
    assert (static.run_id, static.master_addr, static.master_port) == ("me", "127.0.0.2", 29511)
    c10d = read(
        reader,
        "--nnodes=1:1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "--rdzv-id",
        "7",
        script,
    ).meeting
    assert (c10d.run_id, c10d.master_port) == ("7", 0)
    assert read(reader, "--rdzv-endpoint", "localhost:29512", script).meeting.master_port == 29512
    assert read(reader, script).meeting.run_id == ""


def test_flags_without_effect_are_noted_and_console_rules_taken_over(
    reader: ZygoteClient, script: str
) -> None:
    options = read(
        reader,
        "--monitor-interval",
        "0.5",
        "--start-method",
        "fork",
        "--log-dir",
        "l",
        "-r",
        "0:1",
        "-t",
        "3",
        "--local-ranks-filter",
        "0,2",
        script,
    )
    assert [note.split()[0] for note in options.notes] == ["--monitor-interval", "--start-method"]
    assert options.log_dir == "l"
    assert (options.console.redirects, options.console.tee, options.console.only_ranks) == (
        {0: 1},
        3,
        frozenset({0, 2}),
    )


_SEVERAL = ("--nnodes", "2", "--rdzv-endpoint", "10.0.0.1:29400")


def test_images_are_copied_to_other_nodes_only_if_it_is_requested(
    reader: ZygoteClient, script: str
) -> None:
    """They are copied as often as images are sealed: by `--snapshot-every`, or by what `--keep`
    says of the vault.
    """
    assert not read(reader, *_SEVERAL, script).peer_copies
    assert not read(reader, *_SEVERAL, "--keep", "peers=1:never", script).peer_copies
    assert read(reader, *_SEVERAL, "--keep", "peers=1", script).peer_copies
    three = ("--nnodes", "3", *_SEVERAL[2:])
    assert read(reader, *three, "--keep", "peers=2", script).peers == 2
    for said in (
        ["--snapshot-every", "5", "--keep", "peers=1:5steps"],
        ["--keep", "vault:5steps,peers=1:5steps"],
    ):
        options = read(reader, *_SEVERAL, *said, script)
        assert (options.peer_copies, options.snapshot_every) == (True, 5)


def test_a_cluster_file_says_how_often_a_run_is_expected_to_fail(
    reader: ZygoteClient, script: str, tmp_path: Path
) -> None:
    """Without such a file the rate of Llama 3's GPUs is used. Without `disk:auto` no rate
    is used.
    """
    assert read(reader, script).checkpoints.expected is None
    llama = read(reader, "--keep", "disk:auto", "--nproc-per-node", "4", script).checkpoints
    assert llama.are_written
    assert llama.timed.auto
    assert llama.expected is not None
    assert llama.expected.source == "the rate of Llama 3's GPUs, for 4 GPUs"
    ours = tmp_path / "ours.toml"
    ours.write_text(
        'schema = 1\n[[failure]]\nname = "all"\nclass = "gpu"\nunit = "gpu"\nmttf = "100h"\n'
    )
    flags = ("--keep", "disk:auto", "--cluster", str(ours))
    expected = read(reader, *flags, "--nproc-per-node", "4", script).checkpoints.expected
    assert expected is not None
    assert expected.mttf_s == pytest.approx(100 * 3600 / 4)
    assert expected.source == f"{ours}, for 4 GPUs"


def test_parity_is_kept_only_if_it_is_requested(reader: ZygoteClient, script: str) -> None:
    options = read(reader, *_SEVERAL, "--keep", "parity=1+1", script)
    assert (options.peer_copies, options.parity) == (True, Code(1, 1))
    for said in (["--keep", "parity=1+1:never"], ["--keep", "peers=1"], []):
        assert read(reader, *_SEVERAL, *said, script).parity is None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nnodes", "2", "SCRIPT"], "several nodes have to know where they meet"),
        (["--nnodes", "1:4", "SCRIPT"], "--nnodes 1:4: the number of ranks stays the same"),
        (
            ["--nnodes", "abc", "SCRIPT"],
            r"--nnodes abc: is not a number.*\n\nhint: write --nnodes 2, or",
        ),
        (
            ["--nnodes", "0", "SCRIPT"],
            "--nnodes 0: is not a number of nodes, and not a range of them",
        ),
        (["--nnodes", "4:1", "SCRIPT"], "--nnodes 4:1: is not a number of nodes, and not a range"),
        (["--nnodes", "1:", "SCRIPT"], "--nnodes 1:: is not a number of nodes, and not a range"),
        (["--node-rank", "1", "SCRIPT"], "--node-rank 1"),
        (
            ["--rdzv-backend", "etcd", "SCRIPT"],
            "--rdzv-backend etcd.*\n\nhint: on one node use --standalone",
        ),
        (["--rdzv-endpoint", "head:29400", "SCRIPT"], "--rdzv-endpoint head:29400"),
        (["--numa-binding", "node", "SCRIPT"], "--numa-binding.*\n\nhint: bind with numactl"),
        (["--signals-to-handle", "SIGUSR1", "SCRIPT"], "--signals-to-handle"),
        (["--virtual-local-rank", "SCRIPT"], "--virtual-local-rank"),
        (["--no-python", "-m", "x"], "exclude each other"),
        (["--no-python", "--spares", "1", "x"], "--spares does not go with --no-python"),
        (
            ["--nporc-per-node", "4", "SCRIPT"],
            "unknown option --nporc-per-node\n\nhint: did you mean --nproc-per-node",
        ),
        (
            ["--chekpoint-every=4"],
            "unknown option --chekpoint-every\n\nhint: did you mean --checkpoint-every",
        ),
        (["--nproc-per-node", "four", "SCRIPT"], "--nproc-per-node four"),
        (["--nproc-per-node", "0", "SCRIPT"], "at least one"),
        (
            ["--nproc-per-node", str(WORKERS_MAX_COUNT), "--spares", "1", "SCRIPT"],
            f"more than the {WORKERS_MAX_COUNT}",
        ),
        (["--spares", "-1", "SCRIPT", "--lr"], "--spares.*at least 0"),
        (["--hang-after", "nan", "SCRIPT"], "--hang-after.*seconds above 0"),
        (["--checkpoint-every", "0", "SCRIPT"], "--checkpoint-every.*at least 1"),
        (["--cluster", "ours.toml", "SCRIPT"], "--cluster.*\n\nhint: add --keep disk:auto"),
        (["--keep", "disk:auto", "--cluster", "none.toml", "SCRIPT"], "none.toml"),
        (
            ["--keep", "peers=1:step", "SCRIPT"],
            "this run has one node\n\nhint: start it on several nodes",
        ),
        (
            [*_SEVERAL, "--keep", "peers=2:step", "SCRIPT"],
            "its 2 copies lie on 3 nodes, and this run has 2\n\nhint: start it on 3 nodes",
        ),
        (
            [*_SEVERAL, "--keep", "peers=1:10steps", "SCRIPT"],
            "they seal each step\n\nhint: add --snapshot-every 10, or write peers=1:1steps",
        ),
        (
            [*_SEVERAL, "--snapshot-every", "5", "--keep", "peers=1:step", "SCRIPT"],
            "they seal every 5 steps\n\nhint: .*peers=1:5steps",
        ),
        (
            [*_SEVERAL, "--keep", "parity=2+1:step", "SCRIPT"],
            "lie on 3 nodes, and this run has 2\n\nhint: start it on 3 nodes",
        ),
        (
            [*_SEVERAL, "--keep", "parity=1+1:10steps", "SCRIPT"],
            "they seal each step\n\nhint: .*or write parity=1.1:1steps",
        ),
        (["--tee", "5", "SCRIPT"], "--tee 5"),
        (["--local-ranks-filter", "a", "SCRIPT"], "--local-ranks-filter a"),
        (["/no/such/train.py"], "there is no script /no/such/train.py"),
        (["train"], "there is no script train\n\nhint: a module is run with `-m train`"),
        (["/usr"], "/usr is a folder without __main__.py"),
        ([], "no training script was named"),
        (
            ["--nproc-per-node", "SCRIPT"],
            "named\n\nhint: .*train.py was taken for the value of --nproc-per-node",
        ),
        (["python3", "SCRIPT"], "there is no script python3\n\nhint: leave `python3` out"),
        (["-m", "SCRIPT"], "-m takes the name of a module, and .*train.py is a path"),
        (["--no-python", "SCRIPT"], r"no program .* can be executed\n\nhint: `chmod \+x"),
        (
            ["--no-python", "no-such-program"],
            "there is no program no-such-program that can be executed",
        ),
    ],
)
def test_what_cannot_work_is_an_error_that_names_the_flag(
    reader: ZygoteClient, script: str, argv: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_command_line([script if word == "SCRIPT" else word for word in argv], reader)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ndef f(:\n", "train.py, line 2: SyntaxError: "),
        ("if True:\nx = 1\n", "train.py, line 2: IndentationError: "),
        ("x = '\udce9'\n", "SyntaxError: "),
    ],
)
def test_a_script_that_python_cannot_read_is_refused_with_its_line(
    reader: ZygoteClient, script: str, text: str, says: str
) -> None:
    """Otherwise all ranks would be started four times, and each would show the same traceback."""
    Path(script).write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=f"{says}.*\n\nhint: nothing was run"):
        read(reader, script)


def test_a_script_of_another_kind_is_not_judged_by_its_syntax(
    reader: ZygoteClient, tmp_path: Path
) -> None:
    """Method: a folder, and a file without an ending. Python finds out by itself what they are."""
    (tmp_path / "__main__.py").touch()
    (tmp_path / "train").write_text("def f(:")
    for given in (tmp_path, tmp_path / "train"):
        assert read(reader, str(given)).program.script == str(given)


@pytest.mark.parametrize(
    ("own", "named"),
    [
        (["--nproc-per-node", "4"], "--nproc-per-node after the script's name goes"),
        (["--lr", "1", "--nproc_per_node=4", "--spares=1"], "--nproc_per_node, --spares after"),
        (["--resume", "--name", "x"], ""),
    ],
)
def test_options_behind_the_script_that_look_like_ours_are_noted(
    reader: ZygoteClient, script: str, own: list[str], named: str
) -> None:
    """These options belong to the script, as under torchrun. But a run of one rank may not be what
    the user meant.
    """
    options = read(reader, script, *own)
    assert (options.workers, options.program.args) == (1, tuple(own))
    assert bool(options.notes) == bool(named)
    assert all(note.startswith("warning: ") and named in note for note in options.notes)


def test_help_lists_torchruns_flags_and_ours(reader: ZygoteClient) -> None:
    text = read_command_line(["--help"], reader)
    assert isinstance(text, str)
    assert "--max-restarts" in text
    assert "--spares" in text


def test_the_launchers_side_needs_no_torch() -> None:
    code = (
        "import sys, outlast.app.launch.torchrun, outlast.runtime.agent.host; sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_the_messages_of_outlast_can_be_reduced(reader: ZygoteClient, script: str) -> None:
    assert read(reader, script).status == StatusOptions(quiet=False, status_every_s=60.0)
    assert read(reader, "--quiet", "--status-every", "0", script).status == StatusOptions(True, 0.0)
    with pytest.raises(UsageError, match="must be a number of seconds"):
        read(reader, "--status-every", "-1", script)


def test_where_metrics_are_served_is_checked_before_the_run_begins(
    reader: ZygoteClient, script: str
) -> None:
    pytest.importorskip("prometheus_client")
    assert read(reader, script).status.metrics == ""
    asked = ("--metrics-port", "0.0.0.0:9400")
    assert read(reader, *asked, script).status.metrics == "0.0.0.0:9400"
    with pytest.raises(UsageError, match="'many' is not a port, and not HOST:PORT"):
        read(reader, "--metrics-port", "many", script)


def test_a_url_in_keep_says_where_checkpoints_are_copied_to(
    reader: ZygoteClient, script: str
) -> None:
    """Without `disk`, a checkpoint is written whenever one is to be copied. Rates are in bytes per
    second.
    """
    assert read(reader, "--keep", "disk:10min", script).checkpoints.objects is None
    both = read(
        reader, "--keep", "disk:10min, s3://b/run:1h", "--upload-rate", "5MB/s", script
    ).checkpoints
    assert both.objects == ObjectOptions("s3://b/run", Every(seconds=3600.0), 5e6)
    assert (both.every_steps, both.timed) == (None, Every(seconds=600.0))
    alone = read(reader, "--keep", "s3://b/run:1h", script).checkpoints
    assert (alone.every_steps, alone.timed) == (None, Every(seconds=3600.0))
    assert read(reader, "--keep", "gs://b/run:50steps", script).checkpoints.every_steps == 50
    each = read(reader, "--checkpoint-every", "7", "--keep", "az://b/run", script).checkpoints
    assert (each.every_steps, each.objects) == (7, ObjectOptions("az://b/run", Every(steps=1)))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--keep", "s3://b/run"], "does not say how often a checkpoint is written"),
        (["--keep", "disk:never, s3://b/run:step"], "does not say how often"),
        (["--upload-rate", "5MB/s"], "--upload-rate is about a URL"),
        (["--keep", "s3://b/run:1h", "--upload-rate", "5"], "--upload-rate"),
        (["--keep", "s3://b/run:1h", "--upload-rate", "0MB/s"], "--upload-rate"),
        (["--keep", "s4://b/run:1h"], "s4:// is no scheme"),
    ],
)
def test_an_unusable_url_is_refused(
    reader: ZygoteClient, script: str, flags: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        read(reader, *flags, script)
    assert said in str(refused.value)
    assert refused.value.hint
