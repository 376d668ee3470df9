"""A capture verifies itself: the graph is compared with the model in plain PyTorch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from zoo import ZOO
from zoo_names import names_but

import medley
from medley import custom_ops, first_step
from medley.capture import CaptureError, attention, draws, interception
from medley.capture.graph_text import GraphText
from medley.graph import compare

CLUSTER = """
format: medley-cluster
version: 1
nodes: [{name: a, count: 1, device: CPU, devices_per_node: 1}]
networks: [{name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}]
"""


@pytest.fixture(autouse=True)
def unchecked_is_an_error() -> Iterator[None]:
    """Fails a test in which a graph is not checked without its expecting that."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the graph is not checked")
        yield


class Attending(nn.Module):
    """Attention of rows with a mask. `mask` makes an additive one from the visible keys of each
    row."""

    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor], values: int, p: float) -> None:
        super().__init__()
        self.mask, self.p = mask, p
        self.q, self.v = nn.Linear(4, 4), nn.Linear(4, values)
        self.out = nn.Linear(values, 2)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, v = self.q(x)[:, None], self.v(x)[:, None]
        mask = self.mask(x.new_zeros(len(x), 1, 5, 5), keep[:, None, None])
        return self.out(F.scaled_dot_product_attention(q, q, v, mask, self.p)).pow(2).mean()


def attending(value: float = -torch.inf, values: int = 4, p: float = 0.0) -> tuple[nn.Module, Any]:
    def mask(zeros: Tensor, keep: Tensor) -> Tensor:
        return zeros.masked_fill(~keep, value)

    keep = torch.ones(4, 5, dtype=torch.bool)
    return Attending(mask, values, p), {"x": torch.randn(4, 5, 4), "keep": keep}


def refusal(model: nn.Module, batch: Any) -> str:
    with pytest.raises(CaptureError) as error:
        medley.capture(model, batch)
    assert len(str(error.value).splitlines()) <= 6
    return str(error.value)


# --- faults that have been, put back --------------------------------------------------------------


def test_check_finds_texts_of_a_row_that_see_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers import masking_utils

    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        use_cache=False,
    )
    ids = torch.randint(0, 61, (4, 12))
    batch = {
        "input_ids": ids,
        "position_ids": torch.arange(12).expand(4, -1).clone(),  # one text in each row
        "labels": ids.clone(),
    }
    before = interception.transformers_patches

    def patches() -> Iterator[tuple[Any, str, Any]]:
        yield from before()
        yield masking_utils, "find_packed_sequence_indices", lambda *_, **__: None

    monkeypatch.setattr(interception, "transformers_patches", patches)
    found = refusal(transformers.LlamaForCausalLM(config), batch)
    assert "module 'model.layers.0.self_attn', " in found
    assert "texts in the middle of rows" in found


def test_check_finds_a_query_that_sees_nothing_under_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain(dropout: Any, q: Any, k: Any, v: Any, bias: Any, p: float, _: bool, scale: float):  # type: ignore[no-untyped-def]
        return dropout(F.softmax(q @ k.transpose(-1, -2) * scale + bias, -1), p) @ v

    monkeypatch.setattr(attention, "_explicit", plain)
    found = refusal(*attending(p=1e-13))
    assert "loss is nan" in found and "module ''" in found and "test_proof.py:" in found


def test_check_finds_a_kernel_that_loses_a_logarithm() -> None:
    def faulty(q: Tensor, k: Tensor, v: Tensor, bias: Any, causal: bool, scale: float) -> Any:
        scores = q @ k.transpose(-1, -2) * scale + bias
        lse = scores.logsumexp(-1)
        return (scores - lse.unsqueeze(-1)).exp() @ v, lse

    library = torch.library.Library("medley", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("attention", faulty, "CPU", allow_override=True)
        found = refusal(*attending(-1e9, values=3))
    finally:
        library._destroy()
    assert "module ''" in found and "test_proof.py:" in found


class Following(nn.Module):
    """A teacher that follows its student by `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.follows = True
        self.student = nn.Linear(6, 6)
        self.teacher = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.follows:
            for a, b in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                b.data = 0.5 * b.data + 0.5 * a.data
        return F.mse_loss(self.student(x), self.teacher(x) + 1)


def test_check_finds_a_parameter_that_forward_changes() -> None:
    model, x = Following(), torch.randn(5, 6)
    model.follows = False
    graph = medley.capture(model, x)
    before = copy.deepcopy(model.state_dict())
    model.follows = True
    with pytest.raises(
        CaptureError, match=r"module 'teacher', test_proof.py:\d+: .*teacher.weight"
    ):
        compare(graph, model, x)
    assert all(torch.equal(model.state_dict()[name], each) for name, each in before.items())


class Chain(nn.Module):
    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm = nn.LayerNorm(8, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).tanh()).pow(2).mean()


def test_check_names_the_module_that_computes_something_else() -> None:
    model, x = Chain(), torch.randn(4, 6)
    graph = medley.capture(model, x)
    model.norm.eps = 1e-2
    with pytest.raises(CaptureError, match=r"module 'norm', test_proof.py:\d+: .*loss is"):
        compare(graph, model, x)


def test_check_names_the_module_whose_gradient_is_another_one() -> None:
    model, x = Chain(), torch.randn(4, 6)
    graph = medley.capture(model, x)
    model.second.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(CaptureError, match=r"module 'second'.*gradient:second.weight"):
        compare(graph, model, x)


@pytest.mark.parametrize("name", names_but([name for name in ZOO if name != "gpt-dropout"]))
def test_check_takes_every_model_of_the_zoo(name: str) -> None:
    medley.capture(*ZOO[name](), check=True)


# --- skipped checks, and unchanged state ----------------------------------------------------------


def test_check_says_that_a_model_without_values_is_not_checked() -> None:
    with torch.device("meta"):
        model = Chain()
    with pytest.warns(UserWarning, match="not checked beside the model: its parameters"):
        graph = medley.capture(model, torch.randn(4, 6))
    assert graph.unchecked
    assert not medley.capture(model, torch.randn(4, 6), check=False).unchecked
    with pytest.raises(CaptureError, match="check=True: the graph cannot be checked"):
        medley.capture(model, torch.randn(4, 6), check=True)


def test_trainer_checks_in_its_first_step_what_capture_could_not(tmp_path: Any) -> None:
    model, x = Chain(), torch.randn(4, 6)
    file, cluster = tmp_path / "chain.graph", tmp_path / "cluster.yaml"
    file.write_text(medley.capture(model, x).text())
    cluster.write_text(CLUSTER)
    graph = medley.Graph.load(file)
    plan = medley.plan(graph, str(cluster), global_batch=4)
    trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.0), local=True)
    assert trainer.step(x).loss == pytest.approx(float(model(x)))
    model.norm.eps = 1e-2
    trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.0), local=True)
    with pytest.raises(CaptureError, match="module 'norm'"):
        trainer.step(x)


class Stateful(nn.Module):
    """Changes buffers, draws numbers, has a hook and a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(6))
        self.norm.eval()
        self.a.weight.register_hook(lambda gradient: gradient * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.detach().mean(0)
        return self.norm(self.drop(self.a(x)) + torch.rand_like(x)).pow(2).mean()


def test_check_leaves_the_model_as_it_was() -> None:
    model, x = Stateful(), torch.randn(4, 6)
    model.a.weight.grad = torch.ones(6, 6)
    before = copy.deepcopy(model.state_dict())
    buffers = dict(model.named_buffers())
    state = torch.get_rng_state()
    medley.capture(model, x, check=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(model.state_dict()[name], each) for name, each in before.items())
    assert all(each is buffers[name] for name, each in model.named_buffers())
    assert model.training and not model.norm.training
    assert torch.equal(model.a.weight.grad, torch.ones(6, 6)) and model.a.bias.grad is None
    assert not model.a._forward_hooks and not model.a._forward_pre_hooks


def test_check_takes_a_batch_of_one_row() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    wrapped = Loss(model)
    assert not medley.capture(wrapped, torch.randn(1, 6)).unchecked


class Loss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).pow(2).mean()


class Recogniser(nn.Module):
    """CTC of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 7)

    def forward(self, sound: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        scores = F.log_softmax(self.head(sound), dim=-1).transpose(0, 1)
        return F.ctc_loss(scores, targets, torch.full_like(lengths, 12), lengths)


def test_check_takes_targets_that_look_like_a_mask() -> None:
    batch = torch.randn(4, 12, 5), torch.ones(4, 4).long(), torch.full((4,), 3)
    assert not medley.capture(Recogniser(), batch).unchecked
    batch[1][:, 3] = 0  # pads
    assert not medley.capture(Recogniser(), batch).unchecked


# --- the draws of plain PyTorch -------------------------------------------------------------------


def test_substitute_is_reachable_and_draws_as_the_trainer_does(tmp_path: Any) -> None:
    model, batch = attending(p=0.4)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, str(cluster), global_batch=4)
    trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.0), seed=7, local=True)
    for step in range(2):
        with medley.substitute(model, seed=7, step=step):
            expected = float(model(**batch))
        assert trainer.step(batch).loss == pytest.approx(expected, rel=1e-5)
    assert medley.substitute is draws.substitute


@pytest.mark.parametrize("reentrant", [False, True])
def test_substitute_draws_the_same_again_under_checkpointing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.drop = nn.Linear(6, 6), nn.Dropout(0.5)

        def forward(self, x: Tensor, saves: bool = True) -> Tensor:
            for _ in range(2):
                part = lambda x: self.drop(self.a(x).tanh())  # noqa: E731
                if saves:
                    x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=reentrant)
                else:
                    x = part(x)
            return x.pow(2).mean()

    model, x = Checkpointed(), torch.randn(4, 6, requires_grad=True)
    gradients = []
    for saves in (True, False):
        model.zero_grad()
        with medley.substitute(model, seed=1):
            model(x, saves).backward()
        gradients.append(model.a.weight.grad.clone())
    assert torch.equal(*gradients)
    custom_ops.set_rng(0, 0)


# --- micro-batches that are batches of their own --------------------------------------------------


class Penalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).pow(2).mean() + 0.1 * self.a.weight.pow(2).sum()


class Averaged(nn.Module):
    """Its rows have the mean of the batches before taken away: each micro-batch moves the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 1)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.5).add_(0.5 * x.mean(0))
        return self.a(x - self.mean).pow(2).mean()


def step_by_microbatches(
    tmp_path: Any, make: Callable[[], nn.Module] = Penalised
) -> tuple[float, float]:
    """Returns the loss of a trainer and that of PyTorch's mean over two micro-batches."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    model, x = make(), torch.randn(4, 6)
    graph = medley.capture(model, x)
    entries = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": 4,
        "loss_over": "microbatches",
        "pipelines": [
            {"microbatches": [{"rows": 2}] * 2, "stages": [{"mesh": {"devices": ["a/0/0"]}}]}
        ],
    }
    plan = medley.plan(graph, str(cluster), plan=medley.Plan.from_dict(entries))
    trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.0), local=True)
    return trainer.step(x).loss, sum(float(model(part)) / 2 for part in x.chunk(2))


def test_first_step_finds_a_penalty_that_counts_once_per_microbatch(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted_twice(_: Any, graph: Any, model: Any, machines: Any, x: Tensor, rows: int) -> Any:
        model = copy.deepcopy(model)
        loss = model.a(x).pow(2).mean() + 2 * 0.1 * model.a.weight.pow(2).sum()
        loss.backward()
        gradients = {f"gradient:{name}": each.grad for name, each in model.named_parameters()}
        return {"loss": loss.detach()} | gradients

    monkeypatch.setattr(first_step, "_trained", counted_twice)
    with pytest.raises(CaptureError, match=r"module 'a', test_proof.py:\d+: two micro-batches"):
        step_by_microbatches(tmp_path)


def test_first_step_checks_buffers_that_each_microbatch_changes(tmp_path: Any) -> None:
    step_by_microbatches(tmp_path, Averaged)


@pytest.mark.parametrize("name", ["buffer:mean", "gradient:a.weight"])
def test_first_step_finds_a_buffer_that_a_microbatch_does_not_change(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_one(make: Any, graph: Any, model: Any, machines: Any, x: Tensor, rows: int) -> Any:
        found = trained(make, graph, model, machines, x, rows)
        model = copy.deepcopy(model)
        model(x).backward()
        wrong = {"buffer:mean": model.mean, "gradient:a.weight": model.a.weight.grad}
        return found | {name: wrong[name]}

    trained = first_step._trained
    monkeypatch.setattr(first_step, "_trained", as_one)
    with pytest.raises(CaptureError, match=rf"test_proof.py:\d+: two micro-batches.*{name}"):
        step_by_microbatches(tmp_path, Averaged)


def test_graph_text_counts_no_bytes_for_views() -> None:
    text = GraphText(
        'graph "g" version 1\nsymbols b\n%0 = batch "x" : f32[b, 4]\n'
        '%1 = aten.view.default(%0, [b*4]) : f32[b*4] @forward ""\n'
        '%2 = aten.unbind.int(%0, 1) : f32[b] @forward ""\n'
        '%3 = aten.exp.default(%1) : f32[b*4] @forward ""\n'
    )
    assert text.bytes({"b": 3}) == 3 * 4 * 4
