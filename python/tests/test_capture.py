"""A captured graph, run op by op, computes the results of eager PyTorch."""

from __future__ import annotations

import copy
import functools
import json
import os
import pathlib
import re
import time
import warnings
from typing import Any

import graph_interpreter
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from captured import capture_text
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO
from zoo_names import NAMES, names_but

import medley
from medley import _core, custom_ops
from medley.capture import substitute
from medley.capture.batch import read_batch
from medley.capture.convert import convert
from medley.capture.trace import trace
from medley_extras import models
from medley_extras.models import hf

GOLDEN = pathlib.Path(__file__).parent / "golden"
RNG = custom_ops.make_rng(2024, 7)


class Float64(TorchDispatchMode):
    """Turns casts to float32 into casts to float64: models of transformers have such islands."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model of the zoo and its batch, in float64."""
    torch.manual_seed(0)
    model, batch = ZOO[name]()
    return model.double(), {k: t.double() if t.is_floating_point() else t for k, t in batch.items()}


@functools.cache
def lines_of(name: str) -> list[str]:
    """Returns the graph of a model of the zoo, which is captured once."""
    return capture_text(*ZOO[name]()).splitlines()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: t.clone() for k, t in (*model.named_parameters(), *model.named_buffers())}


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = 1e-3 + float(expected.detach().double().abs().max())
    error = float((found.double() - expected.double()).abs().max()) / scale
    assert error < 1e-12, f"{what}: {error}"


def assert_runs_like_eager(model: nn.Module, batch: dict[str, Tensor], text: str) -> None:
    """Compares loss, gradients and buffers of the graph with those of eager autograd."""
    state = state_of(model)
    eager = copy.deepcopy(model)
    custom_ops.set_rng(*RNG.tolist())
    with Float64():
        if "medley.dropout" in text:
            with substitute(eager):
                result = eager(**batch)
        else:
            result = eager(**batch)
        loss = result if isinstance(result, Tensor) else result["loss"]
        loss.backward()
    found = graph_interpreter.run(text.replace("f32", "f64"), state, batch, RNG)
    assert_close(found.loss, loss.detach(), "loss")
    expected = {k: p.grad for k, p in eager.named_parameters() if p.grad is not None}
    assert found.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found.gradients[name], gradient, name)
    buffers = dict(eager.named_buffers())
    for name, value in buffers.items():
        assert_close(found.buffers.get(name, state[name]), value, name)


@pytest.mark.parametrize("name", NAMES)
def test_graph_runs_like_eager_at_another_batch_size(name: str) -> None:
    model, batch = make(name)
    text = capture_text(model, batch, name)
    # The example has four rows. The graph must not contain this number.
    assert_runs_like_eager(model, {k: t[:3] for k, t in batch.items()}, text)


def test_wrong_graph_is_detected() -> None:
    model, batch = make("mlp")
    text = capture_text(model, batch)
    wrong = text.replace(", 0) : f64[b, 16] @backward", ", 1) : f64[b, 16] @backward")
    assert wrong != text
    with pytest.raises(AssertionError, match="layers"):
        assert_runs_like_eager(model, batch, wrong)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_text_is_the_golden_one(name: str) -> None:
    model, batch = ZOO[name]()
    path = GOLDEN / f"{name}.graph"
    lines = capture_text(model, batch, name).splitlines()
    text = "".join(f"{line.partition(' at ')[0]}\n" for line in lines)  # sources move
    if os.environ.get("MEDLEY_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text(), "MEDLEY_GOLDEN=write accepts the new text"


BATCHES = ["gpt-dropout", "vgg-bn", "moe", "hf-bert"]


@pytest.mark.parametrize("name", names_but(["moe", "hf-bert"], BATCHES))
def test_text_does_not_depend_on_the_batch_that_stands_for_it(name: str) -> None:
    model, example = ZOO[name]()
    batch = read_batch(example)
    texts = [convert(trace(model, batch, prime), name).text for prime in (10007, 10061, 9973)]
    assert texts[0] == texts[1] == texts[2]
    assert "10007" not in texts[0]


@pytest.mark.parametrize("name", names_but(["hf-llama"], ["gpt", "vgg-bn", "hf-llama"]))
def test_real_meta_and_fake_parameters_give_the_same_text(name: str) -> None:
    model, batch = ZOO[name]()
    text = capture_text(model, batch, check=False)
    with torch.device("meta"):
        meta, _ = ZOO[name]()
    assert all(p.is_meta for p in meta.parameters())
    assert capture_text(meta, batch, check=False) == text
    with FakeTensorMode():
        fake, _ = ZOO[name]()
    assert capture_text(fake, batch, check=False) == text


def test_model_and_batch_are_left_as_they_were() -> None:
    model, batch = ZOO["vgg-bn"]()
    parameters, state = list(model.parameters()), state_of(model)
    text = capture_text(model, batch)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(state[k], t) for k, t in state_of(model).items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert F.cross_entropy.__module__ == "torch.nn.functional"
    assert model.training
    assert capture_text(model, batch) == text


def test_tied_weights_are_one_parameter_with_the_sum_of_their_gradients() -> None:
    lines = lines_of("gpt")
    assert not [line for line in lines if '"head.weight"' in line]
    (total,) = (line.split()[-1] for line in lines if 'gradient "tokens.weight"' in line)
    (made,) = (line for line in lines if line.startswith(f"{total} = "))
    assert "aten.add.Tensor" in made


def test_frozen_parameters_have_no_gradient() -> None:
    model, batch = ZOO["mlp"]()
    model.get_parameter("layers.0.weight").requires_grad_(False)
    lines = capture_text(model, batch).splitlines()
    (line,) = (line for line in lines if '"layers.0.weight"' in line)
    assert " = parameter " in line


def test_phases_and_modules_are_on_every_op() -> None:
    ops = [line for line in lines_of("gpt") if " @" in line]
    phases = ["@forward" in op for op in ops]
    assert phases == sorted(phases, reverse=True)
    backward = [op for op in ops if "@backward" in op and '@backward ""' not in op]
    assert len(backward) > 0.9 * (len(phases) - sum(phases))
    attention = [op for op in ops if "medley.attention" in op]
    assert [op.split(" @")[1].split(" at ")[0] for op in attention] == [
        'forward "blocks.0.attention"',
        'forward "blocks.1.attention"',
        'backward "blocks.1.attention"',
        'backward "blocks.0.attention"',
    ]


def test_dropout_sites_are_unequal_and_stable() -> None:
    text = "\n".join(lines_of("gpt-dropout"))
    sites = re.findall(r"medley.dropout.default\(%\d+, %\d+, 0.1, (\d+),", text)
    assert len(sites) == len(set(sites)) == 7
    longer = capture_text(*ZOO["gpt-dropout"](layers=3), check=False)
    assert all(site in longer for site in sites)


def test_zoo_has_the_models_of_the_papers() -> None:
    with torch.device("meta"):
        found = {
            "vgg": models.vgg("hap", batch=1),
            "vit": models.vit("hap", batch=1),
            "bert": models.bert("hap", batch=1),
            "moe": models.bert_moe("hap", batch=1),
            "gpt": models.gpt("2.6b", batch=1),
            "llama": models.llama("70b", batch=1),
        }
    millions = {k: sum(p.numel() for p in m.parameters()) / 1e6 for k, (m, _) in found.items()}
    expected = {"vgg": 139.6, "vit": 85.2, "bert": 136, "moe": 560, "gpt": 2650, "llama": 68977}
    assert millions == pytest.approx(expected, rel=0.03)


@pytest.mark.slow
def test_llama_70b_is_captured_on_meta_in_150_cpu_s_and_2_gb() -> None:
    with torch.device("meta"):
        model, batch = models.llama("70b", batch=1)
    model.to(torch.bfloat16)
    batch = {k: torch.empty(t.shape, dtype=t.dtype, device="meta") for k, t in batch.items()}
    start = time.process_time()  # a busy machine takes longer by the clock
    text = capture_text(model, batch, "llama-70b")
    assert time.process_time() - start < 150
    status = pathlib.Path("/proc/self/status").read_text()
    most = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert most and int(most[1]) < 2 * 1024**2  # KiB
    assert text.count("medley.attention.default") == 80


def test_capture_gives_a_graph_that_the_passes_cleaned() -> None:
    pytest.importorskip("medley._core")
    model, batch = ZOO["gpt"]()
    core = medley.capture(model, batch, "gpt", check=False).core
    assert core.name == "gpt"
    assert core.symbols == ["b"]
    assert core.parameter_names == [name for name, _ in model.named_parameters()]
    assert core.num_ops < sum(" @" in line for line in lines_of("gpt"))


def test_a_model_in_eval_mode_is_captured_as_it_is_with_a_warning() -> None:
    model, batch = ZOO["gpt-dropout"]()
    model.blocks[0].eval()  # part of it on purpose
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = medley.capture(model, batch).text()
    assert "medley.dropout" in text
    with pytest.warns(UserWarning, match=r"eval mode: .* call model\.train\(\)") as said:
        text = medley.capture(model.eval(), batch).text()
    assert said[0].filename == __file__
    assert "medley.dropout" not in text


TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 40,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("roberta", TINY),
        ("albert", {**TINY, "embedding_size": 32}),
        ("qwen3", {**TINY, "num_key_value_heads": 2, "head_dim": 16}),
        ("gemma2", {**TINY, "num_key_value_heads": 2, "head_dim": 16}),
        ("gpt_neox", TINY),
        ("opt", {**TINY, "ffn_dim": 128, "word_embed_proj_dim": 64}),
        ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256}),
        ("resnet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
        ("convnext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
    ],
)
def test_models_of_transformers_run_like_eager(
    kind: str, fields: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    torch.manual_seed(0)
    images = {"image_size": 32, "num_labels": 10} if kind in ("resnet", "convnext") else {}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **fields, **images}))
    model, batch = hf.from_file(str(path), tokens=32)
    model = model.double()
    batch = {k: t.double() if t.is_floating_point() else t for k, t in batch.items()}
    text = capture_text(model, batch, kind)
    assert_runs_like_eager(model, {k: t[:3] for k, t in batch.items()}, text)


# Padding masks, the last token of each row, gradients of a shared bias, tensors without elements,
# copies into a part of a tensor, repeats.
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param("bert", TINY, marks=pytest.mark.slow),  # the one below has its mask, too
        ("roberta", TINY),  # 38 tokens
        ("bert", {**TINY, "architectures": ["BertForTokenClassification"]}),
        ("llama", {**TINY, "architectures": ["LlamaForSequenceClassification"]}),
        ("bart", {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 256}),
        pytest.param(  # as bart
            "t5",
            {"d_model": 64, "d_kv": 16, "num_layers": 1, "num_heads": 4},
            marks=pytest.mark.slow,
        ),
        pytest.param("phi3", {**TINY, "pad_token_id": 0}, marks=pytest.mark.slow),  # as llama
        ("deepseek_v3", {**TINY, "num_hidden_layers": 1}),
        ("bloom", {"hidden_size": 64, "n_layer": 1, "n_head": 4}),  # any number of tokens
    ],
)
def test_rows_of_models_of_transformers_are_independent(
    kind: str, fields: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **fields}))
    with torch.device("meta"):
        model, batch = hf.from_file(str(path))
    assert _core.row_coupling(medley.capture(model, batch, check=False).core) == ""


def test_images_have_a_size_where_the_config_has_none(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "regnet"}))
    with torch.device("meta"):
        _, batch = hf.from_file(str(path), batch=2)
    assert batch["pixel_values"].shape == (2, 3, 224, 224)


def test_dropout_is_off_whatever_its_name(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    for kind, field in (("bart", "dropout"), ("swin", "drop_path_rate")):
        path.write_text(json.dumps({"model_type": kind, field: 0.2}))
        with torch.device("meta"):
            off, _ = hf.from_file(str(path), batch=2)
            on, _ = hf.from_file(str(path), batch=2, dropout=None)
        assert getattr(off.config, field) == 0
        assert getattr(on.config, field) == 0.2


def test_a_config_that_is_none_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    for text in ("{", "{}", '{"model_type": "no such model"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"config\.json: "):
            hf.from_file(str(path))
    path.write_text(json.dumps({"model_type": "gpt2", "n_embd": 30, "n_head": 4}))
    with pytest.raises(ValueError, match="hf:gpt2: .*divisible by num_heads"):
        hf.from_file(str(path))
    with pytest.raises(ValueError, match="unknown size 'huge'; expected one of tiny"):
        models.gpt("huge")
    with pytest.raises(ValueError, match="unknown \\['depth'\\]"):
        models.gpt(depth=3)
