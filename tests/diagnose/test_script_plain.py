"""Which lines `outlast check` names in the text of a script that makes no outlast call."""

from __future__ import annotations

import pytest

from outlast.diagnose.scripts.script_text import ScriptText, read_script

IMPORTS = "import torch\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\n"


def named(text: ScriptText) -> dict[str, int]:
    return {one.what: one.line for one in text.adoption}


def test_the_loop_is_the_innermost_with_backward_and_optimizer() -> None:
    """Not the one over micro-batches, and not the one over epochs."""
    source = (
        "for epoch in range(3):\n"
        "    for batch in loader:\n"
        "        for micro in batch:\n"
        "            f(micro).backward()\n"
        "        for one in optimizers:\n"
        "            one_opt.step()\n"
        "        scheduler.step()\n"
    )
    assert named(read_script(source)) == {
        "the loop": 2,
        "the loop over epochs": 1,
        "gradient accumulation": 3,
    }


@pytest.mark.parametrize("bare", [True, False])
def test_accumulation_and_batches_of_an_iterator_are_named(bare: bool) -> None:
    """Once each; a step that each round makes, and a validation each n steps, are neither."""
    bare_step = "    f(x).backward()\n    opt.step()\n    if n % 9 == 0:\n        test()\n"
    counted = (
        "    x = next(data)\n    y = next(data)\n    f(x).backward()\n"
        "    if n % 4 == 0:\n        opt.step()\n"
    )
    found = named(read_script("for n in range(9):\n" + (bare_step if bare else counted)))
    more = {} if bare else {"a batch that an iterator gives": 2, "gradient accumulation": 5}
    assert found == {"the loop": 1, **more}


def test_an_update_by_hand_is_no_accumulation() -> None:
    """As in torch's example of a language model, which has no optimizer."""
    source = (
        "for epoch in range(3):\n"
        "    for batch in loader:\n"
        "        f(batch).backward()\n"
        "        for p in model.parameters():\n"
        "            p.data.add_(p.grad, alpha=-lr)\n"
    )
    assert named(read_script(source)) == {
        "the loop": 2,
        "the loop over epochs": 1,
        "an update of the parameters by hand": 5,
    }


def test_a_loop_is_found_through_the_functions_that_it_calls() -> None:
    source = (
        "def train(loader):\n"
        "    for x in loader:\n"
        "        f(x).backward()\n"
        "        optimizer.step()\n"
        "def evaluate(loader):\n"
        "    for x in loader:\n"
        "        losses.update(x)\n"
        "for epoch in range(3):\n"
        "    train(loader)\n"
        "    evaluate(loader)\n"
        "for other in things:\n"
        "    evaluate(other)\n"
    )
    assert named(read_script(source)) == {"the loop": 2, "the loop over epochs": 8}


def test_ranks_that_the_script_starts_itself_are_named() -> None:
    source = IMPORTS + "mp.spawn(main, nprocs=2)\ndata = mp.Process(target=f)\n"
    (remark,) = read_script(source).remarks
    assert (remark.line, "starts its ranks by itself" in remark.what) == (4, True)
    assert "--nproc-per-node" in remark.do


def test_ranks_that_are_started_on_demand_only_are_no_fault() -> None:
    """As in the ImageNet example. Under torchrun that setting is left out."""
    asked = "if args.spawn:\n    mp.spawn(main)\nelse:\n    main()\n"
    text = read_script(IMPORTS + asked)
    assert not text.remarks
    assert "starts ranks by itself at line 5 if `args.spawn` is set" in text.after_failure
    for always in ('__name__ == "__main__"', "torch.cuda.device_count() > 1"):
        (remark,) = read_script(f"{IMPORTS}if {always}:\n    mp.spawn(main)\n").remarks
        assert remark.line == 5


COMMUNICATES = (
    "class Muon(torch.optim.Optimizer):\n"
    "    def step(self):\n"
    "        dist.all_gather(a, b)\n"
    "class Local(torch.optim.Optimizer):\n"
    "    def step(self):\n"
    "        pass\n"
)


def test_an_optimizer_that_communicates_is_named_before_and_after_adoption() -> None:
    plain = read_script(IMPORTS + COMMUNICATES)
    assert any("Muon.step communicates (all_gather)" in what for what in named(plain))
    assert not any("Local" in what for what in named(plain))
    adopted = read_script(
        f"import outlast\nrun = outlast.join()\nfor s in run.steps(state, until=3): pass\n"
        f"{IMPORTS}{COMMUNICATES}"
    )
    assert [one.line for one in adopted.remarks if "Muon.step" in one.what] == [9]


def test_the_sampler_of_an_evaluation_may_stay() -> None:
    source = "a = DistributedSampler(x)\nb = DistributedSampler(y, shuffle=False)\n"
    assert named(read_script(source)) == {"the order of the samples": 1}


def test_a_sampler_of_the_script_s_own_is_known_by_set_epoch() -> None:
    """Where the loop stands. torch's sampler is named where it is made."""
    loop = "for x in y:\n    f(x).backward()\n    opt.step()\nsampler.set_epoch(1)\n"
    (remark,) = [one for one in read_script(loop).adoption if "order" in one.what]
    assert (remark.line, "numbered=True" in remark.do) == (4, True)
    torchs = read_script(f"{loop}sampler = DistributedSampler(x)\n")
    assert named(torchs)["the order of the samples"] == 5


def test_a_loop_in_another_module_and_outlast_calls_there_are_seen() -> None:
    loop = "def fit():\n    for x in y:\n        f(x).backward()\n        opt.step()\n"
    text = read_script("from loop import fit\nfit()\n", {"/a/loop.py": loop})
    assert [(one.file, one.line) for one in text.adoption] == [("/a/loop.py", 2)]
    joined = read_script("import loop\n", {"/a/loop.py": "import outlast\noutlast.join()\n"})
    assert joined.calls_outlast
    assert not read_script("x = 1\n", {"/a/bad.py": "for x in\n"}).calls_outlast


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("netG", "run.replicate(netG)"),
        (
            "net.to(rank), device_ids=[rank], broadcast_buffers=False",
            "run.replicate(net.to(rank), broadcast_buffers=False)",
        ),
        ("module=net, process_group=group", "run.replicate(net)"),
        ("*of(net)", "run.replicate(*of(net))"),
        ("", "run.replicate(model, ...)"),
        (f"net, static_graph={'x' * 80}", "run.replicate(model, ...)"),
    ],
)
def test_the_model_is_named_as_the_script_names_it(given: str, wanted: str) -> None:
    source = f"from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP({given})\n"
    (remark,) = read_script(source).adoption
    assert (remark.what, remark.do) == ("the model", f"{wanted} in place of this call")


def test_a_model_of_fsdp1_is_told_to_become_one_of_fsdp2() -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = FSDP(net)\n"
    assert named(read_script(source)) == {"the model (FSDP1)": 2}


def test_a_model_of_fsdp2_and_its_mesh_are_told_to_follow_the_run() -> None:
    source = (
        "dist.init_process_group()\n"
        "mesh = init_device_mesh('cpu', (2,))\n"
        "for layer in model:\n"
        "    fully_shard(layer, mesh=mesh)\n"
        "fully_shard(model, mesh=mesh)\n"
    )
    text = read_script(IMPORTS + source)
    assert named(text) == {"the process group": 4, "the device mesh": 5, "the model (FSDP2)": 7}
    assert all("outlast.main" in one.do for one in text.adoption[1:])


def test_all_that_a_first_adoption_needs_is_named() -> None:
    """A script for one process has no process group at whose line `join` could be named."""
    loop = "for x in y:\n    f(x).backward()\n    opt.step()\n"
    (alone,) = read_script(loop).adoption
    assert all(part in alone.do for part in ("outlast.join()", "run.replicate(", "run.state("))
    group, loop_of_ranks = read_script(f"{IMPORTS}dist.init_process_group()\n{loop}").adoption
    assert (group.do, "run.replicate(" in loop_of_ranks.do) == ("run = outlast.join()", False)
    assert "run.state(" in loop_of_ranks.do


def test_collectives_in_front_of_the_loop_may_stay() -> None:
    (remark,) = read_script(f"{IMPORTS}dist.barrier()\n").adoption
    assert "in front of the loop" in remark.do


def test_all_loops_around_the_loop_are_named() -> None:
    """As in reinforcement learning: updates, epochs over a rollout, and parts of it."""
    source = (
        "for update in range(9):\n"
        "    rollout()\n"
        "    for epoch in range(2):\n"
        "        for part in parts:\n"
        "            f(part).backward()\n"
        "            optimizer.step()\n"
    )
    text = read_script(source)
    assert named(text) == {"the loop": 4, "the loops around it (lines 1, 3)": 1}
    assert "run.values" in text.adoption[0].do


def test_a_trainer_s_step_is_read_for_iterators_and_accumulation() -> None:
    """The loop calls them. A validation, which the loop calls as well, has an iterator in peace."""
    source = (
        "def step(self, data):\n"
        "    for part in range(4):\n"
        "        self.forward_backward(next(data))\n"
        "    self.optimizers.step()\n"
        "def forward_backward(self, x):\n"
        "    f(x).backward()\n"
        "def validate():\n"
        "    next(others)\n"
        "while n < 9:\n"
        "    validate()\n"
        "    trainer.step(data)\n"
    )
    assert named(read_script(source)) == {
        "the loop": 9,
        "gradient accumulation": 2,
        "a batch that an iterator gives": 3,
    }


def test_a_batch_of_a_new_iterator_is_no_batch_that_is_carried() -> None:
    source = "for n in y:\n    x = next(iter(loader))\n    f(x).backward()\n    opt.step()\n"
    assert named(read_script(source)) == {"the loop": 1}


def test_a_loop_with_accelerate_is_told_what_its_calls_become() -> None:
    """accelerate wraps the model, so `run.replicate` is not asked for: it would be refused."""
    source = (
        "from accelerate import Accelerator\n"
        "a = Accelerator()\n"
        "model, opt, loader = a.prepare(model, opt, loader)\n"
        "for x in loader:\n"
        "    with a.accumulate(model):\n"
        "        a.backward(model(x))\n"
        "        opt.step()\n"
        "a.gather_for_metrics(x)\n"
    )
    text = read_script(source)
    assert {one.line for one in text.adoption} == {2, 3, 4, 5, 8}
    assert not any("run.replicate" in one.do for one in text.adoption)


def test_one_line_of_collectives_is_one_line() -> None:
    (one,) = read_script(f"{IMPORTS}dist.barrier()\n").adoption
    assert one.what.endswith("(line 4)")
    (both,) = read_script(f"{IMPORTS}dist.barrier()\ndist.barrier()\n").adoption
    assert both.what.endswith("(lines 4, 5)")


def test_a_loop_whose_scaler_goes_backward_and_steps_is_found() -> None:
    """As in MAE, Swin and timm. One of its arguments says whether this batch completes a step."""
    call = "    loss_scaler(f(x), optimizer, parameters=p{})\n"
    source = "for epoch in range(3):\n  for x in loader:\n" + call
    assert named(read_script(source.format(""))) == {"the loop": 2, "the loop over epochs": 1}
    accumulates = read_script(source.format(", update_grad=(n + 1) % 4 == 0"))
    assert named(accumulates)["gradient accumulation"] == 3


def test_accumulation_up_to_a_limit_is_named() -> None:
    """As in YOLOv5, where the limit grows during the warm-up."""
    source = (
        "for x in y:\n    f(x).backward()\n    if n - last >= accumulate:\n        opt.step()\n"
    )
    assert named(read_script(source)) == {"the loop": 1, "gradient accumulation": 3}


def test_what_is_trained_in_some_rounds_is_no_accumulation() -> None:
    """As in DQN, which plays some rounds between two updates."""
    source = "for n in y:\n    if n % 4 == 0:\n        f(x).backward()\n        opt.step()\n"
    assert named(read_script(source)) == {"the loop": 1}


@pytest.mark.parametrize(
    "source",
    [
        "def validate():\n    s = DistributedSampler(data)\n",
        "val_sampler = DistributedSampler(data)\n",
        "sampler_val = DistributedSampler(data, shuffle=True)\n",
        "s = DistributedSampler(self.testset)\n",
    ],
)
def test_a_sampler_that_is_named_after_an_evaluation_may_stay(source: str) -> None:
    assert not read_script(source).adoption


@pytest.mark.parametrize("name", ["train_and_validate", "latest", "make_loaders"])
def test_other_samplers_have_to_change(name: str) -> None:
    source = f"def {name}():\n    s = DistributedSampler(train_val_data)\n"
    assert named(read_script(source)) == {"the order of the samples": 2}


def test_a_tensor_that_is_gathered_is_no_call_of_accelerate() -> None:
    """As in the diffusion trainers with accelerate, which index their schedule by `gather`."""
    source = (
        "from accelerate import Accelerator\n"
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.helper = Accelerator()\n"
        "x.gather(-1, t)\n"
        "self.helper.gather(x)\n"
    )
    assert named(read_script(source)) == {"the call of Accelerator": 4, "the call of gather": 6}


@pytest.mark.parametrize("split", ["fully_shard(model)", "parallelize_module(model, mesh, {})"])
def test_a_model_that_is_split_is_not_told_to_be_replicated(split: str) -> None:
    loop = "for x in y:\n    f(x).backward()\n    opt.step()\n"
    *_, alone = read_script(f"{split}\n{loop}").adoption
    assert ("run.replicate" in alone.do, "outlast.main(train)" in alone.do) == (False, True)
    (group,) = [
        one
        for one in read_script(f"{IMPORTS}dist.init_process_group()\n{split}\n{loop}").adoption
        if one.what == "the process group"
    ]
    assert "outlast.main(train)" in group.do


def test_a_script_for_one_process_is_told_of_the_samples() -> None:
    """Otherwise each rank would train on the same ones."""
    loop = "loader = DataLoader(data)\nfor x in loader:\n    f(x).backward()\n    opt.step()\n"
    (alone,) = read_script(loop).adoption
    assert "StepSampler" in alone.do
    *_, with_sampler = read_script(f"s = DistributedSampler(data)\n{loop}").adoption
    assert "StepSampler" not in with_sampler.do


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("torch.optim.LBFGS(p)", "LBFGS"),
        ("ZeroRedundancyOptimizer(p, optimizer_class=torch.optim.AdamW)", "communicates"),
        ("rpc.init_rpc('worker')", "rpc"),
        ("deepspeed.initialize(model=model)", "DeepSpeed"),
    ],
)
def test_what_outlast_refuses_is_named_before_adoption(call: str, word: str) -> None:
    (remark,) = read_script(f"import torch\nx = {call}\n").adoption
    assert (remark.line, word in remark.what) == (2, True)


def test_what_else_is_initialized_is_not_deepspeed() -> None:
    assert not read_script("import hydra\nhydra.initialize(path)\n").adoption


def test_a_process_that_trains_is_a_rank_of_the_script_s_own() -> None:
    """As in Hogwild: processes that share the parameters. One that reads data is none."""
    source = (
        "def train():\n    for x in y:\n        f(x).backward()\n        opt.step()\n"
        "def read():\n    pass\n"
    )
    (remark,) = [
        one
        for one in read_script(
            f"{IMPORTS}{source}mp.Process(target=train)\nmp.Process(target=read)\n"
        ).remarks
        if "starts its ranks" in one.what
    ]
    assert remark.line == 10


def test_a_loop_around_the_loop_is_sought_near_it() -> None:
    """A loop that gets there over several functions of common names may be another one."""
    near = (
        "def train():\n    for epoch in e:\n        for x in y:\n            f(x).backward()\n"
        "            opt.step()\n"
    )
    far = "def run():\n    train()\nfor file in files:\n    validate.run(file)\n"
    assert named(read_script(near + far)) == {"the loop": 3, "the loop over epochs": 2}
    other = read_script(f"import other\n{near}", {"/a/other.py": "for x in y:\n    train()\n"})
    assert [one.file for one in other.adoption] == ["", ""]
