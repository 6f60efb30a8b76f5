"""What Lightning itself keeps from batch to batch, as plain values that `run.state` takes.

    progress     the number of the update, the counters that only Lightning's own checkpoints show,
                 `should_stop`. They change after the optimizer, and are the same on all ranks
    logged       values that were logged and not yet averaged, and the metrics that callbacks read
    metrics      the state of torchmetrics inside the model, which is neither parameter nor buffer
    callbacks    `state_dict()` of each callback that has one

Limits     A value that is logged under a process group of the script's own is not kept. Callbacks
           that keep something without `state_dict()` start over in a process that replaces another.
           This was written for lightning 2.6.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from torchmetrics import Metric

_META = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)
_VALUES = ("value", "cumulated_batch_size")
_METRIC = ("_update_count", "_computed", "_forward_cache")
_CHECKPOINT = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


# --- values that were logged ----------------------------------------------------------------------


def logged(trainer: Any) -> dict[str, Any]:
    """Return what the logger connector holds of the training, between two hooks of Lightning.

    Lightning copies the values of a batch to its tables after the optimizer. They are returned here
    as they will be then, so nothing in here changes between the vote and the end of the step.
    """
    connector = trainer._logger_connector
    tables = (
        (connector._callback_metrics, "callback"),
        (connector._logged_metrics, "log"),
        (connector._progress_bar_metrics, "pbar"),
    )
    results: _ResultCollection = trainer.fit_loop.epoch_loop._results
    fresh: Mapping[str, Any] = {}
    if connector._first_loop_iter is not None:
        fresh = results.metrics(on_step=True)
    return {
        "tables": [{**table, **fresh.get(key, {})} for table, key in tables],
        "first": connector._first_loop_iter,
        "hook": connector._current_fx,
        "results": {key: _result(one) for key, one in results.items()},
    }


def load_logged(trainer: Any, saved: Mapping[str, Any]) -> None:
    connector = trainer._logger_connector
    callback, log, bar = saved["tables"]
    connector._callback_metrics, connector._logged_metrics = dict(callback), dict(log)
    connector._progress_bar_metrics = dict(bar)
    connector._first_loop_iter, connector._current_fx = saved["first"], saved["hook"]
    results: _ResultCollection = trainer.fit_loop.epoch_loop._results
    for key in set(results) - set(saved["results"]):
        del results[key]
    for key, one in saved["results"].items():
        mine = results.get(key)
        if mine is None:
            mine = results[key] = _ResultMetric(_meta(trainer, one["meta"]), one["is_tensor"])
        _put_result(trainer, mine, one)


def _result(metric: _ResultMetric) -> dict[str, Any]:
    meta = metric.meta
    values = {name: getattr(metric, name) for name in _VALUES if hasattr(metric, name)}
    return {
        "meta": {
            **{name: getattr(meta, name) for name in _META},
            "reduce": meta.reduce_fx.__name__,
            "sync": [meta.sync.should, meta.sync.rank_zero_only, meta.sync.op],
        },
        "is_tensor": metric.is_tensor,
        "values": values if metric.is_tensor else {},
        "state": {name: getattr(metric, name) for name in _METRIC},
        "reset": metric.has_reset,
    }


def _meta(trainer: Any, saved: Mapping[str, Any]) -> _Metadata:
    reduce = getattr(torch, saved["reduce"])
    meta = _Metadata(reduce_fx=reduce, **{name: saved[name] for name in _META})
    should, rank_zero_only, op = saved["sync"]
    meta.sync = _Sync(
        fn=trainer.strategy.reduce, _should=should, rank_zero_only=rank_zero_only, _op=op
    )
    return meta


def _put_result(trainer: Any, metric: _ResultMetric, saved: Mapping[str, Any]) -> None:
    for name, value in (*saved["values"].items(), *saved["state"].items()):
        setattr(metric, name, value)
    metric.has_reset = saved["reset"]
    if not metric.is_tensor:
        # the value is a metric of the model, which is kept separately
        path = saved["meta"]["metric_attribute"]
        metric.value = operator.attrgetter(path)(trainer.lightning_module)


# --- metrics of the model -------------------------------------------------------------------------


def metrics(module: torch.nn.Module) -> dict[str, Any]:
    """Return the state of each metric of torchmetrics in `module`, by name."""
    return {
        name: {key: _listed(getattr(one, key)) for key in (*one._defaults, *_METRIC)}
        for name, one in module.named_modules()
        if isinstance(one, Metric)
    }


def load_metrics(module: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    for name, values in saved.items():
        one = module.get_submodule(name)
        for key, value in values.items():
            setattr(one, key, value)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


# --- callbacks ------------------------------------------------------------------------------------


def callbacks(trainer: Any) -> list[dict[str, Any]]:
    """Return the state of each callback, in order; {} for one without state."""
    return [
        {
            "state": one.state_dict(),
            "more": {name: getattr(one, name) for name in _more(one) if hasattr(one, name)},
        }
        for one in trainer.callbacks
    ]


def load_callbacks(trainer: Any, saved: list[dict[str, Any]]) -> None:
    for one, values in zip(trainer.callbacks, saved, strict=True):
        if values["state"]:
            one.load_state_dict(values["state"])
        for name, value in values["more"].items():
            setattr(one, name, value)


def _more(callback: Any) -> tuple[str, ...]:
    """Return what a callback keeps, and does not put into its state."""
    return _CHECKPOINT if isinstance(callback, Checkpoint) else ()


# --- what an interruption leaves incomplete -------------------------------------------------------


class Mode:
    """This says how the model is set between two batches: each module's training mode, `forward`.

    Lightning replaces the forward while it calls DDP, and sets the model to evaluation for a
    validation. An interruption may leave either of these behind.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._training: list[tuple[torch.nn.Module, bool]] = []
        self._forward = vars(module).get("forward")

    def capture(self) -> None:
        """Remember the training modes."""
        self._training = [(one, one.training) for one in self._module.modules()]

    def put_back_training(self) -> None:
        """Restore the training modes that `capture` found."""
        for one, training in self._training:
            one.training = training

    def put_back_forward(self) -> None:
        """Restore the model's own forward, and forget in which hook of the model Lightning is."""
        module: Any = self._module
        if self._forward is not None:
            module.forward = self._forward
        else:
            vars(module).pop("forward", None)
        module._current_fx_name = None
