"""For an option that does not exist, the error names the option that was probably meant."""

from __future__ import annotations

import pytest

from outlast.model.option_words import _OTHERWISE, _WORDS, meant_option
from outlast.runtime.worker.script.arguments import _flags, _parser

OURS = _flags(_parser())


@pytest.mark.parametrize(
    "word",
    ["--workers", "-n", "-np", "--num_processes=4", "--num-gpus", "--ntasks", "--world_size"],
)
def test_other_launchers_words_for_the_number_of_ranks_are_known(word: str) -> None:
    """torchrun, accelerate, deepspeed, horovodrun, mpirun and srun each have another word."""
    assert meant_option(word, OURS) == "`--nproc-per-node N` says how many ranks there are"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--nporc-per-node", "did you mean --nproc-per-node?"),
        ("--max_restart", "did you mean --max-restarts?"),
        ("--checkpoint_every=10", "did you mean --checkpoint-every?"),
        ("--main_process_port", "did you mean --master-port?"),
        ("--resume-from", "did you mean --resume?"),
        ("--save-every", "did you mean --checkpoint-every?"),
        ("--mixed_precision", "leave it out: precision is the script's own business"),
        ("--debug", ""),
        ("--dry-run", ""),
        ("-", ""),
        ("--", ""),
        ("--\u00fc", ""),
    ],
)
def test_a_hint_names_what_is_close_in_shape_or_in_meaning(word: str, meant: str) -> None:
    """If no option is close, the hint names none: a wrong name does more harm than no name."""
    assert meant_option(word, OURS).startswith(meant)
    assert bool(meant_option(word, OURS)) == bool(meant)


def test_no_hint_names_an_option_that_the_command_does_not_have() -> None:
    words = [word for words in _WORDS.values() for word in words]
    for word in words:
        assert "--" not in meant_option(word, ["--json", "-h", "--help"]), word


def test_no_word_has_two_meanings_and_none_is_an_option_of_ours() -> None:
    words = [*_OTHERWISE, *(word for words in _WORDS.values() for word in words)]
    assert len(set(words)) == len(words)
    assert set(_WORDS) <= set(OURS)
    known = {f"--{word}" for word in words} & set(OURS)
    assert not known, f"take {known} out of the table: such an option is there now"
