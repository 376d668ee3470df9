"""Capture alone makes no weights, and gives the same graph."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from medley.capture import capture_full, weightless


class Net(nn.Module):
    """Tied weights, a buffer, a value for stochastic depth read from a tensor, and a recurrent
    layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.rates = [rate.item() for rate in torch.linspace(0.1, 0.5, 3)]
        self.memory = nn.LSTM(6, 6, batch_first=True)
        self.mix = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.full((6,), 2.0), requires_grad=False)
        self.register_buffer("positions", torch.arange(6.0))
        nn.init.orthogonal_(self.mix.out_proj.weight)

    def forward(self, ids: Tensor) -> Tensor:
        h, _ = self.memory(self.embedding(ids) + self.positions)
        h = h + self.mix(h, h, h, need_weights=False)[0] * self.rates[0] * self.scale
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), ids.flatten())


class ReadsItsWeights(nn.Module):
    """A model whose construction needs the values of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.norm = self.a.weight.norm().item()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).sum() / self.norm


class KeepsTheirValues(nn.Module):
    """A model with a tensor made of parameters that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.first = [self.a.weight.detach() * 2]

    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x) @ self.first[0]).sum()


def make(kind: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Tensor]]:
    """Returns a constructor of a model, the same each time, and its batch."""

    def made() -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        return kind(), torch.zeros(2, 6, dtype=torch.int64) if kind is Net else torch.ones(2, 3)

    return made


@pytest.mark.parametrize("kind", [Net, ReadsItsWeights, KeepsTheirValues])
def test_model_without_weights_is_captured_identically(kind: Callable[[], nn.Module]) -> None:
    real, batch = make(kind)()
    model, _ = weightless.load(make(kind))
    assert {p.is_meta for p in model.parameters()} == {kind is Net}
    found, expected = (capture_full(each, batch, "net", True) for each in (model, real))
    assert found.text == expected.text
    assert found.constants.keys() == expected.constants.keys()
    assert all(torch.equal(found.constants[k], v) for k, v in expected.constants.items())
    assert nn.Module.register_parameter.__module__ == "torch.nn.modules.module"


def test_a_model_that_cannot_be_made_says_why() -> None:
    def fail() -> tuple[nn.Module, None]:
        raise ValueError("no such metal")

    with pytest.raises(ValueError, match="no such metal"):
        weightless.load(fail)


# Two layers of Llama-70B, 9 GB of weights.
def test_the_command_line_makes_no_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    output = str(tmp_path / "g.graph")
    # Not ru_maxrss: a process inherits that of its parent.
    measured = (
        "import re, sys; from medley import cli; code = cli.run(sys.argv[1:]); "
        "status = open('/proc/self/status').read(); "
        "print(re.search('VmHWM:[^0-9]*([0-9]+) kB', status)[1]); sys.exit(code)"
    )
    command = ["capture", f"hf:{tmp_path}/config.json", "--batch", "2x64", "-o", output]
    done = subprocess.run(
        [sys.executable, "-c", measured, *command],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 1 << 20  # KiB
    assert "f32[8192, 28672]" in Path(output).read_text()
