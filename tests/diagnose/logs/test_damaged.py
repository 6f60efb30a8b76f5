"""Each reader of text by itself: what its program prints, whole and damaged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.lines import TEXT_CHARACTERS
from outlast.diagnose.logs.metrics import Csv, StepTimes, exposed
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack
from tests.diagnose._torchrun import failed, failure_table

TABLE = failure_table(
    first=failed(
        rank=1, pid=11, exit_code=-9, said="Signal 9 (SIGKILL) received by PID 11", second=5
    ),
    other=failed(
        rank=3, pid=13, exit_code=-15, said="Signal 15 (SIGTERM) received by PID 13", second=6
    ),
)
SPY = """Process 70: /usr/bin/python3 -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 70 (idle): "MainThread"
    _PollLikeSelector.select (selectors.py:415)
    _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1291)
    main (train.py:25)
Thread 71 (active+gil): "Thread-1 (beat)"
    beat (watch.py:3)
"""
FAULT = """Timeout (0:00:30)!
Thread 0x00007f1617fff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f163cfc5b80 (most recent call first):
  File "/srv/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/srv/train.py", line 80 in <module>
"""
DCGM = """# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="5",UUID="GPU-b",device="nvidia5",Hostname="n1"} 79
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="5",UUID="GPU-b",device="nvidia5",Hostname="n1"} 1
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 41
"""
SMI = """index, pci.bus_id, temperature.gpu, clocks_event_reasons.hw_thermal_slowdown, \
ecc.errors.uncorrected.volatile.total
0, 00000000:18:00.0, 41, Not Active, 0
1, 00000000:2A:00.0, 93, Active, 4
"""
STEPS = "".join(
    f" iteration {at:8}/ 5000 | elapsed time per iteration (ms): {1000 if at < 30 else 1400}.0 |"
    " loss: 2.1\n"
    for at in range(40)
)
SLURM = """srun: error: hgx-041: task 12: Killed
slurmstepd: error: Detected 1 oom_kill event in StepId=88123.0. Some of the step tasks have been \
OOM Killed.
slurmstepd: error: *** STEP 88123.0 ON hgx-017 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE \
FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0
"""
KUBE = """      State:          Terminated
        Reason:       OOMKilled
        Exit Code:    137
2m  Normal   NodeNotReady  node/ip-10-0-41-7  Node ip-10-0-41-7 status is now: NodeNotReady
3m  Warning  Evicted       pod/worker-2       The node was low on resource: memory.
"""
RERUN = """Rank 3, node n1, device 3, iteration #7: Unexpected result nan (message='found NaN in \
local grad norm')
Rank 3, node n1, device 3, iteration #7: First rerun: unexpected result is not reproducible \
within the tolerance
Rank 3, node n1, device 3, iteration #7: Possible transient error!
"""
READERS = {
    "torchrun's table": (TABLE, {"elastic.first_failure", "elastic.other_failure"}),
    "py-spy": (SPY, {"stack.loader"}),
    "faulthandler": (FAULT, {"stack.waiting"}),
    "DCGM": (DCGM, {"xid.79", "metric.hbm"}),
    "nvidia-smi": (SMI, {"metric.heat"}),
    "step times": (STEPS, {"metric.slower"}),
    "Slurm": (SLURM, {"slurm.kill", "slurm.oom", "slurm.node_failure"}),
    "Kubernetes": (KUBE, {"kube.oom", "exit.kill", "kube.node_lost", "kube.evicted_memory"}),
    "Megatron": (RERUN, {"rerun.transient"}),
}
EACH = pytest.mark.parametrize("reader", READERS)


def read(lines: list[bytes]) -> list[Finding]:
    return list(read_lines(lines, name="log"))


@EACH
def test_what_a_program_prints_is_read(reader: str) -> None:
    text, rules = READERS[reader]
    assert rules <= {one.rule for one in read(text.encode().splitlines(keepends=True))}


@st.composite
def damaged(draw: st.DrawFn, text: str) -> list[bytes]:
    """Lines lost, doubled, moved, cut, joined, with labels before them, or with other bytes in
    them: what becomes of a log on its way.
    """
    lines = text.encode().splitlines(keepends=True)
    for _ in range(draw(st.integers(0, 5))):
        if not lines:
            break
        at, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        cut = draw(st.integers(0, len(lines[at])))
        match draw(
            st.sampled_from(["lose", "double", "move", "cut", "join", "label", "bytes", "number"])
        ):
            case "lose":
                del lines[at]
            case "double":
                lines.insert(other, lines[at])
            case "move":
                lines.insert(other, lines.pop(at))
            case "cut":
                lines[at] = lines[at][:cut]
            case "join":
                lines[at] = lines[at].rstrip(b"\n") + lines[other]
            case "label":
                lines[at] = (
                    draw(
                        st.sampled_from(
                            [b"[rank7]: ", b"3: ", b"\x1b[31m", b"2026-01-02T03:04:05Z n9 app[3]: "]
                        )
                    )
                    + lines[at]
                )
            case "bytes":
                lines[at] = (
                    lines[at][:cut] + draw(st.binary(min_size=1, max_size=8)) + lines[at][cut:]
                )
            case "number":
                number = draw(
                    st.sampled_from(
                        [
                            b"-1",
                            b"99999999999999999999",
                            b"nan",
                            b"1e400",
                            b"0x7f",
                            b"\xd9\xa3",
                            b"",
                        ]
                    )
                )
                lines[at] = b" ".join(
                    number if word[-1:].isdigit() else word for word in lines[at].split(b" ")
                )
    return lines


@EACH
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_output_never_raises_and_quotes_what_is_there(
    reader: str, data: st.DataObject
) -> None:
    """Each line that is shown is found in its file, at the line that is named."""
    lines = data.draw(damaged(READERS[reader][0]))
    for one in read(lines):
        assert one.rule in RULES
        assert len(one.evidence.text) <= TEXT_CHARACTERS
        assert one.rank is None or 0 <= one.rank < 10**7
        assert one.evidence.line is not None
        there = lines[one.evidence.line - 1].decode("utf-8", "replace")
        shown = (
            one.evidence.text.partition(' "MainThread"')[0]
            if isinstance(one, Stack)
            else one.evidence.text
        )
        assert shown[:20].strip("\x1b") in there or shown.split()[-1][:20] in there, one


@given(
    st.lists(st.text(max_size=30), max_size=12),
    st.lists(st.lists(st.text(max_size=12), max_size=12), max_size=8),
)
def test_a_table_of_any_cells_gives_rules_that_exist(
    header: list[str], rows: list[list[str]]
) -> None:
    table = Csv()
    table.begin(", ".join([*header, "temperature.gpu"]).lower())
    for row in rows:
        got = table.feed(", ".join([*row, "95"]).lower())
        assert got is None or got[0] in RULES


@given(
    st.sampled_from(["xid_errors", "row_remap_failure", "gpu_temp", "thermal_violation", "x"]),
    st.one_of(st.floats().map(repr), st.text(max_size=12)),
)
def test_a_sample_of_any_value_is_a_known_rule_or_nothing(field: str, value: str) -> None:
    got = exposed(f'dcgm_fi_dev_{field}{{gpu="3"}} {value}'.lower())
    assert got is None or (got[0].startswith("xid.") and got[0][4:].isdigit()) or got[0] in RULES


@given(st.lists(st.floats(0, 1e9), max_size=60))
def test_steps_are_slower_only_where_a_later_one_took_longer(
    times: list[float],
) -> None:
    """The first steps are the measure, whatever their length."""
    series = StepTimes()
    for at, time_s in enumerate(times):
        line = f"step time: {time_s:.3f}".encode()
        series.feed(at + 1, line, line)
    slower = series.slower()
    if slower is not None:
        assert slower[2] > 1
        assert times[slower[0] - 1] > min(times)
