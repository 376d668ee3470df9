"""A plan trains like one device: the trainer compared with plain PyTorch, with devices as
threads."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from test_loader import PLAN_OF_FOUR
from torch import Tensor, nn

import medley
from medley import _core, _runtime, custom_ops
from medley.capture import substitute
from medley.cluster import parse_cluster
from medley_extras.models import gpt, mlp

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
DEVICES = ["fast/0/0", "slow/0/0", "fast/0/1", "slow/0/1"]
SEED = 5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The reference gets no threads of its own: small matrices lose more by them than they win."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_plan(graph: medley.Graph, microbatches: list[list[int]]) -> medley.Plan:
    """Returns a data-parallel plan written by hand: the rows of each device, by micro-batch."""
    devices = DEVICES[: len(microbatches[0])]
    entries = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": sum(map(sum, microbatches)),
        "pipelines": [
            {
                "microbatches": [{"rows": sum(rows), "lengths": rows} for rows in microbatches],
                "stages": [{"mesh": {"axes": ["x"], "shape": [len(devices)], "devices": devices}}],
            }
        ],
    }
    return medley.plan(graph, parse_cluster(CLUSTER), plan=medley.Plan.from_dict(entries))


def tokens(step: int, rows: int = 8, length: int = 32) -> dict[str, Tensor]:
    """Returns a batch in which rows have different numbers of labels that count."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 256, (rows, length + 1), generator=generator)
    labels = ids[:, 1:].clone()
    for row in range(rows):
        labels[row, length - row :] = -100
    return {"input_ids": ids[:, :-1].contiguous(), "labels": labels}


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Returns the largest difference, relative to the largest element of its tensor."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - expected[name]).detach().abs().max() / expected[name].abs().max())
        for name in expected
    )


class Eager:
    """The reference: plain PyTorch on one device, our dropout and losses substituted."""

    def __init__(self, model: nn.Module, make: Callable[[Any], Any], max_norm: float = 0) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = make(self.model.parameters())
        self.max_norm = max_norm
        self.steps = 0

    def step(self, batch: Any, rate: float | None = None) -> tuple[float, float]:
        """Returns loss and gradient norm."""
        custom_ops.set_rng(SEED, self.steps)
        self.steps += 1
        self.optimizer.zero_grad()
        with substitute(self.model):
            loss = self.model(**batch) if isinstance(batch, dict) else self.model(*batch)
            loss.backward()
        self.gradients = {n: p.grad.clone() for n, p in self.model.named_parameters()}
        norm = torch.nn.utils.get_total_norm(self.gradients.values())
        if self.max_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        self.optimizer.step()
        return loss.item(), norm.item()

    def parameters(self) -> dict[str, Tensor]:
        """Returns the parameters by name."""
        return {name: value.detach() for name, value in self.model.named_parameters()}


_made_of: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
_graphs: dict[tuple[str, str], medley.Graph] = {}  # by model and types


def small_gpt(**overrides: Any) -> nn.Module:
    """Returns a GPT in fp64 with fixed initial values."""
    torch.manual_seed(0)
    model = gpt(**overrides)[0].double()
    _made_of[model] = repr(sorted(overrides.items()))
    return model


def captured(model: nn.Module, batch: Any) -> medley.Graph:
    """Captures a small_gpt() once for batches of the same types, and any other model."""
    if model not in _made_of or not isinstance(batch, dict):
        return medley.capture(model, batch)
    types = [(p.dtype, p.shape, p.requires_grad) for p in model.parameters()]
    shapes = [(name, each.dtype, each.shape) for name, each in batch.items()]
    key = (_made_of[model], repr((types, shapes, model.training)))
    if key not in _graphs:
        _graphs[key] = medley.capture(model, batch)
    return _graphs[key]


def trainer_of(
    model: nn.Module, batch: Any, microbatches: list[list[int]], **options: Any
) -> medley.Trainer:
    """Returns a local trainer with a plan written by hand."""
    graph = captured(model, batch)
    return medley.Trainer(model, graph, make_plan(graph, microbatches), seed=SEED, **options)


def test_trainer_ends_with_its_last_reference() -> None:
    trainer = trainer_of(small_gpt(), tokens(0), [[7, 1]])
    trainer.step(tokens(0))
    gone = weakref.ref(trainer)
    gc.disable()  # keeps reference cycles
    try:
        del trainer
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("microbatches", "steps"),
    [
        ([[7, 1]], 20),
        ([[3, 1], [2, 2]], 10),  # equal sizes, different shares
        ([[5, 0], [0, 1], [1, 1]], 10),  # different sizes, one device absent in two of them
        ([[4, 0, 3, 1]], 10),
    ],
    ids=str,
)
def test_unequal_devices_train_like_one(microbatches: list[list[int]], steps: int) -> None:
    model = small_gpt(dropout=0.1)
    eager = Eager(model, lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1))
    trainer = trainer_of(
        model, tokens(0), microbatches, optimizer=medley.AdamW(lr=1e-3, weight_decay=0.1)
    )
    for step in range(steps):
        loss, norm = eager.step(tokens(step))
        metrics = trainer.step(tokens(step))
        assert metrics.loss == pytest.approx(loss, rel=1e-10)
        assert metrics.grad_norm == pytest.approx(norm, rel=1e-10)
        assert worst(trainer.gradients(), eager.gradients) < 1e-10
    assert worst(trainer.parameters(), eager.parameters()) < 1e-10


def test_a_step_reads_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_gpt()
    trainer = trainer_of(model, tokens(0), [[5, 3]])
    trainer.step(tokens(0))
    trainer.evaluate(tokens(0))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a step reads JSON")

    for module, name in ((json, "loads"), (json, "load"), (_core, "Plan")):
        monkeypatch.setattr(module, name, refuse)
    trainer.step(tokens(1))
    trainer.evaluate(tokens(1, rows=5))


def test_a_plan_is_copied_and_pickled() -> None:
    plan = medley.Plan.from_dict(json.loads(PLAN_OF_FOUR))
    for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert other == plan
        assert other.devices == plan.devices == ["a/0/0"]


def test_sgd_clipping_and_schedule() -> None:
    model = small_gpt()
    schedule = medley.cosine(0.1, steps=10, warmup_steps=3)
    eager = Eager(
        model,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        max_norm=0.5,
    )
    optimizer = medley.SGD(
        lr=schedule, momentum=0.9, nesterov=True, weight_decay=0.01, max_norm=0.5
    )
    trainer = trainer_of(model, tokens(0), [[5, 3]], optimizer=optimizer)
    for step in range(10):
        loss, norm = eager.step(tokens(step), schedule(step))
        metrics = trainer.step(tokens(step))
        assert (metrics.loss, metrics.grad_norm) == pytest.approx((loss, norm), rel=1e-10)
    assert norm > 0.5  # or nothing was clipped
    # PyTorch divides by norm + 1e-6.
    assert worst(trainer.parameters(), eager.parameters()) < 1e-5


def test_fewer_rows_than_devices() -> None:
    model = small_gpt()
    eager = Eager(model, lambda p: torch.optim.AdamW(p, lr=1e-3))
    trainer = trainer_of(model, tokens(0, rows=2), [[1, 0, 1, 0]], optimizer=medley.AdamW(lr=1e-3))
    for step in range(3):
        loss, _ = eager.step(tokens(step, rows=2))
        assert trainer.step(tokens(step, rows=2)).loss == pytest.approx(loss, rel=1e-10)


def test_schedules() -> None:
    warm = medley.warmup(1.0, 4)
    assert [warm(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    fall = medley.cosine(1.0, steps=10, warmup_steps=2, floor=0.1)
    assert fall(0) == 0.5
    assert fall(1) == fall(2) == 1.0
    assert fall(6) == pytest.approx(0.55)
    assert fall(10) == fall(99) == pytest.approx(0.1)


def test_saved_model_loads_without_medley(tmp_path: Path) -> None:
    model = small_gpt()
    trainer = trainer_of(model, tokens(0), [[7, 1]])
    trainer.step(tokens(0))
    trainer.save_model(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    fresh = small_gpt()
    missing, unexpected = safetensors.torch.load_model(
        fresh, tmp_path / "out" / "model.safetensors"
    )
    assert not missing
    assert not unexpected
    assert worst(dict(fresh.named_parameters()), trainer.parameters()) == 0
    again = trainer_of(fresh, tokens(0), [[2, 6]])
    third = trainer_of(small_gpt(), tokens(0), [[8, 0]])
    third.load_model(tmp_path / "out")
    expected = pytest.approx(trainer.step(tokens(1)).loss, rel=1e-12)
    assert (again.step(tokens(1)).loss, third.step(tokens(1)).loss) == (expected, expected)


def test_a_loaded_model_starts_anew() -> None:
    model = small_gpt()
    fresh, used = (trainer_of(model, tokens(0), [[7, 1]]) for _ in range(2))
    losses = [fresh.step(tokens(step)).loss for step in range(3)]
    for step in range(3):
        used.step(tokens(step + 5))
    with tempfile.TemporaryDirectory() as folder:
        safetensors.torch.save_model(model, f"{folder}/model.safetensors")
        used.load_model(folder)
    assert [used.step(tokens(step)).loss for step in range(3)] == losses


def test_a_file_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(small_gpt(), tokens(0), [[7, 1]])
    trainer.step(tokens(0))
    before = trainer.parameters()
    path = tmp_path / "model.safetensors"
    right = {name: value.clone() for name, value in before.items()}
    first = sorted(right)[0]
    for change, sentence in (
        ({}, "has 'a', 'zzz', which the model has not; expected what save_model"),
        ({first: None}, f"lacks '{first}' and has 'a', 'zzz'"),
        (dict.fromkeys(right), "lacks '.*' and [0-9]+ more and has 'a', 'zzz'"),
    ):
        found = right | {"zzz": torch.zeros(2), "a": torch.zeros(1)} | change
        safetensors.torch.save_file({k: v for k, v in found.items() if v is not None}, path)
        with pytest.raises(ValueError, match=rf"model\.safetensors: {sentence}"):
            trainer.load_model(tmp_path)
    for value, sentence in (
        (right[first].float(), f"parameter '{first}': found torch.float32 of shape"),
        (right[first].flatten()[1:], f"parameter '{first}': found torch.float64 of shape"),
    ):
        safetensors.torch.save_file(right | {first: value.clone()}, path)
        with pytest.raises(ValueError, match=sentence):
            trainer.load_model(tmp_path)
    assert worst(trainer.parameters(), before) == 0
    assert trainer.steps == 1
    safetensors.torch.save_file(right, path)
    trainer.load_model(tmp_path)


def test_metrics() -> None:
    trainer = trainer_of(small_gpt(), tokens(0), [[7, 1]])
    trainer.step(tokens(0))
    metrics = trainer.step(tokens(1))
    assert metrics.step == 1
    assert metrics.tokens_per_second == pytest.approx(8 * 32 / metrics.step_seconds)
    assert metrics.devices.keys() == {"fast/0/0", "slow/0/0"}
    assert 0 <= metrics.waiting <= 1


def test_memory_of_a_replicated_model_is_counted_on_every_device() -> None:
    model = small_gpt()
    bytes_of_parameters = sum(p.numel() * 8 for p in model.parameters())
    memory = trainer_of(model, tokens(0), [[7, 1]]).memory()
    for use in memory.values():
        assert use["persistent"] == pytest.approx(3 * bytes_of_parameters, rel=1e-3)
    assert memory["fast/0/0"]["peak"] > memory["slow/0/0"]["peak"]


# A notebook continues after Ctrl-C. Without counting an interrupted step, the next one would have
# the same number.
@pytest.mark.parametrize("rows", [[8], [7, 1]])
def test_ctrl_c_takes_effect_after_the_current_step(
    rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[bool] = []

    def interrupt(call: str, exchange: str) -> None:
        if due and due.pop():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    make = _runtime.Run
    monkeypatch.setattr(
        _runtime,
        "Run",
        lambda program, cluster, options: make(program, cluster, options | {"on_step": interrupt}),
    )
    trainer = trainer_of(small_gpt(), tokens(0), [rows])
    trainer.step(tokens(0))
    due.append(True)
    # A shell lets background processes ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.step(tokens(0))
    finally:
        signal.signal(signal.SIGINT, before)
    assert trainer.steps == 2
    trainer.step(tokens(0))
    monkeypatch.undo()
    other = trainer_of(small_gpt(), tokens(0), [rows])
    for _ in range(3):
        other.step(tokens(0))
    assert worst(trainer.parameters(), other.parameters()) == 0


# --- mistakes of users ---


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda b: {"input_ids": b["input_ids"]}, 'batch: found the keys "input_ids", expected'),
        (
            lambda b: b | {"labels": b["labels"].int()},
            r'batch\["labels"\]: found i32\[8, 32\], expected i64\[8, 32\]$',
        ),
        (
            lambda b: b | {"labels": b["labels"][:7]},
            r'batch\["labels"\]: found i64\[7, 32\], expected i64\[8, 32\]$',
        ),
        (
            lambda b: b | {"labels": b["labels"][:, :5]},
            r'of length 32, batch\["labels"\] of length 5, expected one length',
        ),
        (lambda b: 3, "batch: expected a tensor, a tuple or list of tensors"),
        (
            lambda b: b | {"labels": b["labels"].numpy()},
            r'batch\["labels"\]: found ndarray, expected a dense tensor$',
        ),
        (
            lambda b: b | {"labels": b["labels"].to("meta")},
            r'batch\["labels"\]: found a tensor on meta, expected a dense tensor$',
        ),
        (
            lambda b: b | {"labels": b["labels"].to_sparse()},
            r'batch\["labels"\]: found a sparse tensor, expected a dense tensor$',
        ),
    ],
)
def test_wrong_batches_are_named_and_do_no_harm(change: Any, sentence: str) -> None:
    trainer = trainer_of(small_gpt(), tokens(0), [[7, 1]])
    before = trainer.parameters()
    with pytest.raises(ValueError, match=sentence):
        trainer.step(change(tokens(0)))
    assert worst(trainer.parameters(), before) == 0
    trainer.step(tokens(0))


def test_arguments_of_other_kinds_are_refused_in_words() -> None:
    trainer = trainer_of(small_gpt(), tokens(0), [[7, 1]])
    model, graph, cluster = small_gpt(), trainer.engine.graph, trainer.plan.cluster
    others: list[tuple[dict[str, Any], str]] = [
        ({"global_batch": "8"}, "global_batch: found '8', expected a whole number"),
        ({"global_batch": 8.0}, "global_batch: found 8.0, expected a whole number"),
        ({"global_batch": 2**70}, "global_batch: found 1180591620717411303424, expected less than"),
        ({"microbatches": "2"}, "microbatches: found '2', expected a whole number"),
        ({"strategy": 3}, "strategy: found 3, expected a name"),
        ({"cluster": None}, "cluster: found NoneType, expected the path of a cluster.yaml"),
        ({"graph": "gpt.graph"}, "graph: found str, expected what medley.capture"),
        (
            {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)},
            "optimizer: found torch.optim.sgd.SGD, expected medley.AdamW",
        ),
        ({"optimizer": medley.AdamW}, "optimizer: found medley.optimizer.AdamW, expected medley"),
    ]
    for changed, sentence in others:
        arguments: dict[str, Any] = {"graph": graph, "cluster": cluster, "global_batch": 8}
        with pytest.raises(ValueError, match=f"^{sentence}"):
            medley.plan(**(arguments | changed))
    with pytest.raises(ValueError, match=r"^optimizer: found torch.optim.lbfgs.LBFGS"):
        medley.Trainer(
            model,
            graph,
            trainer.plan,
            torch.optim.LBFGS(model.parameters()),
        )


def test_plan_of_another_graph() -> None:
    graph = captured(small_gpt(), tokens(0))
    other, batch = mlp()
    plan = medley.plan(graph, parse_cluster(CLUSTER), "data-parallel-even", global_batch=8)
    with pytest.raises(ValueError, match="graph"):
        medley.Trainer(other, medley.capture(other, batch), plan)


def test_plan_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"format": "medley-plan", "version": 7}')
    with pytest.raises(ValueError, match=r"plan\.json: .*version.*7"):
        medley.Plan.load(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        medley.Plan.load(tmp_path / "nowhere.json")


def test_model_without_values() -> None:
    model = small_gpt()
    graph = medley.capture(model, tokens(0))
    with pytest.raises(ValueError, match="on the meta device"):
        medley.Trainer(model.to("meta"), graph, make_plan(graph, [[7, 1]]))


def test_model_of_another_type_or_shape() -> None:
    graph = captured(small_gpt(), tokens(0))
    plan = make_plan(graph, [[7, 1]])
    for model, sentence in (
        (small_gpt().float(), "found torch.float32 of shape .* the graph expects torch.float64"),
        (small_gpt(size="tiny", width=32), r"found torch.float64 of shape .*32.* expects .*64.*64"),
        (mlp()[0], "the model has none"),
    ):
        with pytest.raises(ValueError, match=rf"parameter '.*': {sentence}"):
            medley.Trainer(model, graph, plan)


class _WithAConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.table = [torch.tensor([0.3, -1.2, 2.5, 0.7])]  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = (self.fc(x) * self.table[0]).square().mean()
        return loss


def test_a_graph_from_a_file_has_no_values_of_constants(tmp_path: Path) -> None:
    graph = medley.capture(_WithAConstant(), {"x": torch.randn(8, 4)})
    (tmp_path / "g.graph").write_text(graph.text())
    read = medley.Graph.load(tmp_path / "g.graph")
    with pytest.raises(ValueError, match=r"'constant:0'.*capture the model in the script"):
        medley.Trainer(_WithAConstant(), read, make_plan(read, [[7, 1]]))


def test_optimizers_refuse_what_makes_no_sense() -> None:
    for make in (
        lambda: medley.AdamW(lr=-1.0),
        lambda: medley.AdamW(betas=(0.9, 1.5)),
        lambda: medley.SGD(nesterov=True),
        lambda: medley.SGD(max_norm=0.0),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1e-3, None, "fast"], ids=str)
def test_a_learning_rate_that_is_none_ends_the_training_before_it_is_used(rate: Any) -> None:
    schedule = {0: 1e-3, 1: rate, 2: 1e-3}
    trainer = trainer_of(
        small_gpt(), tokens(0), [[7, 1]], optimizer=medley.AdamW(lr=lambda step: schedule[step])
    )
    trainer.step(tokens(0))
    before = trainer.parameters()
    with pytest.raises(ValueError, match=f"AdamW: lr: found {rate} in step 1, expected a number"):
        trainer.step(tokens(1))
    assert worst(trainer.parameters(), before) == 0
    schedule[1] = 1e-3
    assert trainer.step(tokens(1)).step == 1


# --- rows of one device ---


def test_batch_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(small_gpt(), tokens(0))
    plan = make_plan(graph, [[3, 1, 0], [2, 2, 0]])
    data = range(20)
    assert list(medley.BatchSampler(plan, data)) == [list(range(8)), list(range(8, 16))]
    monkeypatch.setenv("WORLD_SIZE", "3")
    by_rank = []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("RANK", rank)
        by_rank.append(list(medley.BatchSampler(plan, data)))
    assert by_rank[0] == [[0, 1, 2, 4, 5], [8, 9, 10, 12, 13]]
    assert by_rank[1] == [[3, 6, 7], [11, 14, 15]]
    assert by_rank[2] == [[0], [8]]  # it has none: Trainer ignores its row
    unknown = medley.Plan(plan.text)  # its rows require graph and cluster
    assert list(medley.BatchSampler(unknown, data)) == [list(range(8)), list(range(8, 16))]
    shuffled = medley.BatchSampler(plan, data, shuffle=True, seed=1)
    first = list(shuffled)
    shuffled.set_epoch(1)
    assert first != list(shuffled)
    with pytest.raises(ValueError, match="found a data set of 7 rows"):
        medley.BatchSampler(plan, range(7))


# Stages between the first and the last do not read the batch.
def test_batch_sampler_of_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(small_gpt(), tokens(0))
    forward = [name for name in graph.core.stable_names() if "~" not in name]
    entries = make_plan(graph, [[3, 1], [2, 2]]).to_dict()
    stages = entries["pipelines"][0]["stages"]
    stages[0]["mesh"]["devices"] = DEVICES[:2]
    for i in (1, 2):
        first = forward[len(forward) * i // 3]
        stages.append({"mesh": {"devices": [DEVICES[1 + i]]}, "first": first})
    machines = parse_cluster(CLUSTER)
    plan = medley.plan(graph, machines, plan=medley.Plan.from_dict(entries))
    monkeypatch.setenv("WORLD_SIZE", "4")
    by_rank = []
    for rank in ("0", "1", "2", "3"):
        monkeypatch.setenv("RANK", rank)
        by_rank.append(list(medley.BatchSampler(plan, range(8))))
    assert by_rank == [[[0, 1, 2, 4, 5]], [[3, 6, 7]], [[0]], [list(range(8))]]
