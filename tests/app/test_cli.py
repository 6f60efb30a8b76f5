"""app/cli.py: a fast start, errors that say what to do, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from outlast.app import cli
from outlast.app.launch.run import _first_zygote
from outlast.errors import CapacityError
from tests.app.command import outlast, outlast_anew
from tests.ledger import a_run


def test_help_names_every_command_and_loads_neither_torch_nor_rich() -> None:
    program = (
        "import sys; from outlast.app.cli import main\ntry: main(['--help'])\nexcept SystemExit as"
        " end: assert end.code == 0\nsys.exit(', '.join(name for name in ('torch', 'rich', 'numpy',"
        " 'sqlite3') if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in cli.COMMANDS)


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    """torch cannot be loaded there, and says nothing of the reason."""
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    words = ["sh", "-c", shell, "sh", str(gone), sys.executable, "-m", "outlast", "run", "x.py"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    assert done.stderr == (
        "error: the working folder has been removed\n\nhint: change into a folder that exists\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to mount (root)")
def test_a_run_without_proc_ends_at_once_and_says_so(tmp_path: Path) -> None:
    """As in a chroot that was made by hand."""
    shell = 'mount -t tmpfs none /proc && exec "$@"'
    command = [sys.executable, "-m", "outlast", "run", "x.py"]
    words = ["unshare", "--mount", "sh", "-c", shell, "sh", *command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    assert done.stderr.startswith("error: /proc is not mounted"), done
    assert "hint: mount it" in done.stderr, done


def test_an_interpreter_that_may_not_be_run_is_named_and_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a file that nobody may execute stands in for the interpreter."""
    file = tmp_path / "python"
    file.touch(mode=0o644)
    monkeypatch.setattr(sys, "executable", str(file))
    with pytest.raises(CapacityError, match="cannot be started: Permission denied") as caught:
        _first_zygote()
    assert caught.value.hint == f"may this user run {file}?"


def test_help_is_a_command_as_well() -> None:
    assert outlast_anew("help").stdout == outlast_anew("--help").stdout
    assert outlast_anew("help", "status").stdout.startswith("usage: outlast status")


def test_version_is_the_packages() -> None:
    assert outlast_anew("--version").stdout == f"outlast {version('outlast')}\n"


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["reprot"], "there is no command 'reprot'", "did you mean `outlast report`?"),
        (["train.py"], "there is no command 'train.py'", "did you mean `outlast run train.py`?"),
        (["watch"], "there is no command 'watch'", "did you mean `outlast top`?"),
        (
            ["--nproc-per-node", "4", "train.py"],
            "no command stands in front of --nproc-per-node",
            "write the command first, as in `outlast run --nproc-per-node 4 train.py`",
        ),
        (
            ["check", "--workers", "2", "train.py"],
            "unknown option --workers",
            "`--nproc-per-node N` says how many ranks there are",
        ),
        (["frobnicate"], "there is no command 'frobnicate'", "`outlast --help` lists the commands"),
        (
            ["report", "--jsn"],
            "unknown option --jsn",
            "did you mean --json?",
        ),
        (
            ["status", "a", "b"],
            "unrecognized arguments: b",
            "`outlast status --help` lists the options",
        ),
        (
            ["report", "--js"],
            "unknown option --js",
            "`outlast report --help` lists the options",
        ),
        (
            ["report", "no-such-run"],
            "there is no run no-such-run",
            "name a run folder, or leave RUN out for the newest one under runs/",
        ),
        (
            ["report"],
            "there is no run under runs/",
            "start one with `outlast run script.py`, name its folder, or go to the folder in which"
            " it was started: this is FOLDER",
        ),
    ],
)
def test_a_wrong_command_line_is_an_error_with_a_hint_and_exit_code_2(
    tmp_path: Path, arguments: list[str], error: str, hint: str
) -> None:
    done = outlast_anew(*arguments, cwd=tmp_path)
    hint = hint.replace("FOLDER", os.path.realpath(tmp_path))
    assert done.stderr == f"error: {error}\n\nhint: {hint}\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_a_bare_outlast_shows_its_help_and_is_a_usage_error() -> None:
    done = outlast_anew()
    assert done.returncode == 2
    assert done.stdout.startswith("usage: outlast")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    """As in `outlast report | head -0`.

    Method: the other end of the pipe is closed before anything is written.
    """
    path = a_run.ended_run(tmp_path)
    command = subprocess.Popen(
        [sys.executable, "-m", "outlast.app.cli", "report", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert (command.stderr.read(), command.wait(30)) == ("", 0)
    command.stderr.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_onto_a_full_disk_is_an_error_in_words(tmp_path: Path, unbuffered: str) -> None:
    """As in `outlast report > FILE`. A buffer is written only as the command ends."""
    path = a_run.ended_run(tmp_path)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "outlast.app.cli", "report", str(path)],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    said = "error: the output cannot be written: No space left on device"
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, said)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_damaged_ledger_is_exit_code_1(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    (path / "ledger.db").write_bytes(b"damaged by somebody" * 100)
    done = outlast_anew("report", path)
    assert done.returncode == 1
    assert "is not a ledger" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_of_the_table_explains_itself(name: str) -> None:
    """Method: `outlast NAME --help` in a process of its own."""
    done = outlast_anew(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: outlast {name}")


@pytest.mark.parametrize("command", ["status", "report", "top", "serve", "export"])
def test_a_file_in_place_of_a_run_folder_is_called_a_file(tmp_path: Path, command: str) -> None:
    """The error said that there is no run of this name, although a file was there."""
    file = tmp_path / "train.log"
    file.write_text("step 1\n")
    further = (tmp_path / "tables",) if command == "export" else ()
    done = outlast(command, file, *further)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file} is a file, and not a run folder" in done.stderr
    assert "there is no run" not in done.stderr
    assert file.read_text() == "step 1\n"


@pytest.mark.parametrize("command", ["status", "report", "top"])
def test_a_run_without_a_ledger_yet_says_when_to_ask_again(tmp_path: Path, command: str) -> None:
    """Between its folder and its ledger, a starting run was called no folder of a run."""
    path = a_run.ended_run(tmp_path)
    (path / "ledger.db").unlink()
    done = outlast(command, path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no ledger at" in done.stderr
    assert "ask again" in done.stderr
