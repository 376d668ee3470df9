"""`medley doctor --gpu` without GPUs: its parts on CPUs, and its output."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

from medley_extras.doctor import cards, doctor, gpus, programs, ranks
from medley_extras.doctor.finding import FAILURE, OK, UNTRIED, WARNING, Finding, examine

CPU = torch.device("cpu")
CARD = torch.device("cuda", 1)


def test_without_gpus_fourteen_checks_are_named_as_untried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert doctor(to_json=True, gpu=True) == 3
    found = json.loads(capsys.readouterr().out)
    untried = [each for each in found if each["state"] == UNTRIED]
    assert len(untried) == len([*gpus.ALONE, *gpus.TOGETHER, *gpus.BESIDE]) == 14
    (failure,) = [each for each in found if each["state"] == FAILURE]
    assert failure["what"] == "gpus" and "nvidia-smi" in failure["fix"]


def test_a_check_that_fails_itself_is_a_finding() -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("CUDA error: out of memory\nmore")

    sound = ("buses", lambda: [Finding("bus", "fast")])
    for together in (False, True):
        found, other = examine([("speed", broken), sound], together=together)
        assert found[:3] == ("speed", "RuntimeError: CUDA error: out of memory", FAILURE)
        assert other == Finding("bus", "fast")


SOUND = {
    "clocks.sm": "1755",
    "clocks.max.sm": "1980",
    "temperature.gpu": "61",
    "power.draw": "688.12",
    "power.limit": "700.00",
    "power.default_limit": "700.00",
    "ecc.errors.uncorrected.volatile.total": "0",
    "persistence_mode": "Enabled",
    "memory.free": "80000",
    "memory.total": "81559",
    "clocks_event_reasons.active": "0x0000000000000000",
}


@pytest.mark.parametrize(
    ("said", "state", "word"),
    [
        ({}, OK, "1755 of 1980 MHz"),
        ({"clocks_event_reasons.active": "0x0000000000000004"}, OK, "held by its power limit"),
        ({"clocks_event_reasons.active": "0x0000000000000048"}, WARNING, "hardware, temperature"),
        ({"ecc.errors.uncorrected.volatile.total": "3"}, FAILURE, "3 ECC errors"),
        ({"ecc.errors.uncorrected.volatile.total": "[N/A]"}, OK, "688.12 of 700.00 W"),
        ({"power.limit": "450.00"}, WARNING, "its default is 700 W"),
        ({"clocks.sm": "345"}, WARNING, "clocks are low"),
        ({"memory.free": "1000"}, WARNING, "1000 of 81559 MiB free"),
    ],
)
def test_driver_report_is_judged(said: dict[str, str], state: str, word: str) -> None:
    found = cards.judge_state(CARD, {**SOUND, **said})
    assert (found.what, found.state) == ("state of cuda:1", state)
    assert word in found.found
    assert bool(found.fix) == (state != OK)


def test_a_driver_that_says_nothing_is_said() -> None:
    found = cards.judge_state(CARD, {"memory.free": "1", "memory.total": "1"})
    assert (found.state, found.found) == (UNTRIED, "nvidia-smi does not answer")


def test_products_of_each_type_are_near_those_of_float64() -> None:
    for kind in ("f64", "f32", "f16"):
        error = cards.product_error(CPU, kind)
        assert error is not None and error < cards._ERRORS[kind], kind


def test_speed_is_compared_with_the_catalogue() -> None:
    slow = cards.compare_speed(CPU, "NVIDIA H100 80GB HBM3")
    assert slow.state == WARNING and "of H100-80GB in the catalogue: " in slow.found
    assert slow.figures is not None
    assert slow.figures["catalogue"]["measured_over_expected"]["memory"] < 0.5
    unknown = cards.compare_speed(CPU, "Voodoo 3")
    assert unknown.state == OK and "Voodoo 3 is no kind of the catalogue" in unknown.found


def test_attention_and_a_model_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*programs.attention([CPU, CPU]), *programs.model([CPU, CPU])]
    assert [each.state for each in found] == [OK] * 4, found
    monkeypatch.setattr(programs, "_CLOSE", dict.fromkeys(programs._CLOSE, 0.0))
    (attention,) = programs.attention([CPU])
    assert attention.state == FAILURE and "causal f32 is wrong by" in attention.found


@pytest.mark.parametrize(
    ("check", "count"),
    [
        ("collectives", 2),
        pytest.param("abort", 3, marks=pytest.mark.slow),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("opposite", "overlap")),
        pytest.param("allocator", 2, marks=pytest.mark.slow),
        pytest.param("compiled", 1, marks=pytest.mark.slow),
    ],
)
def test_processes_try_it_over_gloo(check: str, count: int) -> None:
    results = ranks.run(check, "gloo", count, silence=500, may_die=check == "abort")
    assert len(results) == count - (check == "abort")
    if check == "abort":
        assert all(result["seconds"] < 5 for result in results)


def test_hanging_or_failing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ranks.StoppedError, match=r"rank [01] hangs in .*, for 0 s"):
        ranks.run("collectives", "gloo", 2, silence=0.0)
    with pytest.raises(ranks.StoppedError, match=r"rank 0 failed in its start: KeyError: 'none'"):
        ranks.run("none", "gloo", 1)


def test_a_model_that_is_computed_otherwise_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs._Model, "__init__", lambda *_: None)
    monkeypatch.setattr(programs._Model, "error", lambda *_: 1e-3)
    model, unlike = programs.model([CPU])
    assert model.state == FAILURE and "f64 1e-03" in model.found
    assert unlike.state == UNTRIED
