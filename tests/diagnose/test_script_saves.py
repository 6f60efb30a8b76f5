"""What `outlast check` says of the files that a script without outlast calls saves and loads."""

from __future__ import annotations

import pytest

from outlast.diagnose.scripts.script_text import read_script

HEAD = "import torch, json\ndef train():\n    for x in y:\n        f(x).backward(); opt.step()\n"


def after(source: str) -> str:
    return after_of(HEAD + source)


def after_of(source: str) -> str:
    return read_script(source).after_failure


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("args.resume", "if `args.resume` is set, saved"),
        ("args.resume is not None and os.path.exists(p)", "if `args.resume` is set, saved"),
        ('cfg.train.resume != ""', "if `cfg.train.resume` is set, saved"),
        ("init_from == 'resume'", "if `init_from == 'resume'`, saved"),
        ("resume", "if `resume` is set, saved"),
        ("os.path.exists(p)", "at line 7, saved"),
        ("master", "at line 7, saved"),
        ("self.is_main", "at line 7, saved"),
        ('__name__ == "__main__"', "at line 7, saved"),
    ],
)
def test_a_setting_without_which_nothing_is_loaded_is_named(test: str, said: str) -> None:
    """A restart has the command line of the start: without that setting all steps are lost."""
    source = f"torch.save(state, p)\nif {test}:\n    torch.load(p)\n"
    assert said in after(source), after(source)


def test_a_configuration_or_data_is_no_checkpoint() -> None:
    """They are not named where torch loads too, and count for nothing where it does not."""
    both = "json.load(f)\nstate = torch.load(p)\nimage.save(p)\ntorch.save(state, p)\n"
    assert "loads its own file at line 6, saved at line 8" in after(both)
    kernel = "import triton.language as tl\ntl.load(x)\n"
    text = read_script(f"{HEAD}{kernel}torch.save(state, p)\n")
    assert "loads its own file" not in text.after_failure
    text = read_script(HEAD + "json.load(f)\ntorch.save(state, p)\n")
    assert "loads its own file" not in text.after_failure
    (remark,) = text.remarks
    assert (remark.line, "no load" in remark.what) == (6, True)


def test_a_load_in_a_function_for_another_purpose_is_said_to_be_one() -> None:
    """As in a script that can train and infer: `if args.inference: infer()`."""
    load = "def infer():\n    torch.load(p)\ntorch.save(state, p)\n"
    assert "at line 6 if `args.inference` is set" in after(f"{load}if args.inference:\n    infer()")
    assert "at line 6, saved" in after(f"{load}if args.inference:\n    infer()\ninfer()\n")


def test_a_script_whose_loop_is_not_found_is_said_to_have_none() -> None:
    text = read_script("import torch\ntorch.save(s, p)\ntorch.load(p)\n").after_failure
    assert text.endswith("saved at line 2. No training loop was found in its text.")


LOOP = "for x in y:\n    f(x).backward()\n    opt.step()\n    torch.save(m, p)\n"


@pytest.mark.parametrize(
    "source",
    [
        f"{LOOP}best = torch.load(p)\n",
        f"{HEAD}try:\n    for epoch in range(9):\n        train()\n        torch.save(m, p)\n"
        "except KeyboardInterrupt:\n    pass\nwith open(p) as f:\n    m = torch.load(f)\n",
        f"{HEAD}def main():\n    train()\n    torch.save(m, p)\n    torch.load(p)\nmain()\n",
    ],
)
def test_a_load_that_only_follows_the_training_is_no_resume(source: str) -> None:
    """PyTorch's word_language_model does so: it tests the best model at the end."""
    text = read_script(source)
    assert "loads its own file" not in text.after_failure
    (remark,) = text.remarks
    assert remark.what.startswith("this is loaded only after the training")
    assert remark.line == 1 + source[: source.index("torch.load")].count("\n")


@pytest.mark.parametrize(
    "source",
    [
        f"torch.load(p)\n{LOOP}",
        f"for epoch in z:\n    torch.load(p)\n    {LOOP[:11]} g(x).backward(); opt.step()\n"
        "    torch.save(m, p)\n",
        f"{HEAD}def main():\n    model.train()\n    torch.load(p)\n    train()\n"
        "    torch.save(m, p)\nmain()\n",
        f"{HEAD}class T:\n    def resume(self):\n        torch.load(p)\n"
        "t = T()\nt.resume()\ntrain()\ntorch.save(m, p)\n",
    ],
)
def test_a_load_before_the_training_or_between_epochs_is_a_resume(source: str) -> None:
    assert "loads its own file" in after_of(source), source


def test_a_load_in_a_function_that_the_script_calls_goes_first() -> None:
    """DINO's helpers have another one, which loads pretrained weights for other scripts."""
    helpers = "def pretrained():\n    torch.load(q)\ndef resume():\n    torch.load(p)\n"
    assert "at line 8, saved" in after(f"{helpers}resume()\ntrain()\ntorch.save(m, p)\n")
    assert "at line 6, saved" in after(f"{helpers}train()\ntorch.save(m, p)\n")
