"""Synthesis finds the parallelism that fits the machines, on captures of ordinary models. Each
answer is compared with the alternatives, priced by the same simulator. Parameters are captured
without values on the meta device, so sizes are realistic."""

from __future__ import annotations

import fnmatch
import functools
import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import medley
from medley import _core
from medley.cluster import Cluster, parse_cluster
from medley.profiling.profiler import Profiler, Truth, wanted_ops
from medley_extras import models
from medley_extras.models import hf

DATA_PARALLEL = ("data-parallel-even", "data-parallel-proportional")

# Millions of parameters and a small vocabulary; a head larger than the rest; the convolutions of a
# VGG without its classifier; twelve experts.
MODELS: dict[str, functools.partial[Any]] = {
    "gpt": functools.partial(
        models.gpt, width=1024, heads=16, layers=2, positions=256, vocabulary=8192, tied=False
    ),
    "big head": functools.partial(
        models.gpt, width=512, heads=8, layers=2, positions=128, vocabulary=50304, tied=False
    ),
    "vgg": functools.partial(
        models.vgg, image=32, channels=((64, 64), (128, 128), (256, 256)), hidden=4096
    ),
    "vgg19": functools.partial(models.vgg, size="hap"),
    "experts": functools.partial(
        models.bert_moe,
        capacity=1.25,
        width=512,
        hidden=2048,
        layers=2,
        heads=8,
        experts=12,
        positions=128,
        vocabulary=1024,
    ),
}


@functools.cache
def _graph(name: str) -> medley.Graph:
    with torch.device("meta"):
        model, batch = MODELS[name]()
    return medley.capture(model, batch, name=name, check=False)


def _cluster(
    nodes: Sequence[tuple[str, int]],
    bandwidth: str = "10 Gbit/s",
    latency: str = "10 us",
    memory: str = "",
) -> Cluster:
    """Returns a cluster with nodes of one device each: "T4-16GB", or "0.5 T4-16GB" at half its
    speed."""
    kinds: dict[str, str] = {}
    rows = []
    for i, (kind, count) in enumerate(nodes):
        speed, _, base = kind.rpartition(" ")
        name = f"kind{i}"
        kinds[name] = f"based_on: {base}, speed: {speed or 1}" + (memory and f", memory: {memory}")
        rows.append(f"  - {{name: n{i}, count: {count}, device: {name}, devices_per_node: 1}}")
    names = ", ".join(f"n{i}" for i in range(len(nodes)))
    lines = [
        "format: medley-cluster",
        "version: 1",
        "nodes:",
        *rows,
        "networks:",
        f"  - {{name: lan, connects: [{names}], bandwidth: {bandwidth}, latency: {latency}}}",
        "devices:",
        *(f"  {name}: {{{text}}}" for name, text in kinds.items()),
    ]
    return parse_cluster("\n".join(lines) + "\n")


FAST = {"bandwidth": "300 GB/s", "latency": "3 us"}


class Priced:
    """A plan with its simulation."""

    def __init__(self, graph: medley.Graph, cluster: Cluster, text: str, profile: str = "") -> None:
        plan = _core.Plan(text)
        found = cast(
            "Any", _core.simulate(_core.Program(graph.core, plan, cluster), cluster, profile)
        )
        self.step: int = found["step"]  # nanoseconds
        self.peak: int = max(row["peak"] for row in found["devices"].values())
        self.entries: dict[str, Any] = json.loads(text)
        self.stage: dict[str, Any] = self.entries["pipelines"][0]["stages"][0]
        self.microbatches: list[Any] = self.entries["pipelines"][0]["microbatches"]
        self.communications: list[str] = _core.communications(graph.core, plan, cluster)

    def of(self, field: str, name: str) -> str:
        """Returns the placement from the pattern that matches a parameter or op
        (docs/formats/plan.md), or "R" without a match."""
        patterns = self.stage.get(field, {})
        fit = [pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)]
        order = [(pattern == name, len(pattern.replace("*", "")), pattern) for pattern in fit]
        return patterns[max(order)[-1]] if order else "R"

    def state(self, parameter: str) -> str:
        """Returns how it is stored."""
        return self.of("placements", parameter)

    def sharded(self) -> set[str]:
        """Returns the patterns of values stored in shards between steps."""
        both = {**self.stage.get("updates", {}), **self.stage.get("placements", {})}
        return {name for name, state in both.items() if state.startswith("S")}

    def sends(self, *words: str) -> list[str]:
        """Returns the communications that have all these words."""
        return [each for each in self.communications if all(word in each for word in words)]


def _find(name: str, cluster: Cluster, rows: int, strategy: str = "hap") -> Priced:
    graph = _graph(name)
    plan = medley.plan(graph, cluster, strategy, global_batch=rows)
    return Priced(graph, cluster, plan.text)


def _write(
    name: str,
    cluster: Cluster,
    rows: int,
    stage: dict[str, Any],
    shares: Sequence[float] = (),
    lengths: Sequence[int] = (),
) -> Priced:
    """Prices a hand-written plan."""
    devices = list(cluster.devices)
    microbatch: dict[str, Any] = {"rows": rows}
    if lengths:
        microbatch["lengths"] = list(lengths)
    mesh = {"axes": ["x"], "shape": [len(devices)], "devices": devices}
    entries = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": rows,
        "parts": [{"name": "part", "shares": list(shares) or [1] * len(devices)}],
        "pipelines": [{"microbatches": [microbatch], "stages": [{"mesh": mesh, **stage}]}],
    }
    return Priced(_graph(name), cluster, json.dumps(entries))


MEGATRON = {
    "*.attention.qkv.*": "S(0.1, part)",
    "*.attention.out.weight": "S(1.0, part)",
    "*.mlp.up.*": "S(0, part)",
    "*.mlp.down.weight": "S(1, part)",
}
VOCABULARY = {"tokens.weight": "S(0, part)", "head.weight": "S(0, part)"}
PAIRS = [  # the matrix cut by columns, then the one cut by rows
    ("attention.qkv", "S(0.1, {})", "attention.out", "S(1.0, {})"),
    ("mlp.up", "S(0, {})", "mlp.down", "S(1, {})"),
]


# Much to compute for each byte of a gradient, and links that carry gradients meanwhile.
def test_big_batches_on_fast_links_are_data_parallel() -> None:
    cluster = _cluster([("A100-40GB", 4)], **FAST)
    found = _find("gpt", cluster, 64)
    assert not found.sharded()
    assert all(" gradients from " in each or "accumulate/" in each for each in found.communications)
    assert found.step == _find("gpt", cluster, 64, "data-parallel-even").step
    tensor = _write("gpt", cluster, 64, {"placements": {**MEGATRON, **VOCABULARY}})
    assert found.step < 0.95 * tensor.step


@pytest.mark.parametrize("kinds", ["identical", "2:1"])
def test_small_batches_on_fast_links_cut_pairs_of_layers(kinds: str) -> None:
    nodes = [("A100-40GB", 4)] if kinds == "identical" else [("A100-40GB", 1), ("0.5 A100-40GB", 1)]
    cluster = _cluster(nodes, **FAST)
    shares = [1, 1, 1, 1] if kinds == "identical" else [2, 1]
    found = _find("gpt", cluster, 1)
    part = "even" if kinds == "identical" else "speed"
    for block in range(2):
        for first, columns, second, lines in PAIRS:
            assert found.state(f"blocks.{block}.{first}.weight") == columns.format(part)
            assert found.state(f"blocks.{block}.{second}.weight") == lines.format(part)
            # The sums after the pair, and nothing in between.
            assert found.sends("all_reduce", f"blocks.{block}.{second}/contract")
            assert not found.sends(f"blocks.{block}.{first}/contract")
            assert not found.sends(f"blocks.{block}.{second}/~contract")
            if (block, first) != (0, "attention.qkv"):  # which only the embeddings read
                assert found.sends("all_reduce", f"blocks.{block}.{first}/~contract")
            assert not found.sends(f"accumulate/blocks.{block}.{second}.weight")
    by_hand = _write("gpt", cluster, 1, {"placements": {**MEGATRON, **VOCABULARY}}, shares)
    assert found.step <= by_hand.step
    for strategy in DATA_PARALLEL:
        assert found.step < 0.8 * _find("gpt", cluster, 1, strategy).step


@pytest.mark.parametrize("links", ["fast", "thin"])
def test_a_big_head_is_cut_by_the_vocabulary(links: str) -> None:
    thin = _cluster([("A100-40GB", 1), ("T4-16GB", 2)])
    cluster = thin if links == "thin" else _cluster([("A100-40GB", 4)], **FAST)
    rows = 8
    found = _find("big head", cluster, rows)
    part = "speed" if links == "thin" else "even"
    assert found.state("head.weight") == f"S(0, {part})"
    assert found.of("ops", "/nll_loss_forward#0") == f"v {part}"
    assert found.of("ops", "/_log_softmax#0") == f"composite d1 {part}"
    # Neither weight nor gradient is sent, only the softmax's sums over the vocabulary.
    assert not found.sends("head.weight")
    assert found.sends("all_reduce", "/_log_softmax#0")
    count = len(cluster.devices)
    lengths = [rows // count + (i < rows % count) for i in range(count)]
    by_hand = _write("big head", cluster, rows, {"placements": VOCABULARY}, lengths=lengths)
    gathered = _write(
        "big head", cluster, rows, {"placements": {"*": "S(0, part)"}}, lengths=lengths
    )
    assert found.step < by_hand.step < gathered.step
    for strategy in DATA_PARALLEL:
        assert by_hand.step < _find("big head", cluster, rows, strategy).step


def _classifier_stays(found: Priced) -> None:
    """Neither the classifier's weights nor their gradients travel."""
    for layer in (0, 3):
        assert not found.sends(f"classifier.{layer}.weight")
        assert not found.sends(f"gradients from accumulate/classifier.{layer}.")


# 139 million parameters of VGG-19. With 10 classes 98 % of the classifier is its first two layers.
def test_the_classifier_of_vgg_is_cut_on_a_thin_link() -> None:
    cluster = _cluster([("A100-40GB", 1), ("T4-16GB", 3)])
    rows = 64
    found = _find("vgg19", cluster, rows)
    _classifier_stays(found)
    assert found.state("classifier.0.weight") == "S(0, speed)"
    assert found.state("classifier.3.weight") == "S(1, speed)"
    cut = {"classifier.0.*": "S(0, part)", "classifier.3.weight": "S(1, part)"}
    by_hand = _write("vgg19", cluster, rows, {"placements": cut}, lengths=[16] * 4)
    assert found.step < 0.5 * by_hand.step
    for strategy in DATA_PARALLEL:
        assert found.step < 0.1 * _find("vgg19", cluster, rows, strategy).step


# With many rows the factors of the weights' gradient are sent instead (sufficient factors), and
# every device computes the whole gradient.
@pytest.mark.parametrize("rows", [32, 256])
def test_factors_of_the_gradient_travel_instead_of_it(rows: int) -> None:
    cluster = _cluster([("V100-16GB", 2)])
    found = _find("vgg", cluster, rows)
    _classifier_stays(found)
    if rows == 32:
        assert found.state("classifier.0.weight") == "S(0, even)"
        assert found.state("classifier.3.weight") == "S(1, even)"
    else:
        assert found.state("classifier.0.weight") == "R"
        assert found.of("ops", "classifier.0/~mm#1") == "replicate"  # gradient of the weight
        assert found.of("ops", "classifier.0/~mm#0") == "m rows"  # gradient of the features
    factors = {f"classifier.{layer}/~mm#1": "replicate" for layer in (0, 3, 6)}
    by_hand = _write("vgg", cluster, rows, {"ops": factors}, lengths=[rows // 2] * 2)
    _classifier_stays(by_hand)
    assert found.step < by_hand.step
    for strategy in DATA_PARALLEL:
        assert by_hand.step < 0.25 * _find("vgg", cluster, rows, strategy).step


# Devices 2:1:1 have twelve experts 6:3:3.
@pytest.mark.parametrize("rows", [32, 96])
def test_experts_are_divided_by_speed(rows: int) -> None:
    cluster = _cluster([("T4-16GB", 1), ("0.5 T4-16GB", 2)])
    found = _find("experts", cluster, rows)
    for weight in ("up", "down"):
        assert found.state(f"layers.1.experts.{weight}") == "S(0, speed)"
        assert not found.sends(f"layers.1.experts.{weight}")
    (part,) = found.entries["parts"]
    total = sum(part["shares"])
    assert [round(12 * share / total) for share in part["shares"]] == [6, 3, 3]
    # Tokens go there and back, forwards and backwards.
    assert len(found.sends("all_to_all", "layers.1.experts/")) == 4
    stage = {
        "placements": {"*.experts.up": "S(0, part)", "*.experts.down": "S(0, part)"},
        "ops": {"*.experts/bmm#1": "b part", "*.experts/bmm#2": "b part"},
    }
    lengths = [rows // 2, rows // 4, rows // 4]
    by_speed = _write("experts", cluster, rows, stage, [2, 1, 1], lengths)
    even = _write("experts", cluster, rows, stage, [1, 1, 1], lengths)
    assert found.step < by_speed.step < even.step
    assert found.step < _find("experts", cluster, rows, "hap-even").step
    for strategy in DATA_PARALLEL:
        assert found.step < _find("experts", cluster, rows, strategy).step


CROWDED = """
format: medley-cluster
version: 1
nodes:
  - {name: crowd, count: 1, device: T4-16GB, devices_per_node: 4}
  - {name: alone, count: 4, device: T4-16GB, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 12 GB/s, latency: 5 us}
  - {name: lan, connects: [crowd, alone], bandwidth: 10 Gbit/s, latency: 10 us}
"""


# Four devices in one node are as fast as each of the four others, but all of their tokens go
# through one port.
def test_devices_that_share_a_port_have_less() -> None:
    cluster = parse_cluster(CROWDED)
    found = _find("experts", cluster, 128)
    lengths = [microbatch["lengths"] for microbatch in found.microbatches]
    (part,) = found.entries["parts"]
    for shares in ([sum(rows) for rows in zip(*lengths, strict=True)], part["shares"]):
        assert max(shares[:4]) < min(shares[4:])
    assert found.state("layers.1.experts.up") == "S(0, speed)"
    assert len(found.sends("all_to_all", "layers.1.experts/")) == 4
    assert found.step < 0.9 * _find("experts", cluster, 128, "hap-even").step


def test_states_are_sharded_under_memory_pressure_only() -> None:
    rows = 64
    # Room for all, but little enough that the loss is computed as it is where memory is short.
    roomy = _cluster([("A100-40GB", 4)], **FAST, memory="8 GiB")
    free = _find("gpt", roomy, rows)
    zero = _write("gpt", roomy, rows, {"placements": {"*": "S(0, part)"}}, lengths=[16] * 4)
    assert not free.sharded()
    assert free.step < zero.step
    assert zero.peak < free.peak
    # Enough for it and no more: still the same.
    exact = _find("gpt", _cluster([("A100-40GB", 4)], **FAST, memory=f"{free.peak} B"), rows)
    assert not exact.sharded()
    assert exact.step == free.step

    limit = (free.peak + zero.peak) // 2
    tight = _cluster([("A100-40GB", 4)], **FAST, memory=f"{limit} B")
    found = _find("gpt", tight, rows)
    assert found.peak <= limit
    assert found.state("blocks.0.mlp.up.weight").startswith("S")
    assert found.sends("all_gather", "blocks.0.mlp.up.weight")
    assert found.sends("reduce_scatter", "accumulate/blocks.0.mlp.up.weight")
    assert free.step < found.step <= zero.step
    # Data parallelism needs smaller micro-batches for that, which costs more.
    for strategy in DATA_PARALLEL:
        other = _find("gpt", tight, rows, strategy)
        assert len(other.microbatches) > 1
        assert found.step < other.step


# A whole gradient is summed over devices once per step; in shards, once per micro-batch. Shards
# only save memory.
def test_gradients_wait_in_shards_under_memory_pressure_only() -> None:
    graph = _graph("gpt")

    def found(memory: str) -> Priced:
        cluster = _cluster([("A100-40GB", 4)], **FAST, memory=memory)
        text = medley.plan(graph, cluster, "hap", global_batch=64, microbatches=4).text
        return Priced(graph, cluster, text)

    weight = "accumulate/blocks.0.mlp.up.weight"
    free, tight = found("8 GiB"), found("500 MiB")
    assert not free.of("ops", weight).startswith("d")
    assert tight.of("ops", weight) == "d0 even"
    assert tight.peak <= 500 * 2**20 < free.peak
    # Once per micro-batch, from the matmul that makes it; not from the sum.
    assert not tight.sends("reduce_scatter", weight)
    assert tight.sends("reduce_scatter", "blocks.0.mlp.up/~")


def test_shards_fit_if_data_parallelism_does_not() -> None:
    cluster = _cluster([("A100-40GB", 4)], **FAST, memory="640 MiB")
    for strategy in DATA_PARALLEL:
        with pytest.raises(ValueError, match=r"no plan fits: n0/0/0 .* lacks"):
            _find("gpt", cluster, 64, strategy)
    found = _find("gpt", cluster, 64)
    assert found.peak <= 640 * 2**20
    assert found.sharded()


# The error reports the attempted plan that lacks the least memory.
def test_reported_shortage_is_sufficient() -> None:
    def cluster(mebibytes: int) -> Cluster:
        return _cluster([("A100-40GB", 4)], **FAST, memory=f"{mebibytes} MiB")

    with pytest.raises(ValueError, match=r"no plan fits: .* lacks [\d.]+ MiB") as raised:
        _find("gpt", cluster(180), 16)
    lacking = re.search(r"lacks ([\d.]+) MiB", str(raised.value))
    assert lacking is not None
    enough = 180 + math.ceil(float(lacking[1]))
    assert _find("gpt", cluster(enough), 16).peak <= enough * 2**20
    assert enough < 220  # not the amount that data parallelism lacks


SMALL: dict[str, functools.partial[Any]] = {
    "mlp": functools.partial(models.mlp),
    "gpt": functools.partial(models.gpt, width=128, layers=1),
    "vgg": functools.partial(models.vgg, image=16, channels=((16, 16), (32, 32)), hidden=256),
    "bert_moe": functools.partial(models.bert_moe, width=64, hidden=128, layers=2),
}
KINDS = ["A100-40GB", "T4-16GB", "V100-16GB", "CPU", "0.3 CPU", "0.5 A100-40GB"]
NETWORKS = [
    {"bandwidth": "100 Mbit/s", "latency": "200 us"},
    {"bandwidth": "10 Gbit/s", "latency": "20 us"},
    {"bandwidth": "300 GB/s", "latency": "1 us"},
]


@functools.cache
def _small(name: str) -> medley.Graph:
    torch.manual_seed(0)
    return medley.capture(*SMALL[name](), name=name, check=False)


def _random_cluster(rng: random.Random) -> Cluster:
    kinds = rng.sample(KINDS, rng.choice([2, 3]))
    counts = [1] * len(kinds)
    for _ in range(rng.randint(0, 8 - len(kinds))):
        counts[rng.randrange(len(counts))] += 1
    return _cluster(list(zip(kinds, counts, strict=True)), **rng.choice(NETWORKS))


def _never_worse(graph: medley.Graph, cluster: Cluster, rows: int, profile: Path | None) -> None:
    text = profile.read_text() if profile else ""

    def step(strategy: str) -> int:
        plan = medley.plan(graph, cluster, strategy, global_batch=rows, profile=profile)
        return Priced(graph, cluster, plan.text, text).step

    found = step("hap")
    for strategy in DATA_PARALLEL:
        assert found <= step(strategy), strategy


# Encoder, decoder and head read one table of 32,128 words: the low-bandwidth link carries more per
# step than the state shared by the ends of a chain.
@pytest.mark.slow
def test_a_pipeline_pays_for_weights_that_three_places_share() -> None:
    with torch.device("meta"):
        model, batch = hf.t5(size="default", tokens=256, num_layers=6, num_decoder_layers=6)
    graph = medley.capture(model, batch, name="t5", check=False)
    lines = [
        "format: medley-cluster",
        "version: 1",
        "nodes:",
        "  - {name: a, count: 1, device: A100-40GB, devices_per_node: 2}",
        "networks:",
        "  - {name: nvlink, inside: node, bandwidth: 100 GB/s, latency: 5 us}",
    ]
    one = parse_cluster("\n".join(lines) + "\n")
    lines.insert(4, "  - {name: v, count: 1, device: V100-32GB, devices_per_node: 2}")
    lines.append("  - {name: wan, connects: [a, v], bandwidth: 5 Gbit/s, latency: 200 us}")
    two = parse_cluster("\n".join(lines) + "\n")
    steps = [
        Priced(graph, cluster, medley.plan(graph, cluster, "harp", global_batch=256).text).step
        for cluster in (one, two)
    ]
    assert steps[1] <= steps[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SMALL)
def test_never_worse_than_data_parallel(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    _never_worse(_small(name), _random_cluster(rng), rng.choice([8, 37, 256]), None)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_never_worse_by_measured_times(name: str, tmp_path: Path) -> None:
    cluster = _cluster([("CPU", 2), ("0.4 CPU", 2)], bandwidth="1 Gbit/s")
    graph = _small(name)
    file = tmp_path / "profile.json"
    wanted = wanted_ops([graph], cluster, global_batch=12)
    outcome = Profiler(wanted, cluster, file, Truth(seed=5, spread=0.3)).run(
        None, lambda what, done, of: None
    )
    assert not outcome.failed
    _never_worse(graph, cluster, 12, file)


@pytest.mark.parametrize("name", SMALL)
def test_one_device_shares_nothing(name: str) -> None:
    graph = _small(name)
    cluster = _cluster([("T4-16GB", 1)])
    found = Priced(graph, cluster, medley.plan(graph, cluster, "hap", global_batch=8).text)
    assert not found.communications
    alone = medley.plan(graph, cluster, "data-parallel-even", global_batch=8)
    assert found.step == Priced(graph, cluster, alone.text).step


# Three rows leave five devices without any.
@pytest.mark.parametrize("network", range(len(NETWORKS)))
@pytest.mark.parametrize("name", SMALL)
def test_fewer_rows_than_devices(name: str, network: int) -> None:
    cluster = _cluster([("A100-40GB", 3), ("T4-16GB", 5)], **NETWORKS[network])
    _never_worse(_small(name), cluster, 3, None)
