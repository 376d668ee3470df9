"""A script of the transformers package with Medley in place of its trainer.

trainer = transformers.Trainer(model, args, train_dataset=data, data_collator=collator)
trainer.train()                                       # before
trainer = medley_extras.hf.train(model, args, data, collator, cluster="cluster.yaml")   # after
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medley import (
    SGD,
    AdamW,
    AdamW8bit,
    Callback,
    Cluster,
    Groups,
    Lengths,
    Lion,
    Loader,
    Plan,
    Progress,
    StreamLoader,
    Trainer,
    capture,
    plan,
)
from medley.checkpoint import has_checkpoint
from medley.cluster import load_cluster
from medley.optimizer import Optimizer
from medley_extras.trackers import TensorBoard, WandB

# The supported fields of `TrainingArguments`. All others must have their default, or have no
# effect.
READ = (
    "output_dir",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "warmup_ratio",
    "optim",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "bf16",
    "fp16",
    "logging_steps",
    "report_to",
    "run_name",
    "project",
    "eval_strategy",
    "eval_steps",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "seed",
    "data_seed",
    "train_sampling_strategy",
    "dataloader_drop_last",
    "remove_unused_columns",
    "resume_from_checkpoint",
)
# The plan decides the computation of steps, and the loader the reading of rows.
OF_NO_CONSEQUENCE = (
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "per_device_eval_batch_size",
    "eval_accumulation_steps",
    "eval_do_concat_batches",
    "eval_use_gather_object",
    "prediction_loss_only",
    "average_tokens_across_devices",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "dataloader_multiprocessing_context",
    "dataloader_in_order",
    "disable_tqdm",
    "logging_strategy",
    "logging_first_step",
    "logging_dir",
    "logging_nan_inf_filter",
    "log_level",
    "log_level_replica",
    "log_on_each_node",
    "local_rank",
    "use_cpu",
    "use_cache",
    "skip_memory_metrics",
    "do_train",
    "do_eval",
    "do_predict",
    "ddp_backend",
    "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers",
    "ddp_find_unused_parameters",
    "ddp_static_graph",
    "ddp_timeout",
    "save_on_each_node",
    "torch_empty_cache_steps",
    "tf32",
)
_LOOKED_AT = 1000  # rows of a stream
_NO_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def train(
    model: nn.Module,
    args: Any,
    dataset: Any,
    collator: Callable[[list[Any]], Any] | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str] = "cluster.yaml",
    plan: Plan | str | os.PathLike[str] | None = None,
    eval_dataset: Any = None,
    tokens: int | None = None,
    callbacks: Sequence[Callback] = (),
    row_dims: Mapping[str, int | None] | None = None,
) -> Trainer:
    """Trains a model with `transformers.TrainingArguments` on the devices of a cluster, which may
    be heterogeneous. Returns the trainer; its `save_model` writes files for `from_pretrained`.

    The batch of a step has `per_device_train_batch_size` times `gradient_accumulation_steps` rows
    per device. The plan divides it among devices and micro-batches. It is made for the longest row,
    of `tokens`. Shorter batches with an `attention_mask` are padded to the next eighth of that.
    Without `tokens` all rows are read, or the first thousand of a stream, for which `max_steps` is
    required. `row_dims` is the `rows` of `medley.capture`. Raises ValueError naming an unsupported
    argument that has neither its default nor an entry without effect.
    """
    from transformers import default_data_collator

    check(args)
    if isinstance(eval_dataset, dict):
        raise ValueError(f"eval_dataset: found {len(eval_dataset)} data sets, expected one")
    resumes, checkpoint = resumed(args)
    is_stream = not hasattr(dataset, "__len__")
    if is_stream and args.max_steps <= 0:
        raise ValueError(
            "TrainingArguments: max_steps: found none, expected one for a data set without a length"
        )
    if eval_dataset is not None and not hasattr(eval_dataset, "__len__"):
        eval_dataset = list(eval_dataset)
    machines = load_cluster(cluster)
    rows = (
        args.per_device_train_batch_size * args.gradient_accumulation_steps * len(machines.devices)
    )
    collate = default_data_collator if collator is None else collator
    if args.remove_unused_columns:
        names = columns_of(model)
        dataset = StreamedColumns(dataset, names) if is_stream else Columns(dataset, names)
        eval_dataset = None if eval_dataset is None else Columns(eval_dataset, names)
    model.train()
    seen = list(itertools.islice(dataset, _LOOKED_AT)) if is_stream else dataset
    looked_at = [longest_rows(each, tokens) for each in (seen, eval_dataset) if each is not None]
    longest = [row for rows_of_one, _ in looked_at for row in rows_of_one]
    example = dict(collate([*longest, seen[0]]))
    check_rows(example, len(longest) + 1, row_dims or {})
    answers = answers_of(example) if any(differ for _, differ in looked_at) else {}
    mixed = args.bf16 or args.fp16  # the dtype depends on each device type
    dtype = torch.bfloat16 if mixed else None
    graph = capture(model, example, autocast=dtype, rows=row_dims)
    per_epoch = args.max_steps if is_stream else len(dataset) / rows
    per_epoch = math.floor(per_epoch) if args.dataloader_drop_last else math.ceil(per_epoch)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    rule = optimizer_of(model, args, steps)
    chosen = _plan(graph, machines, rows, rule, plan)
    trainer = Trainer(
        model,
        graph,
        chosen,
        rule,
        cluster=machines,
        seed=args.seed,
        keep_gradients=False,
        lengths=lengths_of(example, answers),
    )
    together = lambda each: lengthened(dict(collate(each)), answers)  # noqa: E731
    drop_last = args.dataloader_drop_last
    loader: Loader | StreamLoader
    if is_stream:
        loader = StreamLoader(chosen, dataset, collate=together, drop_last=drop_last)
    else:
        loader = Loader(
            chosen,
            dataset,
            shuffle=args.train_sampling_strategy == "random",
            seed=args.seed if args.data_seed is None else args.data_seed,
            collate=together,
            drop_last=drop_last,
        )
    held_out = None
    if eval_dataset is not None and _word(args.eval_strategy) != "no":
        held_out = Loader(chosen, eval_dataset, collate=together)
    saves = _every(args.save_strategy, args.save_steps, per_epoch, steps)
    if resumes and (checkpoint or not saves):
        trainer.resume(checkpoint or args.output_dir)
    trainer.fit(
        loader,
        steps=steps,
        evaluate=held_out,
        evaluate_every=(
            0
            if held_out is None
            else _every(args.eval_strategy, args.eval_steps or args.logging_steps, per_epoch, steps)
        ),
        save_every=saves,
        output=args.output_dir if saves else None,
        keep=args.save_total_limit or 1_000_000,
        resume=resumes,
        callbacks=[*_reports(args), *callbacks],
    )
    return trainer


def longest_rows(dataset: Any, tokens: int | None = None) -> tuple[list[Any], bool]:
    """Returns the rows with the most tokens and the most labels, and whether a row has more of one
    than of the other. The latter holds for models that read one text and write another.

    A plan is made for the longest batch. Without tokens it returns the first row. With `tokens`,
    the first row is repeated to that length; otherwise all rows are read.
    """
    if not len(dataset):
        raise ValueError("found a data set of no rows, expected one at least")
    row = dataset[0]
    if not isinstance(row, Mapping) or "input_ids" not in row:
        return [row], False
    if tokens is not None:
        if tokens < 1:
            raise ValueError(f"tokens: found {tokens}, expected at least 1")
        return [_of_length(row, tokens)], False
    lengths, labels = [], []
    for each in range(len(dataset)):
        row = dataset[each]
        lengths.append(len(row["input_ids"]))
        found = row.get("labels")
        is_list = isinstance(found, Sequence) or (isinstance(found, torch.Tensor) and found.dim())
        labels.append(len(found) if is_list else 0)
    # Labels of constant number are no text: they are classes of a row, or padded already.
    if len(set(labels)) == 1 or labels == lengths:
        return [dataset[lengths.index(max(lengths))]], False
    return [dataset[each.index(max(each))] for each in (lengths, labels)], True


def check_rows(example: Mapping[str, Any], count: int, row_dims: Mapping[str, int | None]) -> None:
    """Raises ValueError if a collator has merged rows of a batch of `count` rows."""
    for name in ("input_ids", "inputs_embeds", "pixel_values", "labels"):
        value, dim = example.get(name), row_dims.get(name, 0)
        if not isinstance(value, torch.Tensor) or dim is None or dim >= value.dim():
            continue
        if value.shape[dim] == 1 and count > 1:
            raise ValueError(
                f'collator: found "{name}" {list(value.shape)} of {count} texts, expected {count} '
                "rows: it joins texts into one row, which has no rows to divide; use one that pads "
                "each text, such as DataCollatorForSeq2Seq"
            )
        if name == "input_ids":
            return


def _of_length(row: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Returns a row in which all fields as long as its tokens have this length."""
    length = len(row["input_ids"])

    def fitted(value: Any) -> Any:
        if not isinstance(value, (list, torch.Tensor)) or not length or len(value) != length:
            return value
        times = -(-tokens // length)
        if isinstance(value, list):
            return (value * times)[:tokens]
        return torch.cat([value] * times)[:tokens]

    return {name: fitted(value) for name, value in row.items()}


def lengths_of(example: Mapping[str, Any], answers: Mapping[str, int]) -> Lengths:
    """Returns the lengths to which batches are padded, given the longest: eighths of it if there is
    a mask, else none. The `answers` have a length of their own."""
    tokens, mask = example.get("input_ids"), example.get("attention_mask")
    if tokens is None or mask is None or tokens.shape != mask.shape:
        return Lengths()
    if tokens.dim() != 2 or tokens.dtype != torch.int64:
        return Lengths()
    longest = int(tokens.shape[1])
    dims = None
    if answers:
        dims = {
            name: {dim: "length" for dim, size in enumerate(each.shape) if dim and size == longest}
            for name, each in example.items()
            if isinstance(each, torch.Tensor) and name not in answers
        }
        dims = {name: each for name, each in dims.items() if each}
    buckets = sorted({-(-longest * eighths // 8) for eighths in range(1, 9)})
    return Lengths(dynamic=dims, buckets=buckets)


_ANSWERS = {"labels": -100, "decoder_input_ids": 0, "decoder_attention_mask": 0}  # padding values


def answers_of(example: Mapping[str, Any]) -> dict[str, int]:
    """Returns the fields of a batch as long as the model's output, with their length in the
    longest."""
    return {name: int(example[name].shape[1]) for name in _ANSWERS if name in example}


def lengthened(batch: dict[str, Any], answers: Mapping[str, int]) -> dict[str, Any]:
    """Returns a batch with the model's output fields padded to the longest. Padding has no loss."""
    for name, length in answers.items():
        lacking = length - batch[name].shape[1]
        if lacking > 0:
            batch[name] = nn.functional.pad(batch[name], (0, lacking), value=_ANSWERS[name])
    return batch


def _plan(
    graph: Any, machines: Cluster, rows: int, rule: Optimizer, given: Plan | Any | None
) -> Plan:
    return plan(graph, machines, global_batch=rows, optimizer=rule, plan=given)


def check(args: Any) -> None:
    """Raises ValueError naming unsupported arguments and invalid values."""
    # also sets other fields
    if (schedule := _word(args.lr_scheduler_type)) == "reduce_lr_on_plateau":
        raise ValueError(_schedule_refused(schedule))
    default = type(args)(output_dir=args.output_dir)
    others = [
        field.name
        for field in dataclasses.fields(args)
        if field.name not in READ
        and field.name not in OF_NO_CONSEQUENCE
        and getattr(args, field.name) != getattr(default, field.name)
    ]
    if others:
        named = ", ".join(f"{name}={getattr(args, name)!r}" for name in sorted(others))
        raise ValueError(
            f"TrainingArguments: found {named}, which medley_extras.hf.train does not read: "
            f"expected the default, or one of {', '.join(READ)}"
        )
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise ValueError(
            f"TrainingArguments: train_sampling_strategy: found {args.train_sampling_strategy!r}, "
            "expected 'random' or 'sequential'"
        )
    for name in ("eval_strategy", "save_strategy"):
        if _word(getattr(args, name)) not in ("no", "steps", "epoch"):
            raise ValueError(
                f"TrainingArguments: {name}: found {_word(getattr(args, name))!r}, expected 'no', "
                "'steps' or 'epoch'"
            )
    for name in ("eval_steps", "save_steps", "logging_steps"):
        if (value := getattr(args, name)) is not None and (value < 1 or value != int(value)):
            raise ValueError(
                f"TrainingArguments: {name}: found {value}, expected a number of steps"
            )


def resumed(args: Any) -> tuple[bool, str]:
    """Returns whether to resume from a checkpoint, and its folder: "" for the newest one in the
    output. Raises ValueError if there is none."""
    found = args.resume_from_checkpoint
    word = "" if found is None else str(found).lower()
    if word in ("", "false", "no", "0"):
        return False, ""
    if word in ("true", "yes", "1"):
        return True, ""
    folder = os.fspath(found)
    if not has_checkpoint(folder):
        raise ValueError(
            f"TrainingArguments: resume_from_checkpoint: found {folder}, expected a checkpoint of "
            "Medley, or True for the newest one in output_dir"
        )
    return True, folder


def optimizer_of(model: nn.Module, args: Any, steps: int) -> Optimizer:
    """Returns the optimizer of the arguments, without decay for biases and norms."""
    from transformers.trainer_pt_utils import get_parameter_names

    rate, betas = _rates(args, steps), (args.adam_beta1, args.adam_beta2)

    def adamw(kind: type[AdamW]) -> Callable[[float], Optimizer]:
        return lambda decay: kind(lr=rate, betas=betas, eps=args.adam_epsilon, weight_decay=decay)

    kinds: dict[str, Callable[[float], Optimizer]] = {
        "adamw_torch": adamw(AdamW),
        "adamw_8bit": adamw(AdamW8bit),
        "sgd": lambda decay: SGD(lr=rate, weight_decay=decay),
        "lion_32bit": lambda decay: Lion(lr=rate, betas=betas, weight_decay=decay),
    }
    for name in ("adamw_torch_fused", "paged_adamw", "paged_adamw_32bit"):
        kinds[name] = kinds["adamw_torch"]
    for name in ("adamw_bnb_8bit", "paged_adamw_8bit"):
        kinds[name] = kinds["adamw_8bit"]
    kinds["paged_lion_32bit"] = kinds["lion_32bit"]
    name = _word(args.optim)
    if name not in kinds:
        raise ValueError(
            f"TrainingArguments: optim: found {name!r}, expected one of {', '.join(kinds)}"
        )
    make = kinds[name]
    decayed = frozenset(get_parameter_names(model, [nn.LayerNorm], list(_NO_DECAY)))

    def decays(parameter: str, shape: tuple[int, ...]) -> bool:
        return parameter in decayed

    return Groups(
        groups=[(decays, make(args.weight_decay)), ("*", make(0.0))],
        max_norm=args.max_grad_norm or None,
    )


def _rates(args: Any, steps: int) -> Callable[[int], float]:
    """Returns the learning rate of each step, from transformers' schedule."""
    from transformers import get_scheduler

    base = args.learning_rate
    idle = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=base)
    schedule = get_scheduler(
        args.lr_scheduler_type,
        idle,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=dict(args.lr_scheduler_kwargs or {}),
    )
    factors = getattr(schedule, "lr_lambdas", None)
    if not factors:
        raise ValueError(_schedule_refused(_word(args.lr_scheduler_type)))
    return lambda step: base * float(factors[0](step))


def _schedule_refused(name: str) -> str:
    return (
        f"TrainingArguments: lr_scheduler_type: found {name!r}, expected a function of the step, "
        "such as 'linear' or 'cosine'"
    )


def _every(strategy: Any, steps: float, per_epoch: int, total: int) -> int:
    """Returns the number of steps between events; 0: never."""
    word = _word(strategy)
    return {"no": 0, "epoch": per_epoch}.get(word, int(steps))


def _reports(args: Any) -> list[Callback]:
    found: list[Callback] = [Progress(every=int(args.logging_steps))]
    for name in args.report_to:
        if name == "tensorboard":
            folder = getattr(args, "logging_dir", None) or Path(args.output_dir) / "runs"
            found.append(TensorBoard(folder))
        elif name == "wandb":
            found.append(WandB(project=args.project, name=args.run_name))
        elif name != "none":
            raise ValueError(
                f"TrainingArguments: report_to: found {name!r}, expected 'tensorboard' or 'wandb': "
                "give others as callbacks=[...]"
            )
    return found


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def columns_of(model: nn.Module) -> frozenset[str]:
    """Returns the names of the model's arguments, and of labels that a collator renames."""
    names = inspect.signature(inner(model).forward).parameters
    return frozenset(names) | {"label", "label_ids", "labels"}


def inner(model: nn.Module) -> nn.Module:
    """Returns the model inside a peft model."""
    base = getattr(model, "get_base_model", None)
    found: nn.Module = base() if callable(base) else model
    return found


class Columns:
    """A data set whose rows have only the arguments of the model."""

    def __init__(self, dataset: Any, names: frozenset[str]) -> None:
        self._dataset = dataset
        self._names = names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> Any:
        return _named(self._dataset[row], self._names)


class StreamedColumns:
    """A stream whose rows have only the arguments of the model."""

    def __init__(self, dataset: Iterable[Any], names: frozenset[str]) -> None:
        self._dataset = dataset
        self._names = names

    def __iter__(self) -> Iterator[Any]:
        return (_named(row, self._names) for row in self._dataset)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the stream, if it has that method."""
        if callable(choose := getattr(self._dataset, "set_epoch", None)):
            choose(epoch)


def _named(row: Any, names: frozenset[str]) -> Any:
    if not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if name in names}
