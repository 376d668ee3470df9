"""The stages of a graph, run in sequence, compute the result of the whole graph."""

from __future__ import annotations

import functools
from typing import Any

import graph_interpreter
import pytest
import torch
from captured import capture_text
from torch import Tensor, nn
from zoo import LARGE, ZOO
from zoo_names import NAMES, names_but

from medley import _core, custom_ops

RNG = custom_ops.make_rng(2024, 7)
ROWS = 3


@functools.cache
def captured(name: str) -> tuple[_core.Graph, dict[str, Tensor], dict[str, Tensor]]:
    """Returns a graph of the zoo in float64 after the passes, the model's state, and a batch."""
    torch.manual_seed(0)
    model, batch = ZOO[name]()
    # test_capture.py tests the second batch size.
    text = capture_text(model, batch, name, check=False).replace("f32", "f64")
    model = model.double()
    state = {k: t.detach() for k, t in (*model.named_parameters(), *model.named_buffers())}
    rows = {k: t[:ROWS].double() if t.is_floating_point() else t[:ROWS] for k, t in batch.items()}
    return _core.Graph.parse(text).run_passes()[0], state, rows


class Stage:
    """A stage's graph, one phase at a time. Its sends are put into `mail`."""

    def __init__(self, graph: _core.Graph) -> None:
        self.lines = graph.text().splitlines()
        self.env: dict[str, Tensor] = {}
        self.outputs: dict[tuple[str, str], Tensor] = {}

    def run(self, backward: bool, inputs: dict[str, Any], mail: dict[str, Tensor]) -> None:
        for line in self.lines:
            if found := graph_interpreter._OUTPUT.fullmatch(line):
                kind, name, value = found.groups()
                if value in self.env:
                    target: Any = mail if kind == "sent" else self.outputs
                    name = name[1:-1] if name else ""
                    target[name if kind == "sent" else (kind, name)] = self.env[value]
            elif found := graph_interpreter._LINE.match(line):
                names, op, arguments, _, phase = found.groups()[:5]
                if (phase == "backward") == backward:
                    parsed = graph_interpreter.parse_arguments(arguments, self.env, ROWS)
                    values = graph_interpreter.call(op, parsed)
                    values = values if isinstance(values, (tuple, list)) else [values]
                    self.env |= dict(zip(names.split(", "), values, strict=True))
            elif found := graph_interpreter._INPUT.fullmatch(line):
                value, kind, name = found.groups()[:3]
                source = mail if kind == "received" else inputs[kind]
                if kind != "received" or name[1:-1] in mail:
                    self.env[value] = source[name[1:-1]]


def assert_stages_are_the_whole(name: str, cuts: list[int]) -> None:
    graph, state, batch = captured(name)
    whole = graph_interpreter.run(graph.text(), state, batch, RNG)
    inputs = {"parameter": state, "buffer": state, "batch": batch, "scalar": {"rng": RNG}}
    stages = [Stage(each) for each in _core.cut(graph, cuts)]
    mail: dict[str, Tensor] = {}
    for stage in stages:
        stage.run(False, inputs, mail)
    for stage in reversed(stages):
        stage.run(True, inputs, mail)
    (loss,) = (s.outputs[("loss", "")] for s in stages if ("loss", "") in s.outputs)
    assert torch.equal(loss, whole.loss)
    for buffer, value in whole.buffers.items():
        (found,) = (
            s.outputs[("buffer", buffer)] for s in stages if ("buffer", buffer) in s.outputs
        )
        assert torch.equal(found, value), buffer
    for parameter, gradient in whole.gradients.items():
        key = ("gradient", parameter)
        parts = [stage.outputs[key] for stage in stages if key in stage.outputs]
        if len(parts) == 1:
            assert torch.equal(parts[0], gradient), parameter
        else:  # parts of tied weights are added in another order
            assert torch.allclose(sum(parts, torch.zeros(())), gradient, rtol=1e-13, atol=1e-16)


EVERY_OP = ["gpt-dropout", "vgg-bn", "hf-t5", "resnet", "hf-mixtral-balanced"]


@pytest.mark.parametrize("name", NAMES)
def test_stages_compute_what_the_whole_graph_computes(name: str) -> None:
    n = _core.num_positions(captured(name)[0])
    for stages in (2, 3, 7):
        assert_stages_are_the_whole(name, [n * i // stages for i in range(1, stages)])


@pytest.mark.parametrize("name", names_but(LARGE, EVERY_OP))
def test_every_op_may_be_a_stage(name: str) -> None:
    n = _core.num_positions(captured(name)[0])
    assert_stages_are_the_whole(name, list(range(1, n)))


# Only by structure. The two layers of qwen3-moe and of moe differ.
BLOCKS = {"gpt": 1, "gpt-dropout": 1, "llama": 1, "bert": 1, "vit": 1, "hf-gpt2": 1, "hf-llama": 1}
BLOCKS |= {"hf-bert": 1, "hf-vit": 1, "hf-mixtral": 1, "hf-mixtral-balanced": 1, "hf-t5": 2}
# Blocks with an additional op in backward: T5's last decoder block begins the sum of the encoder's
# gradients, ViT's first takes the class token's gradient from that of the patches.
UNLIKE = {("hf-t5", 1), ("vit", 0), ("hf-vit", 0)}


class Noisy(nn.Module):
    """A block with noise inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return x + self.b((h + torch.randn_like(h)).relu())


class NoisyStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Noisy() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).pow(2).mean()  # type: ignore[no-any-return]


def test_blocks_with_own_random_numbers_are_isomorphic() -> None:
    text = capture_text(NoisyStack(), torch.randn(3, 16))
    layers = _core.layers(_core.Graph.parse(text, "noisy"))
    assert max(layer[2] for layer in layers) == 0


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_found_without_markers(name: str) -> None:
    graph = captured(name)[0]
    layers = _core.layers(graph)
    assert layers[0][0] == 0 and layers[-1][1] == _core.num_positions(graph)
    assert all(a[1] == b[0] for a, b in zip(layers, layers[1:], strict=False))
    for block in range(BLOCKS.get(name, 0)):
        structures = [layer[3] for layer in layers if layer[2] == block]
        assert len(structures) == 4 and structures[1] == structures[3]
        assert (structures[0] == structures[2]) != ((name, block) in UNLIKE)
    assert max(layer[2] for layer in layers) + 1 == BLOCKS.get(name, 0)
    assert_stages_are_the_whole(name, [layer[0] for layer in layers[1:]])
