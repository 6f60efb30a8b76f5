"""`outlast plan` through the real command: the contract's JSON, the screen as golden files, what
cannot be read, and the page about it.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from outlast.app import cli
from outlast.app.charts_file import can_draw
from outlast.planner.cluster_file import parse
from outlast.planner.resolve import resolve
from tests.app.command import outlast, same_as_golden
from tests.ledger import a_run

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "how-to" / "plan-a-run.md"
CONTRACT = {
    "inputs",
    "ettr",
    "mttf_s",
    "interval_s",
    "save_s",
    "overhead",
    "spares",
    "redundancy",
    "binding",
    "sensitivity",
}
LAB = ("--preset", "lab-8")  # few failures: quickly simulated
FEW = ("--replicas", "32")
needs_matplotlib = pytest.mark.skipif(
    not can_draw(), reason="matplotlib is not installed: pip install 'outlast[plot]'"
)


def called(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, in this process: the interpreter's start is most of what a
    command takes.
    """
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(["plan", *arguments])
    return code, out.getvalue(), errors.getvalue()


def plan(*arguments: str) -> dict[str, Any]:
    code, out, errors = called(*arguments, "--json")
    assert (code, errors) == (0, "")
    found: dict[str, Any] = json.loads(
        out, parse_constant=lambda name: pytest.fail(f"{name} in the JSON")
    )
    return found


def screen(*arguments: str) -> str:
    done = outlast("plan", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


# --- the contract ---------------------------------------------------------------------------------


def test_the_json_has_the_names_of_the_contract_and_each_input_its_source() -> None:
    large = ("--gpus", "16384", "--days", "54", "--params", "405e9", "--mttf", "50000h")
    facts = plan(*large, *FEW)
    assert set(facts) >= CONTRACT
    assert set(facts["ettr"]) == {"mean", "mean_se", "low", "high"}
    assert facts["ettr"]["low"] < facts["ettr"]["mean"] < facts["ettr"]["high"]
    assert all(one["source"] and one["said"] for one in facts["inputs"].values())
    assert (facts["inputs"]["job.gpus"]["source"], facts["inputs"]["job.gpus"]["origin"]) == (
        "--gpus",
        "flag",
    )
    assert facts["inputs"]["recovery.regroup"]["origin"] == "default"


def test_epoch_ais_example_comes_out_as_published() -> None:
    """A failure each 3.05 h, a save of 2.43 s, every 3.9 min, overhead 2.1 %."""
    facts = plan(
        "--gpus",
        "16384",
        "--days",
        "54",
        "--params",
        "405e9",
        "--mttf",
        "50000h",
        "--replicas",
        "256",
    )
    assert facts["mttf_s"] / 3600 == pytest.approx(3.05, abs=0.005)
    assert facts["save_s"] == pytest.approx(2.43)
    assert facts["interval_s"]["storage"] / 60 == pytest.approx(3.9, abs=0.1)
    assert facts["overhead"] == pytest.approx(0.021, abs=5e-4)


def test_scale_adds_rows_and_the_most_gpus_of_each_assumption() -> None:
    facts = plan("--preset", "epoch", "--scale", "1e4:1e5", *FEW)
    assert [row["gpus"] for row in facts["scale"]] == [10_000, 30_000, 100_000]
    assert all({"gpus", "ettr", "mttf_s", "binding"} <= set(row) for row in facts["scale"])
    assert facts["scale"][-1]["mttf_s"] == pytest.approx(1800.0)
    assert facts["max_gpus"]["storage as it is, fixed model"] == pytest.approx(72e6, rel=0.01)
    assert facts["max_gpus"]["memory of peers, full bisection, fixed model"] is None  # no cap


def test_the_same_seed_is_the_same_answer_on_one_core_and_on_two() -> None:
    one, two, other = (
        plan(*LAB, "--cores", cores, "--seed", seed)
        for cores, seed in (("1", "3"), ("2", "3"), ("2", "4"))
    )
    assert one == two
    assert one["ettr"] != other["ettr"]


def test_two_units_of_a_bandwidth_are_told_apart_and_echoed() -> None:
    si, binary = (plan(*LAB, "--bandwidth", text) for text in ("2TB/s", "2TiB/s"))
    assert (
        si["inputs"]["tier.disk.bandwidth"]["said"],
        binary["inputs"]["tier.disk.bandwidth"]["said"],
    ) == ("2TB/s", "2TiB/s")
    assert si["inputs"]["tier.disk.bandwidth"]["value"] / binary["inputs"]["tier.disk.bandwidth"][
        "value"
    ] == pytest.approx(1e12 / 2**40)


def test_flags_are_short_for_inputs() -> None:
    flags = (
        "--gpus",
        "64",
        "--days",
        "5h",
        "--params",
        "1B",
        "--gpus-per-node",
        "4",
        "--nodes-per-rack",
        "3",
        "--step",
        "2s",
        "--mttf",
        "100h",
        "--save",
        "3s",
        "--interval",
        "10min",
        "--detect",
        "mean=5s",
        "--restart",
        "median=1min,p95=2min",
        "--take",
        "7s",
        "--spares",
        "2",
        "--repair",
        "8h",
        "--price",
        "2.5/h",
        "--set",
        "repair.wrong=10%",
    )
    inputs = plan(*LAB, *flags)["inputs"]
    said = {
        path: one["said"]
        for path, one in inputs.items()
        if one["origin"] == "flag" and not path.endswith(".mttf")
    }
    assert said == {
        "job.gpus": "64",
        "job.duration": "5h",
        "job.parameters": "1B",
        "job.gpus_per_node": "4",
        "job.nodes_per_rack": "3",
        "job.step": "2s",
        "tier.disk.stall": "3s",
        "tier.disk.interval": "10min",
        "recovery.detect": '{ mean = "5s" }',
        "recovery.regroup": '{ median = "1min", p95 = "2min" }',
        "recovery.take": "7s",
        "repair.spares": "2",
        "repair.time": "8h",
        "money.gpu_hour": "2.5/h",
        "repair.wrong": "10%",
    }
    # of a node of four GPUs
    assert inputs["failure.hardware.mttf"]["value"] == pytest.approx(100 * 3600 / 4)


# --- the screen -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("plan-lab.txt", LAB),
        ("plan-scale.txt", ("--preset", "epoch", "--scale", "1e4:1e6", "--replicas", "256")),
        (
            "plan-searched.txt",
            (*LAB, "--optimise", "interval", "--sensitivity", "--power", "--price", "2/h"),
        ),
    ],
)
def test_what_is_shown(name: str, arguments: tuple[str, ...]) -> None:
    same_as_golden(name, screen(*arguments))


def test_the_answer_fits_a_screen() -> None:
    lines = screen(*LAB).splitlines()
    assert len(lines) <= 45
    assert all(line == line.rstrip() for line in lines)


def test_every_input_is_listed_with_its_source() -> None:
    text = screen(*LAB, "--inputs")
    facts = plan(*LAB)
    listed = text[text.index("Inputs:") :]
    assert all(
        f"  {path} " in listed and one["source"] in listed for path, one in facts["inputs"].items()
    )


def test_losses_that_a_placement_survives_are_counted_and_named() -> None:
    """Eight nodes: each keeps the copies of the node before it, the first one those of the last."""
    asked = (*LAB, *FEW, "--gpus", "64", "--nodes-per-rack", "4", "--placement", "peers=1:step")
    asked = (*asked, "--domains", "none")
    text, facts = screen(*asked), plan(*asked)["placement"]
    assert "Losses that --keep peers=1 survives, of 8 nodes in 2 domains:" in text
    assert "  one node         all 8\n" in text
    assert "20 of 28; not 0 and 1, 0 and 7, 1 and 2, 2 and 3, 3 and 4, 4 and 5 and 2 more" in text
    assert "  a whole domain   none of 2\n" in text
    assert "The run is not told of domains" in text
    assert facts["one_node"] == {"of": 8, "not_survived": []}
    assert facts["two_nodes"]["of"] == 28
    assert facts["two_nodes"]["not_survived"][-1] == [6, 7]
    assert facts["one_domain"] == {"of": 2, "not_survived": [0, 1]}
    few = screen(*LAB, *FEW, "--gpus", "32", "--placement", "parity=4+2")
    assert "  none: it takes 6 nodes with ranks, and there are 4\n" in few
    few = screen(*LAB, *FEW, "--gpus", "32", "--placement", "peers=4")
    assert "  none: it takes 5 nodes with ranks, and there are 4\n" in few


def test_two_copies_survive_any_two_losses() -> None:
    asked = (*LAB, *FEW, "--gpus", "64", "--nodes-per-rack", "2", "--placement", "peers=2")
    text = screen(*asked)
    assert "Losses that --keep peers=2 survives, of 8 nodes in 4 domains:" in text
    assert "  two at once      all 28\n" in text


def test_a_run_that_is_told_of_domains_survives_their_loss() -> None:
    """Copies of a node of one rack lie on a node of the other."""
    asked = (*LAB, *FEW, "--gpus", "64", "--placement", "peers=1")
    text = screen(*asked, "--nodes-per-rack", "4")
    assert "  a whole domain   all 2\n" in text
    assert "A run has to be told (--node-domain)." in text
    facts = plan(*asked, "--domains", "5,3")["placement"]
    assert (facts["domains"], facts["placed_by_domain"]) == ([5, 3], True)
    assert facts["one_domain"] == {"of": 2, "not_survived": [0]}


# --- files ----------------------------------------------------------------------------------------


def test_a_plan_is_written_as_a_cluster_file_that_plans_the_same(tmp_path: Path) -> None:
    done = outlast("plan", *LAB, "--gpus", "16", "--write", "ours.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        "wrote the cluster file 'ours.toml'\n",
    )
    assert parse((tmp_path / "ours.toml").read_text(), source="x").value("job.gpus") == 16
    one, other = plan("--cluster", str(tmp_path / "ours.toml")), plan(*LAB, "--gpus", "16")
    assert one["ettr"] == other["ettr"]
    again = outlast("plan", *LAB, "--write", "ours.toml", cwd=tmp_path)
    assert (again.returncode, "exists" in again.stderr) == (2, True)


def test_a_ledger_is_planned_with_as_calibrate_reads_it(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    facts = plan("--ledger", str(path), "--days", "1h", *FEW)
    assert outlast("calibrate", str(path), "--out", str(tmp_path / "c.toml")).returncode == 0
    beside = plan("--cluster", str(tmp_path / "c.toml"), "--days", "1h", *FEW)
    assert facts["ettr"] == beside["ettr"]
    assert facts["inputs"]["recovery.detect"]["origin"] == "ledger"
    assert facts["mttf_s"] == pytest.approx(beside["mttf_s"])


def test_a_page_is_one_file_that_refers_to_nothing_and_obeys_nobody(tmp_path: Path) -> None:
    """Method: a cluster whose name and sources are markup; and a page that exists but is not ours
    is left alone.
    """
    evil = '<script>alert("x")</script><img src=https://example.com>'
    text = (
        (HOME / "src/outlast/planner/presets/lab-8.toml")
        .read_text()
        .replace('name = "a box of 8 GPUs"', f"name = '{evil}'")
    )
    (tmp_path / "evil.toml").write_text(
        text.replace("assumption: a part is ordered", evil.replace('"', "'"))
    )
    done = outlast(
        "plan", "--cluster", "evil.toml", "--sensitivity", "--html", "page.html", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert _references(page) == []
    assert "default-src 'none'" in page
    assert "alert(&quot;x&quot;)" in page
    (tmp_path / "theirs.html").write_text("<p>evidence</p>")
    assert outlast("plan", *LAB, "--html", "theirs.html", cwd=tmp_path).returncode == 2
    assert (tmp_path / "theirs.html").read_text() == "<p>evidence</p>"


def _references(page: str) -> list[str]:
    """Values of attributes that a browser would fetch; those within the page apart."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(
                value or ""
                for name, value in attrs
                if name.split(":")[-1] in ("src", "href", "data", "action")
                and not (value or "").startswith("#")
            )

    Reader().feed(page)
    return found


@needs_matplotlib
@pytest.mark.parametrize("name", ["chart.svg", "chart.png"])
def test_charts_go_into_one_file(tmp_path: Path, name: str) -> None:
    done = outlast("plan", *LAB, "--sensitivity", "--chart", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).stat().st_size > 1000


def test_a_terminal_is_told_nothing_that_it_obeys() -> None:
    code, _, errors = called(*LAB, "--set", "job.gpus=\x1b[31m8")
    assert code == 2
    assert "\x1b" not in errors


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--gpus", "0"], "--gpus is '0', which is not above 0", "16384"),
        (["--gpus", "-8"], "--gpus is '-8', which is not above 0", ""),
        (["--gpus", "nan"], "--gpus is 'nan', which is not a finite number", ""),
        (["--days", "inf"], "--days is 'inf', which is not a finite number", ""),
        (
            ["--params", "405GB"],
            "--params is '405GB', which is a number of bytes",
            "did you mean 405B?",
        ),
        (
            ["--bandwidth", "2TB"],
            "--bandwidth is '2TB', which is a number of bytes",
            "did you mean 2TB/s?",
        ),
        (["--restart", "3"], "--restart is '3', which has no unit", "3s, 3min or 3h"),
        (["--spares", "9999"], "more spares than nodes", ""),
        (["--preset", "llama"], "there is no preset 'llama'", "did you mean 'llama3-405b'?"),
        (["--preset", "epoch", "--cluster", "x.toml"], "both say what to begin with", ""),
        (["--cluster", "missing.toml"], "missing.toml cannot be read", ""),
        (["--ledger", "missing"], "there is no run missing", ""),
        (["--set", "job.gpu=8"], "there is no input 'job.gpu'", "did you mean 'job.gpus'?"),
        (["--set", "job.gpus"], "sets nothing", "--set tier.storage.stall=2s"),
        (["--interval", "peers=3s"], "there is no input 'tier.peers.interval'", ""),
        (["--scale", "1e8:1e3"], "low end is not less", "did you mean 1e3:1e8?"),
        (["--scale", "1e3:1e12"], "the largest is 1,000,000,000 GPUs", ""),
        (["--optimise", "speed"], "'speed' is none of interval, tiers, spares, redundancy", ""),
        (["--budget", "2%"], "--budget limits what --optimise may choose", ""),
        (
            ["--optimise", "spares", "--budget", "2M"],
            "needs the price of a GPU-hour",
            "--price 2.5/h",
        ),
        (["--placement", "disk:10min"], "names nothing there", "--placement parity=4+2"),
        (["--placement", "peers=65"], "64 other nodes at most", "any C nodes"),
        (["--domains", "4,4"], "--domains says where --placement may put", "--domains 4,4,2"),
        (["--placement", "peers=1", "--domains", "1"], "the domains have 1 nodes", "4,4,2"),
        (["--placement", "peers=1", "--domains", "4,x"], "--domains", ""),
        (["--chart", "chart.pdf"], "charts are drawn as svg or png", ""),
        (["--replicas", "1"], "--replicas is 1", ""),
        (["--nope"], "unknown option --nope", "`outlast plan --help`"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_hint_and_exit_code_2(
    arguments: list[str], error: str, hint: str
) -> None:
    code, out, errors = called(*arguments)
    said, _, hinted = errors.partition("\n\nhint: ")
    assert (code, out) == (2, "")
    assert error in said
    assert hint in hinted


def test_an_empty_ledger_is_an_error_that_says_what_is_missing(tmp_path: Path) -> None:
    """A run in which no step was ever committed has watched nothing."""
    folder = tmp_path / "empty"
    folder.mkdir()
    done = outlast("plan", "--ledger", str(folder), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error:" in done.stderr


def test_a_run_without_progress_is_an_answer_with_exit_code_0() -> None:
    facts = plan("--mttf", "10min", "--gpus", "1024", *FEW)
    assert facts["ettr"]["mean"] < 1e-3
    assert facts["binding"] == "restart"
    assert all(math.isfinite(value) for value in facts["ettr"].values())


# --- start ----------------------------------------------------------------------------------------


def test_help_comes_without_numpy() -> None:
    """What takes long to import is imported once it is needed; how long it all takes is a benchmark
    (benchmarks/startup.py).
    """
    program = (
        "import sys; from outlast.app.planning.plan import main\ntry: main(['--help'])\n"
        "except SystemExit: pass\n"
        "\nsys.exit(', '.join(name for name in ('torch', 'rich', 'numpy', 'matplotlib') if"
        " name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


# --- the page -------------------------------------------------------------------------------------


def test_every_command_of_the_page_is_read() -> None:
    """Method: each line of the page's shell blocks that begins with `outlast plan`, with all that
    would take time or files left out of it.
    """
    commands = [
        line.split("#")[0].strip()
        for line in PAGE.read_text().splitlines()
        if line.startswith("outlast plan ")
    ]
    assert len(commands) >= 6
    from outlast.app.planning.plan import parser

    for command in commands:
        parser().parse_args(command.replace("\\", "").split()[2:])


def test_the_cluster_file_of_the_page_is_one() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    scenario = resolve(parse(text, source="docs/how-to/plan-a-run.md")).scenario
    assert [tier.name for tier in scenario.tiers] == ["peers", "storage"]


def test_every_chart_of_the_page_is_there_and_its_command_is_beside_it() -> None:
    text = PAGE.read_text()
    charts = re.findall(r"!\[[^\]]+\]\((plan-a-run/[\w-]+\.svg)\)", text)
    assert len(charts) >= 3
    for chart in charts:
        assert (PAGE.parent / chart).read_text().startswith("<?xml")
        assert f"--chart docs/how-to/{chart}" in text
