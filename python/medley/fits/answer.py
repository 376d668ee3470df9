"""Which lengths fit on which cards, what a step takes there, and what to change where none does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from medley import _core
from medley.cluster import Cluster
from medley.fits.cards import Cards, cluster_of, link_of
from medley.fits.deep import Deep
from medley.optimizer import AdamW

_LENGTHS = (512, 2048, 8192)
_SHORTER = (256, 128)
_MORE_CARDS = (1, 3)
_STRATEGIES = ("harp", "data-parallel-proportional")
_NO_PLAN = "no plan fits: "


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a step of some rows comes to on some cards. `why`: what is lacking."""

    mode: str
    length: int | None  # in tokens; None: the model takes none
    cards: str
    why: str = ""
    strategy: str = ""
    stages: int = 0
    microbatches: int = 0
    step_seconds: float = 0.0
    memory: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)  # needed, there

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return not self.why


@dataclasses.dataclass
class Found:
    """All answers, what they are about, and what to change, by mode, where nothing fits."""

    head: dict[str, Any]
    answers: list[Answer] = dataclasses.field(default_factory=list)
    trained: dict[str, int] = dataclasses.field(default_factory=dict)
    advice: dict[str, list[str]] = dataclasses.field(default_factory=dict)


class Place:
    """Some cards, all of a cluster if no devices are given."""

    def __init__(self, name: str, cluster: Cluster, devices: Sequence[str] = ()) -> None:
        self.name, self._cluster, self._devices = name, cluster, list(devices)

    def look(self, mode: str, length: int | None, graph: _core.Graph, rows: int) -> Answer:
        """Plans a step, and simulates what is found."""
        optimizer = AdamW().core(graph)
        best: Answer | None = None
        why = ""
        for strategy in _STRATEGIES:
            try:
                plan = _core.plan(
                    graph,
                    self._cluster,
                    strategy,
                    rows,
                    optimizer=optimizer,
                    devices=self._devices,
                )
            except ValueError as error:
                if not str(error).startswith(_NO_PLAN):
                    raise
                why = why or str(error).removeprefix(_NO_PLAN)
                continue
            found = self._simulated(mode, length, graph, plan, optimizer)
            if best is None or found.step_seconds < best.step_seconds:
                best = found
        return best or Answer(mode, length, self.name, why)

    def _simulated(
        self,
        mode: str,
        length: int | None,
        graph: _core.Graph,
        text: str,
        optimizer: _core.Optimizer,
    ) -> Answer:
        found: Any = _core.simulate_plan(graph, text, self._cluster, optimizer=optimizer)
        plan = json.loads(text)
        memory: dict[str, tuple[int, int]] = {}
        for name, device in found["devices"].items():
            number = self._cluster.find(name)
            assert number is not None
            kind = self._cluster.kind(number)
            most = max(device["peak"], memory.get(kind.name, (0, 0))[0])
            memory[kind.name] = (most, int(kind.memory_bytes))
        return Answer(
            mode,
            length,
            self.name,
            strategy=plan["strategy"],
            stages=sum(len(pipeline["stages"]) for pipeline in plan["pipelines"]),
            microbatches=len(plan["pipelines"][0]["microbatches"]),
            step_seconds=found["step"] * 1e-9,
            memory=memory,
        )


def look(
    path: str,
    cards: Sequence[Cards],
    modes: Sequence[str],
    lora: str,
    lengths: Sequence[int] | None,
    rows: int,
    link: str | None,
) -> Found:
    """Looks at all modes and lengths, on all cards together and on one of each kind alone."""
    link = link or link_of(cards)
    found = Found({})
    for mode in modes:
        model = Deep(path, lora if mode == "lora" else "")
        found.head = {
            "model": model.kind,
            "weights": model.weights,
            "dtype": model.dtype,
            "cards": {each.kind: each.count for each in cards},
            "notes": [each.note for each in cards if each.note],
            "link": link,
            "rows": rows,
        }
        found.trained[mode] = model.trained
        answers = list(_answers(model, mode, cards, link, lengths, rows))
        found.answers += answers
        if not any(answer.fits for answer in answers):
            found.advice[mode] = _advice(model, mode, cards, link, answers[0].length, rows)
    return found


def _answers(
    model: Deep,
    mode: str,
    cards: Sequence[Cards],
    link: str,
    lengths: Sequence[int] | None,
    rows: int,
) -> list[Answer]:
    cluster = cluster_of(cards, link)
    places = [Place(f"{each.kind} alone", cluster, [f"{each.kind}/0/0"]) for each in cards]
    if sum(each.count for each in cards) > 1:
        places.insert(0, Place("all", cluster))
    asked: Sequence[int | None] = (None,)
    if model.takes_tokens:
        asked = lengths or [each for each in _LENGTHS if each <= model.longest] or [model.longest]
    answers = []
    short = {place.name: "" for place in places}  # what a shorter length lacks already
    for length in asked:
        graph = None
        for place in places:
            if short[place.name]:
                answers.append(Answer(mode, length, place.name, "a shorter length does not fit"))
                continue
            graph = graph or model.graph(length)
            answers.append(place.look(mode, length, graph, rows))
            short[place.name] = answers[-1].why
    return answers


def _advice(
    model: Deep, mode: str, cards: Sequence[Cards], link: str, length: int | None, rows: int
) -> list[str]:
    """Returns changes with which something would fit."""
    found = []
    whole = Place("all", cluster_of(cards, link))
    for shorter in _SHORTER if length is not None else ():
        if shorter < length and whole.look(mode, shorter, model.graph(shorter), rows).fits:
            found.append(f"--lengths {shorter}")
            break
    graph = model.graph(length)
    largest = max(cards, key=lambda each: cluster_of([each], link).kind(0).memory_bytes)
    for more in _MORE_CARDS:
        others = [
            dataclasses.replace(each, count=each.count + more * (each == largest)) for each in cards
        ]
        if Place("more", cluster_of(others, link)).look(mode, length, graph, rows).fits:
            found.append(f"{more} more {largest.kind}")
            break
    if mode == "full":
        found.append("--mode lora: frozen weights need neither gradients nor an optimizer's state")
    return found
