"""The text of a drawn script: `script_of(features)`. It reads as if a person had written it.

It takes two things from the environment, and runs without them too: DRILL_STRIKES, a JSON list of
the faults that strike in its own code, and DRILL_RESULTS, a folder. At its end, each rank writes to
that folder one hash for each named part of its whole state. The hashes are made by torch and
hashlib, and not by outlast. The script trains on `run.device`: a GPU on a machine that has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.drills.features.draw import Features
from tests.drills.features.faults import EVALUATE_EVERY
from tests.drills.features.pieces import FAULTS, HASHES, IMPORTS, METERS, POINTS, net_of

LEARNING_RATES = {"sgd": 0.05, "momentum": 0.02}


class Page:
    """Lines with their indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    def when(self, wanted: object, *lines: str) -> None:
        if wanted:
            self.add(*lines)

    def deeper(self) -> None:
        self._depth += 1

    def back(self, levels: int = 1) -> None:
        self._depth -= levels

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def script_of(features: Features) -> str:
    """Return the whole script. It depends only on the features; faults come from outside."""
    f, page = features, Page()
    page.add(f'"""{f}"""', "")
    parts = [IMPORTS, _imports(f), FAULTS, HASHES, POINTS, METERS, net_of(f)]
    page.add(*"\n".join(part.strip("\n") + "\n\n" for part in parts if part).splitlines(), "")
    page.add("def train(run):")
    page.deeper()
    _set_up(f, page)
    _loop(f, page)
    page.add('strike("end", NOW["step"])')
    _end(f, page)
    page.back()
    page.add("", "", "RUN = None", "")
    if f.in_main:
        page.add("outlast.main(train)")
    else:
        page.add("train(outlast.join())")
    return page.text


def _imports(f: Features) -> str:
    lines = []
    if f.loader == "stateful":
        lines.append("from torchdata.stateful_dataloader import StatefulDataLoader")
    if f.comm_hook:
        hooks = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
        lines.append(f"from {hooks} import allreduce_hook")
    if f.sharded:
        lines.append("from torch.distributed.fsdp import FSDPModule, fully_shard")
    if f.kind == "mesh2d":
        lines += [
            "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel",
            "from torch.distributed.tensor.parallel import parallelize_module",
        ]
    return "\n".join(lines)


# --- before the steps -----------------------------------------------------------------------------


def _set_up(f: Features, page: Page) -> None:
    page.add("global RUN", "RUN = run")
    if f.reads_rank:
        page.add("rank = run.rank")
    page.add(f"seed_all({1000 + f.seed})")
    page.when(f.kind == "alone", f"torch.manual_seed({f.seed} + rank)  # a model of its own")
    page.when(f.collective_before, "dist.all_reduce(torch.ones(1, device=run.device))")
    _model(f, page)
    _optimizers(f, page)
    _schedules(f, page)
    _averages(f, page)
    _others(f, page)
    _loader(f, page)
    page.when(f.reads_rank, f"seed_all({2000 + f.seed} + 10 * rank)")
    page.add("state = run.state(" + ", ".join(f"{name}={name}" for name in registered(f)) + ")")


def _model(f: Features, page: Page) -> None:
    page.add("net = Net().to(run.device)")
    page.when(f.frozen, "net.middle.requires_grad_(False)")
    page.when(f.compiled, 'net.middle.compile(backend="eager")')
    if f.kind == "alone":
        page.add("model = net")
    elif f.kind == "ddp":
        page.when(
            f.ignored,
            'DDP._set_params_and_buffers_to_ignore_for_model(net, ["own.weight", "own.bias"])',
        )
        page.add("model = run.replicate(" + ", ".join(["net", *_ddp_arguments(f)]) + ")")
        page.when(f.comm_hook, "model.register_comm_hook(None, allreduce_hook)")
    else:
        _shard(f, page)
    page.add("weights = [one for one in model.parameters() if one.requires_grad]")


def _ddp_arguments(f: Features) -> Iterable[str]:
    if not f.broadcast_buffers:
        yield "broadcast_buffers=False"
    if f.bucket_view:
        yield "gradient_as_bucket_view=True"
    if f.small_buckets:
        yield "bucket_cap_mb=0.001"
    if f.unused:
        yield "find_unused_parameters=True"


def _shard(f: Features, page: Page) -> None:
    mesh = "run.mesh"
    if f.kind == "hsdp":
        page.add('mesh = run.device_mesh((2, 2), ("replicate", "shard"))')
        mesh = "mesh"
    if f.kind == "mesh2d":
        page.add(
            'mesh = run.device_mesh((2, 2), ("data", "tensor"))',
            'plan = {"middle": ColwiseParallel(), "back": RowwiseParallel()}',
            'parallelize_module(net, mesh["tensor"], plan)',
        )
        mesh = 'mesh["data"]'
    page.add(f"fully_shard(net.first, mesh={mesh})", f"model = fully_shard(net, mesh={mesh})")


def _optimizer(f: Features, given: str) -> str:
    lr = LEARNING_RATES.get(f.optimizer, 0.01)
    kind, more = {
        "sgd": ("SGD", ""),
        "momentum": ("SGD", ", momentum=0.9, nesterov=True"),
        "adamw": ("AdamW", ""),
        "amsgrad": ("Adam", ", amsgrad=True"),
        "rmsprop": ("RMSprop", ", momentum=0.5, centered=True"),
        "adagrad": ("Adagrad", ", lr_decay=0.01"),
        "nadam": ("NAdam", ""),
        "adafactor": ("Adafactor", ""),
    }[f.optimizer]
    rate = f"torch.tensor({lr})" if f.tensor_lr else lr
    return f"torch.optim.{kind}({given}, lr={rate}{more}{', fused=True' * f.fused})"


def _optimizers(f: Features, page: Page) -> None:
    first = "weights[:-2]" if f.second_optimizer else "weights"
    if f.groups:
        rest = "weights[2:-2]" if f.second_optimizer else "weights[2:]"
        page.add(f'groups = [{{"params": weights[:2], "weight_decay": 0.1}}, {{"params": {rest}}}]')
        first = "groups"
    page.add(f"optimizer = {_optimizer(f, first)}")
    page.when(f.second_optimizer, "second = torch.optim.AdamW(weights[-2:], lr=0.005)")


def _schedules(f: Features, page: Page) -> None:
    last = f.until[-1]
    made = {
        "none": "",
        "step": "StepLR({0}, step_size=3, gamma=0.8)",
        "cosine": f"CosineAnnealingWarmRestarts({{0}}, T_0={max(3, last // 3)})",
        "onecycle": f"OneCycleLR({{0}}, max_lr=0.05, total_steps={last + 1}"
        f", cycle_momentum={f.optimizer not in ('adagrad', 'adafactor')})",
        "lambda": "LambdaLR({0}, lambda step: 1 / (1 + step))",
        "sequential": "SequentialLR({0}, [LinearLR({0}, total_iters=4), "
        "ExponentialLR({0}, gamma=0.9)], milestones=[4])",
        "plateau": "ReduceLROnPlateau({0}, patience=1, factor=0.5)",
    }[f.schedule]
    page.when(made, f"schedule = {made.format('optimizer')}")
    page.when(made and f.second_optimizer, f"second_schedule = {made.format('second')}")


def _averages(f: Features, page: Page) -> None:
    if f.average == "none":
        return
    if f.sharded:  # a module under fully_shard cannot be copied, so its average is kept by hand
        page.add("average = Shadow(weights)")
    elif f.average_by_data:
        page.add("average = copy.deepcopy(net)")
    elif f.average == "ema":
        page.add(
            "average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)"
        )
    else:
        page.add("average = AveragedModel(net)")


def _others(f: Features, page: Page) -> None:
    kind = {
        "plain": "Meter()",
        "tensor": "TensorMeter()",
        "live": "LiveMeter()",
        "values": "run.values(total=0.0, seen=[])",
    }[f.meter]
    page.when(f.metered, f"meter = {kind}")
    page.when(f.history, "history = History()")
    if f.scales:
        enabled = ", enabled=False" if f.precision == "disabled_scaler" else ""
        page.add(
            "scaler = torch.amp.GradScaler("
            f"run.device.type, init_scale=256.0, growth_interval=3{enabled})"
        )
    if f.generators:
        own = " + 10 * rank" if f.reads_rank else ""
        page.add(
            f"torch_generator = torch.Generator().manual_seed({f.seed}{own})",
            f"numpy_generator = np.random.default_rng({f.seed}{own})",
            f"python_generator = random.Random({f.seed}{own})",
        )


def _loader(f: Features, page: Page) -> None:
    if f.loader == "none":
        return
    if f.loader == "drawn":
        page.add("loader = run.draw(draw_batch)")
        return
    workers = f", num_workers={f.workers}" if f.workers else ""
    page.add(f"points = Points(noisy={f.random_dataset})")
    if f.loader == "sampler":
        size = 4 * f.world
        page.add(
            f"sampler = outlast.StepSampler(points, batch_size={size}, seed={f.seed})",
            f"loader = DataLoader(points, batch_sampler=sampler{workers})",
        )
        return
    page.add(
        f"share = DistributedSampler(points, {f.world}, rank, seed={f.seed}, drop_last=True)",
        f"loader = StatefulDataLoader(points, batch_size=4, sampler=share{workers},"
        " drop_last=True)",
    )


def registered(f: Features) -> list[str]:
    """Return what is given to run.state."""
    names = ["model", "optimizer"]
    names += ["second"] if f.second_optimizer else []
    names += ["schedule"] if f.schedule != "none" else []
    names += ["second_schedule"] if f.schedule != "none" and f.second_optimizer else []
    names += ["average"] if f.average != "none" else []
    names += ["meter"] if f.metered else []
    names += ["history"] if f.history else []
    names += ["scaler"] if f.scales else []
    names += ["torch_generator", "numpy_generator", "python_generator"] if f.generators else []
    return names + (["loader"] if f.loader != "none" else [])


# --- the steps ------------------------------------------------------------------------------------


def _loop(f: Features, page: Page) -> None:
    calls = len(f.until) > 1
    accumulate = f", accumulate={f.accumulate}" if f.accumulate > 1 else ""
    if calls:
        page.add(f"for until in {f.until}:")
        page.deeper()
    until = "until" if calls else str(f.until[0])
    if f.left_by_break:
        until = f"until + 4 * (until == {f.until[-1]})" if calls else str(f.until[0] + 4)
    steps = f"run.steps(state, until={until}{accumulate}, log_every=0)"
    item, steps = {
        "none": ("step", steps),
        "enumerate": ("_, step", f"enumerate({steps})"),
        "generator": ("step", f"progress({steps})"),
    }[f.wrapped]
    page.add(f"for {item} in {steps}:")
    page.deeper()
    page.add('NOW["step"] = step.number')
    _draw(f, page, "before")
    page.when("before" in f.hand_set, *_hand_set(f, "before"))
    page.add('strike("before", step.number)', "with step:")
    page.deeper()
    _block(f, page)
    page.back()
    _behind(f, page)
    page.when(f.left_by_break, f"if step.number == {f.until[-1]}:", "    break")
    page.back()
    if calls:
        page.add(f"if until < {f.until[-1]}:")
        page.deeper()
        page.add('strike("calls", until)')
        page.when("calls" in f.hand_set, *_hand_set(f, "calls"))
        page.when("calls" in f.draws, "draw_numbers()")
        page.add("pass")
        page.back(2)


def _draw(f: Features, page: Page, where: str) -> None:
    """Let the script draw random numbers, with a place to strike between two draws."""
    if where in f.draws:
        given = "torch_generator, numpy_generator, python_generator" if f.generators else ""
        page.add("noise = draw_numbers(" + given + ")", f'strike("draws_{where}", step.number)')
        page.add("noise += draw_numbers(" + given + ")")


def _hand_set(f: Features, where: str) -> list[str]:
    """Return lines that change a hyper-parameter. The new value depends on the old one, so that a
    change too many or too few shows.
    """
    names = "(optimizer, second)" if f.second_optimizer else "(optimizer,)"
    key = "lr" if f.schedule == "none" and where in ("behind", "calls") else "weight_decay"
    return [
        f"for given in {names}:",
        "    for group in given.param_groups:",
        f'        group["{key}"] = group["{key}"] * 0.9 + 0.001',
    ]


def _block(f: Features, page: Page) -> None:
    page.add('strike("begin", step.number)')
    to_none = "" if f.set_to_none else "set_to_none=False"
    page.when(f.zero_grad == "first", *_zero_grad(f, to_none))
    page.when("before" in f.metered, *_meter(f, "step.number"))
    page.when(f.rank_asked == "inside", "first_rank = run.rank == 0")
    _draw(f, page, "inside")
    page.when("inside" in f.hand_set, *_hand_set(f, "inside"))
    _move_average(f, page, "inside")
    _gradients(f, page)
    page.when(f.reduce_in_block, "dist.all_reduce(loss_seen)", f"loss_seen = loss_seen / {f.world}")
    page.add('strike("reduced", step.number)')
    page.when("inside" in f.metered, *_meter(f, "loss_seen.item()"))
    _clip(f, page)
    _apply(f, page)
    page.add('strike("tail", step.number)')
    _tail(f, page, to_none)


def _zero_grad(f: Features, to_none: str) -> list[str]:
    if f.zero_by == "model":
        return [f"model.zero_grad({to_none})"]
    return _each(f, f"{{}}.zero_grad({to_none})")


def _meter(f: Features, value: str) -> list[str]:
    if f.meter != "values":
        return [f"meter.add({value})"]
    return [
        f"meter.total = meter.total * 1.01 + {value}",
        f"meter.seen = [*meter.seen[-3:], {value}]",
    ]


def _each(f: Features, line: str) -> list[str]:
    names = ["optimizer", "second"] if f.second_optimizer else ["optimizer"]
    return [line.format(name) for name in names]


def _gradients(f: Features, page: Page) -> None:
    """Write the forward and backward of each micro-batch."""
    page.add("loss_seen = torch.zeros((), device=run.device)")
    if f.accumulate > 1:
        page.add("for number, batch in enumerate(step.batches):")
        page.deeper()
        if f.no_sync and f.kind == "ddp":
            page.add(
                f"last = number == {f.accumulate - 1}",
                "with contextlib.nullcontext() if last else model.no_sync():",
            )
            page.deeper()
        elif f.no_sync:
            page.add(f"model.set_requires_gradient_sync(number == {f.accumulate - 1})")
    elif f.loader != "none":
        page.add("batch = step.batch")
    else:
        page.add("batch = torch.randn(4, 8), torch.randint(4, (4,))")
    if f.by_hand > 1:
        page.add(f"for _ in range({f.by_hand}):")
        page.deeper()
    _forward(f, page)
    page.add("scaler.scale(loss).backward()" if f.scales else "loss.backward()")
    if f.by_hand > 1:
        page.back()
    if f.accumulate > 1:
        if f.no_sync and f.kind == "ddp":
            page.back()
        page.add('strike(f"micro{number}", step.number)')
        page.back()


def _forward(f: Features, page: Page) -> None:
    page.add("inputs, targets = batch[0].to(run.device), batch[1].to(run.device)")
    page.when("inside" in f.draws or "before" in f.draws, "inputs = inputs + 0.1 * noise")
    share = f" / {f.accumulate}" if f.accumulate > 1 else ""
    if f.precision in ("bfloat16", "amp"):
        page.add("with torch.autocast(run.device.type, dtype=torch.bfloat16):")
        page.deeper()
    page.add(f"loss = F.cross_entropy(model(inputs), targets){share}")
    if f.precision in ("bfloat16", "amp"):
        page.back()
    page.add("loss_seen = loss_seen + loss.detach().float()")
    if f.overflow:
        page.add(
            "if step.number % 5 == 3:",
            "    loss = loss * float('inf')  # the scaler skips this step",
        )


def _clip(f: Features, page: Page) -> None:
    if f.clip == "none":
        return
    if f.scales:
        page.add(*_each(f, "scaler.unscale_({})"))
    if f.clip == "norm":
        page.add("torch.nn.utils.clip_grad_norm_(weights, 0.5)")
    else:
        page.add("torch.nn.utils.clip_grad_value_(weights, 0.05)")
    page.add('strike("clipped", step.number)')


def _apply(f: Features, page: Page) -> None:
    line = "{}.step()"
    if f.scales:
        line = "scaler.step({})"
    page.add(line.format("optimizer"))
    if f.second_optimizer:
        page.add('strike("between_optimizers", step.number)', line.format("second"))
    if f.scales:
        page.add("scaler.update()")


def _tail(f: Features, page: Page, to_none: str) -> None:
    page.when(f.zero_grad == "last", *_zero_grad(f, to_none))
    page.when(f.writes, "write_line(step.number, loss_seen.item())")
    metric = "loss_seen.item()" if f.schedule == "plateau" else ""
    if f.schedule != "none":
        page.add(f"schedule.step({metric})")
        page.when(f.second_optimizer, f"second_schedule.step({metric})")
    page.when("tail" in f.hand_set, *_hand_set(f, "tail"))
    _move_average(f, page, "tail")
    page.when("tail" in f.metered, *_meter(f, "2 * step.number"))
    page.when(f.history, "history.add(step.number)")
    _draw(f, page, "tail")
    page.when(f.rank_asked == "tail", "first_rank = run.rank == 0")
    page.when(f.logs, 'step.log(loss=loss_seen, reduce="mean")')
    page.add("step.on_commit(lambda number=step.number: note_commit(number))")
    page.add('strike("tail_end", step.number)')


def _move_average(f: Features, page: Page, where: str) -> None:
    if f.average == "none" or f.average_at != where:
        return
    if f.sharded:
        page.add("average.update(weights)")
    elif f.average == "swa":
        page.add("if step.number >= 4 and step.number % 2 == 0:")
        page.add("    average.update_parameters(net)")
    elif f.average_by_data:
        page.add("for mine, one in zip(average.parameters(), net.parameters()):")
        page.add("    mine.data.mul_(0.9).add_(one.data, alpha=0.1)")
    else:
        page.add("average.update_parameters(net)")


def _behind(f: Features, page: Page) -> None:
    page.add('strike("behind", step.number)')
    page.when(f.rank_asked == "behind", "first_rank = run.rank == 0")
    _draw(f, page, "behind")
    page.when("behind" in f.metered, *_meter(f, "3 * step.number"))
    _move_average(f, page, "behind")
    page.when("behind" in f.hand_set, *_hand_set(f, "behind"))
    if f.evaluate != "none":
        first = " and run.rank == 0" * (f.evaluate_on == "first")
        page.add(f"if step.number % {EVALUATE_EVERY} == 0{first}:")
        page.deeper()
        _evaluate(f, page)
        page.back()
    page.add('strike("behind_end", step.number)')


def _evaluate(f: Features, page: Page) -> None:
    if f.evaluate == "phase":
        page.add('for attempt in run.phase("evaluate"):')
        page.deeper()
        page.add("with attempt:")
        page.deeper()
    page.when(f.swapped, "held = swap_in(average, net)")
    page.add("model.eval()", f"with torch.{'inference_mode' if f.inference_mode else 'no_grad'}():")
    page.deeper()
    page.add(("model" if f.sharded else "net") + "(torch.ones(4, 8, device=run.device))")
    page.back()
    if f.evaluation_seeds == "forked":
        page.add("with torch.random.fork_rng():", "    torch.manual_seed(7)", "    torch.rand(3)")
    page.when(f.evaluation_seeds == "reseeded", "seed_all(7)")
    page.when(f.evaluation_moves, "draw_numbers()")
    page.add('strike("evaluate", step.number)')
    page.when(
        f.evaluate == "phase" and f.kind == "ddp",
        "dist.all_reduce(torch.ones(1, device=run.device))",
    )
    page.when(f.evaluation_moves, "torch.rand(3)")
    page.add("model.train()")
    page.when(
        f.writes, 'torch.save(net.state_dict(), os.path.join(RESULTS, f"best-{run.rank}.pt"))'
    )
    page.when(f.swapped, "put_in(net, held)")
    if f.evaluate == "phase":
        page.back(2)
    page.add('strike("evaluate_end", step.number)')


# --- the end --------------------------------------------------------------------------------------


def _end(f: Features, page: Page) -> None:
    if f.sharded:  # an evaluation at the end leaves the weights gathered
        page.add(
            "for one in model.modules():",
            "    if isinstance(one, FSDPModule):",
            "        one.reshard()",
        )
    page.add(
        "parts = random_parts()",
        'parts["steps"] = hashed(run._transaction.committed)',
        "parts |= module_parts(net)",
    )
    page.add('parts |= optimizer_parts("optimizer", optimizer)')
    page.when(f.second_optimizer, 'parts |= optimizer_parts("second", second)')
    for name in registered(f):
        if name == "average" and not f.sharded:
            page.add("found = module_parts(average).items()")
            page.add('parts |= {f"average.{name}": part for name, part in found}')
        elif name in ("average", "meter", "history", "scaler", "schedule", "second_schedule"):
            page.add(f'parts["{name}"] = hashed({name}.state_dict())')
    if f.generators:
        page.add(
            'parts["torch_generator"] = hashed(torch_generator.get_state())',
            'parts["numpy_generator"] = hashed(numpy_generator.bit_generator.state)',
            'parts["python_generator"] = hashed(python_generator.getstate())',
        )
    page.add("write_result(run.rank, parts)")
