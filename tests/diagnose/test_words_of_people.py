"""Notes, mails and tickets that people lay beside the logs: what they recall is not what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose._written import verdict_of

STEPS = "".join(f"2026-05-11 03:00:{at:02d},000 INFO step={at} loss=2.{at}\n" for at in range(60))
RECALLED = {
    "notes.txt": "Same job as in March. Back then node12 had Xid 79 (GPU has fallen off the bus),\n"
    "and the vendor swapped the card. No idea what it is today.\n",
    "mail/ticket-4411.eml": "Hi team,\nthe run stopped again. Last week we saw CUDA error:"
    " uncorrectable ECC error encountered\non gpu-7, that one was RMA'd.\nthanks\nJo\n",
    "what_happened": "i restarted it twice, same as on tuesday when the nccl watchdog said\n"
    "IBV_WC_RETRY_EXC_ERR and they swapped the cable\nyesterday it ran fine\n",
    "n3-todo.txt": "- ask about n3, it had an uncorrectable ECC error\n- rerun without n3\n",
}


@pytest.mark.parametrize("name", RECALLED)
def test_an_earlier_incident_that_a_person_recalls_decides_nothing(
    tmp_path: Path, name: str
) -> None:
    got = verdict_of(tmp_path, {"train.log": STEPS, name: RECALLED[name]})
    assert got.failure_class.value == "unknown"
    assert "a person wrote" in got.reason


@pytest.mark.parametrize("name", RECALLED)
def test_what_a_person_recalls_takes_nothing_from_the_log(tmp_path: Path, name: str) -> None:
    """The log's own line is a weak one, which any rival would outweigh."""
    own = "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    alone = verdict_of(tmp_path / "alone", {"train.log": STEPS + own})
    got = verdict_of(tmp_path / "both", {"train.log": STEPS + own, name: RECALLED[name]})
    assert got.failure_class is alone.failure_class
    assert got.confidence == alone.confidence


def test_a_line_of_a_log_that_a_person_pasted_counts(tmp_path: Path) -> None:
    pasted = (
        "Hi, I saw this on n3 and have no idea what to do:\n"
        "[Mon May 11 03:01:02 2026] NVRM: Xid (PCI:0000:5d:00): 79, pid=110, name=python, GPU has"
        " fallen off the bus.\nthanks\n"
    )
    got = verdict_of(tmp_path, {"train.log": STEPS, "notes.txt": pasted})
    assert (got.failure_class.value, got.devices) == ("gpu", ("0000:5d:00",))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        (
            "smi.txt",
            "Unable to determine the device handle for GPU 0000:5D:00.0: GPU is lost.",
            "gpu",
        ),
        (
            "notes",
            "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device",
            "storage",
        ),
        (
            "err",
            "You are using a model of type gpt2. We recommend to use the fast tokenizer.\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
            "gpu_oom",
        ),
    ],
)
def test_what_programs_print_in_sentences_is_no_remark(
    tmp_path: Path, name: str, text: str, named: str
) -> None:
    got = verdict_of(tmp_path, {name: text + "\n"})
    assert got.failure_class.value == named


def test_texts_that_a_model_writes_make_no_notes_of_a_log(tmp_path: Path) -> None:
    said = "sample: she told me that yesterday she saw it happened again, and I remember\n"
    log = "".join(f"step {at} loss 2.{at}\n{said * 2}" for at in range(40))
    got = verdict_of(tmp_path, {"out.txt": f"{log}Segmentation fault (core dumped)\n"})
    assert got.failure_class.value == "software_bug"


def test_a_remark_that_a_script_prints_into_its_log_decides_nothing(tmp_path: Path) -> None:
    said = "excluding n12, last week it had Xid 79: GPU has fallen off the bus\n"
    got = verdict_of(tmp_path, {"slurm-77.out": said + STEPS})
    assert got.failure_class.value == "unknown"
