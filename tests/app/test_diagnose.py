"""`outlast diagnose`: the contract of its JSON, its screen, its page, its exit codes, and what it
stands of bad input.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outlast.app import cli
from outlast.app.diagnosis.diagnose_graph import graph, ranks
from outlast.app.diagnosis.diagnose_text import facts_of, show
from outlast.diagnose.collectives import Blame
from outlast.diagnose.redact import cleaned
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect, Verdict
from outlast.runtime.evidence.reading import ReadDiagnosis
from tests.app.command import outlast, same_as_golden
from tests.evidence import made
from tests.ledger import a_run

KEYS = [
    "class",
    "mechanism",
    "confidence",
    "ranks",
    "suspects",
    "nodes",
    "devices",
    "evidence",
    "refuted_by",
    "next_test",
    "action",
    "reason",
    "others",
    "commands",
    "stacks",
    "timeline",
    "cleared",
    "schema",
]
XID = (
    "[Fri Oct 14 14:56:49 2022] NVRM: Xid (PCI:0000:3b:00): 48, pid=3234, name=python, An"
    " uncorrectable double bit error (DBE) on GPU in the framebuffer\n"
)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
SECRET = "hf_abcdefghijABCDEFGHIJ0123456789"


def diagnose(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line, in this process: a process of its own costs a second."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["diagnose", *map(str, arguments)])
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def verdict(*arguments: str | Path, code: int) -> dict[str, object]:
    done = diagnose(*arguments, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A kernel log with an Xid 48."""
    folder = tmp_path / "node1"
    folder.mkdir()
    (folder / "dmesg.txt").write_text("[Fri Oct 14 14:56:40 2022] usb 1-1: new device\n" + XID)
    return folder


# --- the contract ---------------------------------------------------------------------------------


def test_the_json_has_exactly_the_keys_of_the_contract_and_their_types(node: Path) -> None:
    facts = verdict(node, code=0)
    assert list(facts) == KEYS
    assert facts["class"] in {one.value for one in FailureClass} - {"unknown"}
    assert facts["mechanism"] is None or facts["mechanism"] in {one.value for one in Mechanism}
    assert 0.5 < facts["confidence"] <= 1.0  # type: ignore[operator]
    first = facts["evidence"][0]  # type: ignore[index]
    assert (list(first), first["file"], first["line"], first["role"]) == (
        ["file", "line", "text", "role"],
        "dmesg.txt",
        2,
        "root",
    )
    assert "Xid (PCI:0000:3b:00): 48" in first["text"]


def test_a_hang_without_a_cause_is_unknown_with_its_rank(
    tmp_path: Path,
) -> None:
    facts = verdict(made.hung_job(tmp_path / "dumps"), code=3)
    assert (facts["class"], facts["mechanism"], [one["rank"] for one in facts["ranks"]]) == (
        "unknown",
        "hang",
        [2],
    )  # type: ignore[attr-defined]
    assert 0 <= facts["confidence"] <= 0.5  # type: ignore[operator]


def test_a_missing_dump_makes_a_suspect_and_nobody_guilty(tmp_path: Path) -> None:
    (made.hung_job(tmp_path / "dumps", asleep=2) / "nccl_trace_rank_2").unlink()
    facts = verdict(tmp_path / "dumps", code=3)
    assert facts["ranks"] == []
    assert [one["rank"] for one in facts["suspects"]] == [2]  # type: ignore[attr-defined]


def test_text_json_and_page_end_with_the_same_exit_code(node: Path, tmp_path: Path) -> None:
    dumps = made.hung_job(tmp_path / "dumps")
    for place, code in ((node, 0), (dumps, 3)):
        assert [
            diagnose(place, *more).returncode
            for more in ([], ["--json"], ["--explain"], ["--html", tmp_path / f"{code}.html"])
        ] == [code] * 4


# --- for people -----------------------------------------------------------------------------------


MADE = ReadDiagnosis(
    Verdict(
        FailureClass.HBM,
        Mechanism.EXCEPTION,
        0.93,
        "Memory of a GPU failed 41 s before the first time-out.",
        "drain gpu-12 and reset the GPU",
        ranks=(Blamed(3, 0.93),),
        suspects=(Suspect(7, "no dump, and 2 ranks wait for it"),),
        nodes=("gpu-12",),
        devices=("0000:3b:00.0",),
        evidence=(
            Evidence(
                "node3/kern.log", 812, "NVRM: Xid (PCI:0000:3b:00): 48, " + "x" * 200, Role.ROOT
            ),
            Evidence(
                "rank0.log",
                14_022,
                "[bold]Watchdog[/bold] caught\tcollective\x1b[31m timeout",
                Role.MESSENGER,
            ),
            Evidence("dumps/rank_1", None, "waits for rank 3", Role.EFFECT),
        ),
        refuted_by="no uncorrectable error in nvidia-smi -q -d ECC",
        next_test="dcgmi diag -r 2",
        others=((FailureClass.GPU, 0.04),),
    ),
    Blame(
        edges=(
            (1, 3, "all_reduce 7 of group 0"),
            (2, 3, "all_reduce 7 of group 0"),
            (0, 7, "all_gather 9 of group 1"),
        )
    ),
    (
        "this may be evidence of more than one job: world size 8 in a, 16 in b",
        "not read, a FIFO: rank0.pipe",
    ),
    4,
    70,
    1_234_567_890,
)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_screen_is_as_kept(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text that looks like rich's markup, escapes, and what is too long included."""
    monkeypatch.setenv("COLUMNS", str(columns))
    show(facts_of(MADE, cleaned(MADE.verdict.public())), explain=True)
    same_as_golden(f"diagnose-{columns}.txt", capsys.readouterr().out)


def test_the_screen_is_one_screen_and_has_every_part(node: Path) -> None:
    """Forty kinds of lines, long ones, and notes: at most as many lines as fit; the rest is
    counted.
    """
    lines = [
        f"[Fri Oct 14 14:57:{at:02d} 2022] NVRM: Xid (PCI:0000:3b:{at:02x}): 79, pid=1, GPU has"
        f" fallen off the bus. {'x' * 300}\n"
        for at in range(40)
    ]
    (node / "more.log").write_text("".join(lines))
    for number in range(30):
        (node / f"blob-{number}").write_bytes(os.urandom(300))
    done = diagnose(node)
    screen = done.stdout.splitlines()
    assert len(screen) <= 40
    assert all(len(line) <= 120 for line in screen[3:-1])
    for part in (
        "outlast diagnose: ",
        "Evidence",
        "Do  ",
        "How sure",
        "Next test",
        "binary: blob-0, blob-1, blob-10 and 27 more",
        "end of outlast diagnose",
    ):
        assert part in done.stdout


def test_no_two_blank_lines_follow_each_other(node: Path, tmp_path: Path) -> None:
    """Method: a screen with every part, and one of a log that tells of nothing."""
    (tmp_path / "train.log").write_text("step 1 loss 2.5\n")
    for folder in (node, tmp_path / "train.log"):
        assert "\n\n\n" not in outlast("diagnose", folder).stdout


def test_ranks_are_said_in_spans() -> None:
    assert (ranks([3]), ranks([1, 0, 2, 3, 8, 10, 11])) == ("rank 3", "ranks 0-3, 8, 10, 11")


def test_the_graph_puts_each_rank_as_near_to_the_blame_as_it_waits() -> None:
    edges = [(0, 2, "dp #3"), (1, 3, "dp #4"), (3, 2, "tp #3"), (0, 3, "late")]
    assert graph(edges, blamed=[2], suspects=[9], boxes=False) == [
        "rank 2  (shown guilty)",
        "|- rank 0 waits: dp #3",
        "`- rank 3 waits: tp #3",
        "   `- rank 1 waits: dp #4",
        "rank 9  (suspect)",
    ]


def test_a_circle_and_a_crowd_are_drawn_too() -> None:
    circle = graph([(0, 1, "a"), (1, 0, "b")], blamed=[], suspects=[], boxes=False)
    assert circle == [
        "in a circle: ranks 0, 1",
        "  rank 0 waits for rank 1: a",
        "  rank 1 waits for rank 0: b",
    ]
    crowd = graph(
        [(rank, 5, "world #7") for rank in range(20_000) if rank != 5],
        blamed=[5],
        suspects=[],
        boxes=True,
    )
    assert crowd == ["rank 5  (shown guilty)", "└─ ranks 0-4, 6-19999 wait: world #7"]
    chain = graph(
        [(rank + 1, rank, f"stage {rank}") for rank in range(5_000)],
        blamed=[0],
        suspects=[],
        boxes=True,
    )
    assert chain[-1] == "... and 4,601 more lines"
    assert graph([], blamed=[], suspects=[], boxes=True) == [
        "no rank waits for another, as far as the dumps show"
    ]


def test_the_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from outlast.app.cli import main\ntry: main(['diagnose', '--help'])\nexcept"
        " SystemExit as end: assert end.code == 0\nsys.exit(', '.join(name for name in ('torch',"
        " 'rich', 'numpy', 'sqlite3') if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


def test_a_diagnosis_imports_no_torch(node: Path) -> None:
    program = (
        f"import sys; from outlast.app.cli import main; main(['diagnose', {str(node)!r}]);"
        " sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=50).returncode
        == 0
    )


# --- the page -------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside of <style>."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_marks_in_evidence_are_text(node: Path, tmp_path: Path) -> None:
    """Method: a log line and a file name that are HTML; the page's tags are then those it always
    has, and no attribute names another place.
    """
    evil = "<img src=http://evil.example onerror=alert(1)></pre></td><script>alert(2)</script>"
    (node / "<script>alert(3)<.log").write_text(XID.replace("python", evil) + XID)
    done = diagnose(node, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "base",
        "a",
    }
    assert not any(
        name in ("src", "href", "onerror", "onload") or "http" in (value or "")
        for tag, attributes in page.tags
        for name, value in attributes.items()
        if tag != "meta"
    )
    assert "<script>alert(2)</script>" in page.text, "the line is shown as it stood"
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_the_page_has_the_graph_and_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    diagnose(made.hung_job(tmp_path / "dumps"), "--html", tmp_path / "page.html", "--json")
    text = (tmp_path / "page.html").read_text()
    assert "ranks 0, 1, 3 wait" in text
    assert text.endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dumps", "page.html"]


def test_the_page_never_overwrites_evidence_but_its_own_like(node: Path) -> None:
    before = (node / "dmesg.txt").read_bytes()
    done = diagnose(node, "--html", node / "dmesg.txt")
    assert (done.returncode, (node / "dmesg.txt").read_bytes()) == (2, before)
    assert "outlast has not written it" in done.stderr
    assert [diagnose(node, "--html", node / "page.html").returncode for _ in range(2)] == [0, 0]
    assert diagnose(node, "--html", node / "no" / "page.html").returncode == 2


# --- secrets, escapes, ourselves ------------------------------------------------------------------


def test_no_secret_and_no_escape_reaches_screen_json_or_page(node: Path, tmp_path: Path) -> None:
    """Method: the line that the verdict rests on carries a token, a terminal escape and a mark that
    turns text around.
    """
    (node / "dmesg.txt").write_text(
        XID.replace("name=python", f"name=\x1b]0;owned\x07\u202e --hf-token {SECRET}")
    )
    done = [diagnose(node, *more) for more in ([], ["--json"], ["--html", tmp_path / "page.html"])]
    for text in [one.stdout + one.stderr for one in done] + [(tmp_path / "page.html").read_text()]:
        assert SECRET not in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "\\u202e" in json.loads(done[1].stdout)["evidence"][0]["text"]


def test_an_escape_in_a_file_name_is_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2Jx\x07").write_bytes(os.urandom(400))
    (tmp_path / "\x1b[31mred.log").write_text(XID)
    for done in (
        diagnose(tmp_path),
        diagnose(tmp_path / "\x1b[2Jx\x07"),
        diagnose(tmp_path / "\x1b[2Jnowhere"),
    ):
        assert "\x1b" not in done.stdout + done.stderr


def test_our_own_output_is_no_evidence(node: Path, tmp_path: Path) -> None:
    """Method: a verdict of a real fault, kept in a folder in all forms, within a log too; that
    folder then shows no fault.
    """
    again = tmp_path / "again"
    again.mkdir()
    screen = diagnose(node, "--html", again / "page.html").stdout
    (again / "verdict.json").write_text(diagnose(node, "--json").stdout)
    (again / "session.log").write_text(
        "$ outlast diagnose node1\n" + screen + "$ exit\n" + diagnose(node, "--json").stdout
    )
    facts = verdict(again, code=3)
    assert (facts["class"], facts["evidence"], facts["others"]) == ("unknown", [], [])


# --- bad input ------------------------------------------------------------------------------------


def test_an_empty_folder_is_exit_2_with_a_hint(tmp_path: Path) -> None:
    done = diagnose(tmp_path, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"error: nothing in {tmp_path} can be read as evidence: there are no files\n\nhint: name a"
        " folder with logs"
    )


@pytest.mark.parametrize(
    "arguments", [[], ["nowhere"], ["--jsn", "."], [".", "--json", "--explain"]]
)
def test_a_wrong_command_line_is_exit_2(tmp_path: Path, arguments: list[str]) -> None:
    done = outlast("diagnose", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "\n\nhint: " in done.stderr


class Harm:
    """What a hostile dump asks for: a file that shows that something ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_a_hostile_pickle_is_refused_said_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    """Among good dumps under a dump's name, in every protocol: the others are read, and its rank is
    at most a suspect.
    """
    folder = made.hung_job(tmp_path / "dumps")
    (folder / "nccl_trace_rank_1").write_bytes(
        pickle.dumps(
            {"version": "2.9", "pg_config": Harm(tmp_path / "ran"), "entries": []},
            protocol=protocol,
        )
    )
    done = diagnose(folder, "--json")
    assert done.returncode == 3, done.stderr
    assert not (tmp_path / "ran").exists()
    facts = json.loads(done.stdout)
    assert "nccl_trace_rank_1 cannot be read as a dump" in facts["reason"] + done.stderr
    assert 1 not in [one["rank"] for one in facts["ranks"]]


def test_nothing_but_a_hostile_pickle_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(pickle.dumps(Harm(tmp_path / "ran")))
    done = diagnose(tmp_path, "--json")
    assert (done.returncode, (tmp_path / "ran").exists()) == (3, False)
    assert "Traceback" not in done.stderr


def test_pickle_bombs_end_in_bounded_time(tmp_path: Path) -> None:
    """A memo index of two thousand million, and lists in lists a hundred thousand deep."""
    (tmp_path / "dump_0").write_bytes(
        b"\x80\x02}X\x07\x00\x00\x00versionX\x09\x00\x00\x00pg_config"
        + b"r\xff\xff\xff\x7f"
        + b"s."
    )
    (tmp_path / "dump_1").write_bytes(
        b"\x80\x02}X\x07\x00\x00\x00entriesX\x09\x00\x00\x00pg_config"
        + b"]" * 100_000
        + b"a" * 99_999
        + b"s."
    )
    done = diagnose(tmp_path, "--json")  # which has a time limit
    assert done.returncode == 3, done.stderr


def test_latin_1_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes("Démarré à 3 h\n".encode("latin-1") + XID.encode())
    assert verdict(tmp_path, code=0)["evidence"][0]["line"] == 2  # type: ignore[index]


def test_two_jobs_in_one_folder_are_noticed(tmp_path: Path) -> None:
    for job, size in (("a", 8), ("b", 16)):
        (tmp_path / f"{job}.log").write_text(f"WORLD_SIZE={size} MASTER_PORT=295{size}\n" + XID)
    assert "more than one job: world size 8 in a.log, 16 in b.log" in str(
        verdict(tmp_path, code=0)["reason"]
    )


def test_clocks_hours_apart_are_said(tmp_path: Path) -> None:
    for name, hour in (("a", "03"), ("b", "10")):
        (tmp_path / f"{name}.log").write_text(
            f"2026-01-02 {hour}:00:00 start\n2026-01-02 {hour}:10:00 RuntimeError: CUDA error:"
            " uncorrectable ECC error encountered\n"
        )
    assert "begin 6.8 hours after" in str(verdict(tmp_path, code=0)["reason"])


def test_a_line_of_256_megabytes_is_cut_and_said(tmp_path: Path) -> None:
    with (tmp_path / "a.log").open("wb") as file:
        file.write(b"x" * 100_000)
        file.seek(1 << 28)
        file.write(b"\n" + XID.encode())
    facts = verdict(tmp_path, code=0)
    assert "longer than 65,536 bytes" in str(facts["reason"])
    assert facts["evidence"][0]["line"] == 2  # type: ignore[index]


def test_evidence_in_an_archive_gives_the_same_verdict(node: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "czf", "node1.tgz", "node1"], cwd=tmp_path, check=True, timeout=30)
    packed, plain = verdict(tmp_path / "node1.tgz", code=0), verdict(node, code=0)
    assert packed["evidence"][0]["file"] == "node1.tgz/node1/dmesg.txt"  # type: ignore[index]
    assert {key: packed[key] for key in ("class", "confidence", "devices")} == {
        key: plain[key] for key in ("class", "confidence", "devices")
    }


def test_nothing_is_left_in_the_temporary_folder(node: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "czf", "node1.tgz", "node1"], cwd=tmp_path, check=True, timeout=30)
    (tmp_path / "tmp").mkdir()
    assert outlast("diagnose", tmp_path / "node1.tgz", TMPDIR=str(tmp_path / "tmp")).returncode == 0
    assert not list((tmp_path / "tmp").iterdir())


# --- what outlast and torchelastic recorded -------------------------------------------------------


def test_a_run_folder_of_ours_is_evidence(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    before = sorted((one.name, one.stat().st_mtime_ns) for one in path.rglob("*"))
    facts = verdict(path, code=3)
    assert facts["class"] == "unknown", (
        "a hang that the ledger lays to the program says no more than that"
    )
    assert facts["others"][0]["class"] == "user_code"  # type: ignore[index]
    assert facts["ranks"] == [{"rank": 0, "confidence": 0.95}]
    assert "ledger.db" in {one["file"] for one in facts["evidence"]}  # type: ignore[attr-defined]
    assert sorted((one.name, one.stat().st_mtime_ns) for one in path.rglob("*")) == before, (
        "evidence is not written to"
    )


def test_a_sqlite_file_of_others_is_said_and_not_read(tmp_path: Path, node: Path) -> None:
    """Method: tables of a ledger's names that are views of an endless query."""
    import sqlite3

    database = sqlite3.connect(node / "ledger.db")
    for name in (
        "meta",
        "sessions",
        "snapshot",
        "generations",
        "lives",
        "interruptions",
        "steps",
        "events",
    ):
        database.execute(
            f"CREATE VIEW {name} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
            " SELECT x FROM n"
        )
    database.commit()
    database.close()
    done = diagnose(node)
    assert done.returncode == 0
    assert "a SQLite file that is not a ledger of outlast: ledger.db" in done.stdout


def test_an_error_file_of_torchelastic_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_bytes(
        made.error_file(
            'Traceback (most recent call last):\n  File "train.py", line 3, in'
            " <module>\nRuntimeError: CUDA error: uncorrectable ECC error encountered"
        )
    )
    facts = verdict(tmp_path, code=0)
    assert (facts["class"], facts["evidence"][0]["line"]) == ("hbm", None)  # type: ignore[index]
