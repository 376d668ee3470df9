"""The C++ executor on whole captured graphs, against the same ops called one by one from Python."""

from __future__ import annotations

import graph_interpreter
import pytest
import torch
from torch import Tensor
from zoo import ZOO
from zoo_names import ALL_BUT_LARGE

from medley import custom_ops
from medley.capture import capture_full

_runtime = pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

RNG = custom_ops.make_rng(2024, 7)


def inputs_of(text: str, state: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the inputs of a graph under the names of GraphRunner."""
    sources = {"parameter": state, "buffer": state, "batch": batch, "scalar": {"rng": RNG}}
    found = graph_interpreter._INPUT.findall(text)
    return {f"{kind}:{name[1:-1]}": sources[kind][name[1:-1]] for _, kind, name, _ in found}


def close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = 1e-3 + float(expected.double().abs().max()) if expected.numel() else 1.0
    error = float((found.double() - expected.double()).abs().max()) if expected.numel() else 0.0
    assert found.shape == expected.shape and error / scale < 1e-12, f"{what}: {error / scale}"


@pytest.mark.parametrize("name", ALL_BUT_LARGE)
def test_runs_like_python(name: str) -> None:
    torch.manual_seed(0)
    model, batch = ZOO[name]()
    model = model.double()
    batch = {k: t.double() if t.is_floating_point() else t for k, t in batch.items()}
    capture = capture_full(model, batch, check=False)
    text = capture.text.replace("f32", "f64")
    constants = {
        k: t.double() if t.is_floating_point() else t for k, t in capture.constants.items()
    }
    state = {**dict(model.named_parameters()), **dict(model.named_buffers()), **constants}
    state = {k: t.detach() for k, t in state.items()}
    before = {k: t.clone() for k, t in {**state, **batch}.items()}

    expected = graph_interpreter.run(text, state, batch, RNG)
    rows = next(iter(batch.values())).shape[0]
    runner = _runtime.GraphRunner(text, [rows])
    found = runner.run(inputs_of(text, state, batch))
    found = {k: t.clone() for k, t in found.items()}
    close(found.pop("loss"), expected.loss, "loss")
    for kind, values in (("gradient", expected.gradients), ("buffer", expected.buffers)):
        for key, value in values.items():
            close(found.pop(f"{kind}:{key}"), value, key)
    assert not found
    for key, value in before.items():
        assert torch.equal({**state, **batch}[key], value), f"{key} was overwritten"

    again = runner.run(inputs_of(text, state, batch))
    close(again["loss"], expected.loss, "the loss of a second run")


GRAPH = """medley-graph 1
graph "small"
symbols b
%0 = parameter "w" : f32[8, 4]
%1 = parameter "bias" : f32[4]
%2 = batch "x" : f32[b, 8]
"""


def run(body: str, rows: int, inputs: dict[str, Tensor], head: str = GRAPH) -> dict[str, Tensor]:
    return _runtime.GraphRunner(head + body, [rows]).run(inputs)


@pytest.fixture
def small() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "parameter:w": torch.randn(8, 4),
        "parameter:bias": torch.randn(4),
        "batch:x": torch.randn(3, 8),
    }


def test_bias_is_added_in_the_product(small: dict[str, Tensor]) -> None:
    out = run(
        """%3 = aten.mm.default(%2, %0) : f32[b, 4] @forward ""
%4 = aten.add.Tensor(%1, %3, 1) : f32[b, 4] @forward ""
%5 = aten.relu.default(%4) : f32[b, 4] @forward ""
%6 = aten.sum.default(%5, none) : f32[] @forward ""
output loss %6
""",
        3,
        small,
    )
    w, bias, x = small.values()
    torch.testing.assert_close(out["loss"], torch.addmm(bias, x, w).relu().sum())


# Only values without another reader are overwritten: no input, no view of one, no value that is
# used again.
def test_shared_values_are_not_overwritten(small: dict[str, Tensor]) -> None:
    x = small["batch:x"]
    kept = x.clone()
    out = run(
        """%3 = aten.view.default(%2, [b*8]) : f32[b*8] @forward ""
%4 = aten.add.Tensor(%3, %3, 1) : f32[b*8] @forward ""
%5 = aten.relu.default(%4) : f32[b*8] @forward ""
%6 = aten.view.default(%4, [b, 8]) : f32[b, 8] @forward ""
%7 = aten.neg.default(%6) : f32[b, 8] @forward ""
%8 = aten.view.default(%4, [b*8]) : f32[b*8] @forward ""
%9 = aten.mul.Tensor(%5, %8) : f32[b*8] @forward ""
%10 = aten.sum.default(%9, none) : f32[] @forward ""
%11 = aten.sum.default(%7, none) : f32[] @forward ""
%12 = aten.add.Tensor(%10, %11, 1) : f32[] @forward ""
output loss %12
""",
        3,
        small,
    )
    assert torch.equal(x, kept)
    double = 2 * kept
    expected = (double.relu() * double).sum() - double.sum()
    torch.testing.assert_close(out["loss"], expected)


# The kernels of these ops kill the process, raise, or give nan without elements.
def test_no_rows(small: dict[str, Tensor]) -> None:
    small["batch:x"] = torch.zeros(0, 8)
    out = run(
        """%3 = aten.mm.default(%2, %0) : f32[b, 4] @forward ""
%4 = aten.add.Tensor(%3, %1, 1) : f32[b, 4] @forward ""
%5 = aten.view.default(%4, [b, 1, 2, 2]) : f32[b, 1, 2, 2] @forward ""
%6, %7 = medley.attention.default(%5, %5, %5, none, true, 1.0) : ATTENTION @forward ""
%8 = aten.amax.default(%6, [0, 2, 3], false) : f32[1] @forward ""
%9 = aten.t.default(%4) : f32[4, b] @forward ""
%10 = aten.mm.default(%9, %2) : f32[4, 8] @forward ""
%11 = aten.cat.default([%4, %4], 0) : f32[b*2, 4] @forward ""
%12 = aten.sum.default(%8, none) : f32[] @forward ""
%13 = aten.sum.dim_IntList(%11, [0], true, none) : f32[1, 4] @forward ""
%14 = aten.cat.default([%4, %13], 0) : f32[1, 4] @forward ""
output loss %12
output gradient "w" %10
output gradient "bias" %14
""".replace("ATTENTION", "f32[b, 1, 2, 2], f32[b, 1, 2]"),
        0,
        small,
    )
    assert out["loss"] == -torch.inf
    assert torch.equal(out["gradient:w"], torch.zeros(4, 8))
    assert torch.equal(out["gradient:bias"], torch.zeros(1, 4))


def test_errors_name_op_place_and_shapes(small: dict[str, Tensor]) -> None:
    body = """%3 = aten.mm.default(%2, %0) : f32[b, 4] @forward "h.0.mlp" at "gpt.py:12"
%4 = aten.sum.default(%3, none) : f32[] @forward ""
output loss %4
"""
    runner = _runtime.GraphRunner(GRAPH + body, [3])
    with pytest.raises(
        RuntimeError, match=r"aten.mm.default\(f32\[3, 8\].* in h.0.mlp at gpt.py:12"
    ):
        runner.run({**small, "batch:x": torch.randn(3, 7)})
    with pytest.raises(RuntimeError, match=r"result %3: expected shape \[3, 4\], got \[2, 4\]"):
        runner.run({**small, "batch:x": torch.randn(2, 8)})
    with pytest.raises(ValueError, match="has no input batch:y"):
        runner.run({"batch:y": torch.randn(2, 8)})
    with pytest.raises(ValueError, match="no operator aten.nosuch.default"):
        _runtime.GraphRunner(GRAPH + body.replace("aten.mm", "aten.nosuch"), [3])


ADAMW = """medley-graph 1
graph "update"
symbols b
%0 = parameter "w" : f32[8, 4]
%1 = parameter "v" : f32[b]
%2 = state "exp_avg:w" : f32[8, 4]
%3 = state "exp_avg_sq:w" : f32[8, 4]
%4 = state "exp_avg:v" : f32[b]
%5 = state "exp_avg_sq:v" : f32[b]
%6 = scalar "scalars" : f64[3]
%7 = batch "gw" : f32[8, 4]
%8 = batch "gv" : f32[b]
%9, %10, %11, _ = medley.adamw.default(%0, %7, %2, %3, none, %6, 0.9, 0.999, 1e-8, 0.1) : W
%12, %13, %14, _ = medley.adamw.default(%1, %8, %4, %5, none, %6, 0.9, 0.999, 1e-8, 0.1) : V
output parameter "w" %9
output state "exp_avg:w" %10
output state "exp_avg_sq:w" %11
output parameter "v" %12
output state "exp_avg:v" %13
output state "exp_avg_sq:v" %14
"""
ADAMW = ADAMW.replace(": W", ': f32[8, 4], f32[8, 4], f32[8, 4], none @update ""')
ADAMW = ADAMW.replace(": V", ': f32[b], f32[b], f32[b], none @update ""')


# New values reuse the memory of old ones, but only if no other reader exists.
@pytest.mark.parametrize("rows", [5, 0])
def test_fused_update_is_that_of_pytorch(rows: int) -> None:
    torch.manual_seed(0)
    ours = {"w": torch.randn(8, 4), "v": torch.randn(rows)}
    theirs = [t.clone().requires_grad_() for t in ours.values()]
    optimizer = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1, fused=True)
    before = {k: t.clone() for k, t in ours.items()}
    inputs = {f"parameter:{k}": t for k, t in ours.items()}
    for k, t in ours.items():
        inputs |= {f"state:exp_avg:{k}": torch.zeros_like(t)}
        inputs |= {f"state:exp_avg_sq:{k}": torch.zeros_like(t)}
    runner = _runtime.GraphRunner(ADAMW, [rows])
    for step in range(1, 5):
        for t in theirs:
            t.grad = torch.randn_like(t)
        optimizer.step()
        inputs["scalar:scalars"] = torch.tensor([0.01, step, 1.0], dtype=torch.float64)
        inputs |= {"batch:gw": theirs[0].grad, "batch:gv": theirs[1].grad}
        results = runner.run(inputs)
        kept = results["parameter:w"].clone()
        assert torch.equal(kept, theirs[0].detach())
        assert torch.equal(results["parameter:v"], theirs[1].detach())
        inputs = {}
    assert all(torch.equal(ours[k], before[k]) for k in ours)
