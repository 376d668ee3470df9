"""Models that fit on given GPUs: graphs derived from shallow ones equal those of the whole model,
GPUs are found by their names, and the reported memory is that of the program."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from medley import _core
from medley.cli import run
from medley.optimizer import AdamW
from medley_extras import fits
from medley_extras.fits.answer import Found, Question
from medley_extras.fits.beside import Beside
from medley_extras.fits.cards import Cards, cluster_of, link_of, read_cards
from medley_extras.fits.deep import Deep
from medley_extras.fits.facts import Facts
from medley_extras.fits.known import Known
from medley_extras.fits.page import text_of
from medley_extras.fits.stretch import Stretched, UnevenError

ROOT = Path(__file__).resolve().parents[2]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
OTHERS: dict[str, dict[str, Any]] = {
    "llama, all of it": LLAMA,
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 5,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 320,
        "n_positions": 256,
    },
    "bert": {
        "model_type": "bert",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "vocab_size": 320,
        "max_position_embeddings": 256,
    },
    "gemma2": {
        "model_type": "gemma2",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "sliding_window": 256,
    },
    "vit": {
        "model_type": "vit",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
}


def config_file(folder: Path, fields: dict[str, Any]) -> str:
    """Writes a config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return str(path)


def graph_of(text: str) -> _core.Graph:
    """Returns the graph of a text after the passes."""
    graph, _ = _core.Graph.parse(text, "<text>").run_passes()
    return graph


class Model:
    """Replaces a Deep: a small graph for every length."""

    def __init__(self, kept: int) -> None:
        self.facts = Facts("mlp", "float32", 7, 7, kept, 4096, takes_tokens=True)
        self.asked = list[int | None]()

    def graph(self, length: int | None) -> str:
        """Notes the length."""
        self.asked.append(length)
        return (ROOT / "tests" / "data" / "mlp.graph").read_text()


@contextlib.contextmanager
def silently(what: str) -> Iterator[None]:
    """Shows nothing."""
    yield


CARDS = [Cards("RTX3090-24GB", 1), Cards("RTX4060Ti-16GB", 1)]


def question_of(model: Any, folder: Path) -> Question:
    """Returns the question whether all of a model trains on two GPUs."""
    pool = ThreadPoolExecutor(2)
    return Question(model, "full", CARDS, "16 GB/s", 64, silently, folder, pool)


def test_fitting_model_is_planned_for_all_gpus_and_each_alone(tmp_path: Path) -> None:
    model = Model(1 << 20)
    found = question_of(model, tmp_path).begin(None)()
    assert [(each.length, each.cards, each.fits) for each in found] == [
        (length, cards, True)
        for length in (512, 2048)
        for cards in ("all", "RTX3090-24GB alone", "RTX4060Ti-16GB alone")
    ]
    assert model.asked == [512, 2048]
    for of_length in (found[:3], found[3:]):
        both, *alone = of_length
        assert 0 < both.step_seconds <= min(each.step_seconds for each in alone)
        for each in of_length:
            assert all(0 < taken <= there for taken, there in each.memory.values())
        for each in alone:
            assert [f"{kind} alone" for kind in each.memory] == [each.cards]


# If the weights alone do not fit, no graph is made: the 3090 has 23.7 GiB, both have 39.4 GiB.
def test_nothing_is_planned_if_weights_do_not_fit(tmp_path: Path) -> None:
    found = question_of(Model(30 << 30), tmp_path).begin([512])()
    assert [each.fits for each in found] == [True, False, False]
    model = Model(100 << 30)
    question = question_of(model, tmp_path)
    found = question.begin([512, 2048])()
    assert not model.asked and not any(each.fits for each in found)
    assert found[0].why == (
        "weights and what AdamW keeps of them take 100 GiB, 60.6 GiB more than there is"
    )
    assert question.advice(512)[0] == "at least 3 more RTX3090-24GB"
    text = text_of(Found({**HEAD, "rows": 64}, found, {"full": 7}, {"full": question.advice(512)}))
    assert text.count("does not fit: ") == 3
    assert "What would fit:\n  at least 3 more RTX3090-24GB\n  --mode lora" in text


HEAD = {
    "model": "mlp",
    "weights": 7_000_000_000,
    "dtype": "float32",
    "cards": {"RTX3090-24GB": 1},
    "notes": [],
    "link": "16 GB/s",
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Deep:
    """A Llama of five layers with LoRA."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    return Deep(config_file(tmp_path_factory.mktemp("llama"), LLAMA), "r=4")


@pytest.mark.slow
def test_a_graph_from_shallow_ones_is_that_of_all_layers(llama: Deep) -> None:
    assert graph_of(llama.text(48)).hash() == graph_of(llama.captured(48)).hash()
    assert llama.traces is not None


# As for code that reassigns buffers, which the other process detects.
@pytest.mark.slow
def test_traces_run_in_turn_if_they_cannot_run_in_parallel(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = Deep(config_file(tmp_path, LLAMA), "")
    model._beside = Beside(lambda: str(1 // 0))
    assert graph_of(model.text(48)).hash() == graph_of(model.captured(48)).hash()
    assert model.traces is not None


@pytest.mark.slow
def test_transformers_has_the_models_that_it_finds_itself() -> None:
    pytest.importorskip("transformers")
    words = "import transformers.models as m; print(sorted(m._class_to_module.items()))"
    found = [
        subprocess.run([sys.executable, "-c", f"{before}{words}"], capture_output=True, check=True)
        for before in (
            "",
            "from medley_extras.fits import imports as i; i.import_packages(['transformers']);",
        )
    ]
    assert found[0].stdout == found[1].stdout != b"[]\n"


@pytest.mark.slow
def test_weights_of_4_bits_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    path = config_file(tmp_path, LLAMA)
    model, frozen = Deep(path, "r=4", has_4_bits=True), Deep(path, "r=4")
    assert graph_of(model.text(48)).hash() == graph_of(model.captured(48)).hash()
    assert model.traces is not None
    assert model.facts.weights == frozen.facts.weights
    assert model.facts.trained == frozen.facts.trained
    # Half a byte in place of two, but for embeddings, norms and head.
    assert frozen.facts.kept / 4 < model.facts.kept < frozen.facts.kept


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_graphs_of_other_models_too(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = Deep(config_file(tmp_path, OTHERS[name]), "")
    for length in (48, 128) if model.facts.takes_tokens else (None,):
        assert graph_of(model.text(length)).hash() == graph_of(model.captured(length)).hash()
    assert model.traces is not None


@pytest.mark.slow
def test_known_models_are_not_traced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    even, uneven = tmp_path / "even", tmp_path / "uneven"
    for where, fields in ((even, LLAMA), (uneven, {**LLAMA, "num_hidden_layers": 2})):
        where.mkdir()
        config_file(where, fields)
    found = {}
    for where in (even, uneven):
        path = str(where / "config.json")
        with contextlib.closing(Known(path, "", False, tmp_path / "kept")) as model:
            found[where] = (model.facts, model.graph(48))
    assert len(list((tmp_path / "kept").glob("*.json"))) == 2

    def refuse(*_: Any) -> None:
        raise AssertionError("traced again")

    with monkeypatch.context() as patched:
        patched.setattr(Deep, "__init__", refuse)
        for where in (even, uneven):
            model = Known(str(where / "config.json"), "", False, tmp_path / "kept")
            assert (model.facts, model.graph(48)) == found[where]
        assert Known(str(even / "config.json"), "", False, tmp_path / "kept").graph(64)
        # Other adapters, another config: another model.
        for path, lora in ((even, "r=4"), (even, "r=8")):
            with pytest.raises(AssertionError, match="traced again"):
                Known(str(path / "config.json"), lora, False, tmp_path / "kept")
    for file in (tmp_path / "kept").glob("*.json"):
        file.write_text(file.read_text()[:-9])
    again = Known(str(even / "config.json"), "", False, tmp_path / "kept")
    assert (again.facts, again.graph(48)) == found[even]
    again.close()


@pytest.mark.slow
def test_facts_are_kept_without_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    path = config_file(tmp_path, LLAMA)
    with contextlib.closing(Known(path, "", False, tmp_path / "kept")) as model:
        facts = model.facts
    monkeypatch.setattr(Deep, "__init__", None)
    assert Known(path, "", False, tmp_path / "kept").facts == facts


def shallow(layers: int, length: int, uneven: bool = False) -> str:
    """Returns a graph of layers that multiply by a weight each; with `uneven` only every second
    does."""
    lines = ["medley-graph 1", 'graph "g"', "symbols b"]
    for i in range(layers):
        lines.append(f'%{i} = parameter "layers.{i}.w" : f32[8, 8]')
    lines.append(f'%{layers} = batch "x" : f32[b, {length}, 8]')
    last = layers
    for i in range(layers):
        value = len(lines) - 3
        kind = f"f32[b, {length}, 8]"
        op = f"mm.default(%{last}, %{i})" if not (uneven and i % 2) else f"relu.default(%{last})"
        lines.append(f'%{value} = aten.{op} : {kind} @forward "layers.{i}"')
        last = value
    return "\n".join([*lines, f"output loss %{last}"]) + "\n"


def test_any_number_of_layers_and_any_length_follow_from_two_graphs() -> None:
    found = Stretched(shallow(2, 211), 211, shallow(3, 223), 223)
    assert found.text(1, 211) == shallow(1, 211)
    assert found.text(12, 4096) == shallow(12, 4096)


def test_unequal_layers_are_refused() -> None:
    with pytest.raises(UnevenError):
        Stretched(shallow(2, 211, uneven=True), 211, shallow(3, 223, uneven=True), 223)


def test_cards_are_found_by_their_names() -> None:
    found = read_cards(["3090", "2x RTX 3090", "4060Ti", "A100-PCIe-80GB"])
    assert [(each.kind, each.count) for each in found] == [
        ("RTX3090-24GB", 3),
        ("RTX4060Ti-8GB", 1),
        ("A100-PCIe-80GB", 1),
    ]
    assert found[1].note == "4060Ti is taken as RTX4060Ti-8GB; write RTX4060Ti-16GB for the other"
    cluster = cluster_of(found, link_of(found))
    assert cluster.devices[-1] == "A100-PCIe-80GB/0/0"
    assert link_of([Cards("RTX3090-24GB", 1)]) == "32 GB/s"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["5099"], r"--cards: 5099: no such card"),
        (["0x3090"], r"--cards: 0x3090: found 0 cards, expected 1 to 64"),
        (["40x3090", "30x3090"], r"--cards: found 70, expected 64 at most"),
    ],
)
def test_wrong_cards_are_named(words: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_cards(words)


@pytest.mark.slow
def test_reported_memory_equals_the_need_of_the_program(
    llama: Deep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path, LLAMA)
    words = ["fits", f"hf:{path}", "--cards", "3090", "T4", "--mode", "lora", "--lora", "r=4"]
    assert run([*words, "--lengths", "48", "--rows", "4", "--json", "--no-cache"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(each["cards"], each["fits"]) for each in said["answers"]] == [
        ("all", True),
        ("RTX3090-24GB alone", True),
        ("T4-16GB alone", True),
    ]
    alone = said["answers"][1]
    graph = graph_of(llama.captured(48))
    cluster = cluster_of([Cards("RTX3090-24GB", 1)], "1 GB/s")
    optimizer = AdamW().core(graph)
    plan = _core.plan(graph, cluster, alone["strategy"], 4, optimizer=optimizer)
    found: Any = _core.simulate(_core.Program(graph, plan, cluster, optimizer), cluster)
    peak = found["devices"]["RTX3090-24GB/0/0"]["peak"]
    assert peak == alone["memory"]["RTX3090-24GB"][0]
    assert llama.facts.kept < peak


def test_unanswerable_requests_are_reported(tmp_path: Path) -> None:
    path = config_file(tmp_path, LLAMA)
    for words, sentence in (
        (["hf:nowhere.json", "--cards", "T4"], "found 'hf:nowhere.json', expected hf:config.json"),
        ([f"hf:{path}", "--cards", "T4", "--rows", "0"], "--rows: found 0"),
        ([f"hf:{path}", "--cards", "T4", "--lengths", "x"], "--lengths: found 'x'"),
    ):
        with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
            run(["fits", *words])
    assert fits.MODES == ("lora", "qlora", "full")


def test_parallel_work_gives_its_text_or_nothing() -> None:
    assert Beside(lambda: "text").text() == "text"
    assert Beside(lambda: str(1 // 0)).text() is None
    assert Beside(lambda: os._exit(1)).text() is None
    unwanted = Beside(lambda: str(time.sleep(600)))
    unwanted.end()
    unwanted.end()
