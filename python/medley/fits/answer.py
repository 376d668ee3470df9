"""Which lengths fit on which cards, what a step takes there, and what to change where none does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from medley import _core
from medley.cluster import Cluster
from medley.fits.cards import Cards, cluster_of, link_of
from medley.fits.deep import Deep
from medley.optimizer import AdamW

Progress = Callable[[str], AbstractContextManager[None]]  # shows what is under way

_LENGTHS = (512, 2048, 8192)
_SHORTER = (256, 128)
_MORE_CARDS = (1, 3)
_PIPELINE, _REPLICAS = "harp", "data-parallel-proportional"
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
        numbers = [cluster.find(device) for device in devices or cluster.devices]
        self._memory = [int(cluster.kind(n).memory_bytes) for n in numbers if n is not None]
        self._too_long: set[str] = set()  # strategies that did not fit at a shorter length

    def lacks(self, kept: int) -> int:
        """Returns how many of the bytes that a model keeps from step to step fit on no card."""
        return max(0, kept - sum(self._memory))

    def _strategies(self, kept: int) -> tuple[str, ...]:
        """Replicas only where each card could hold all; one card is a pipeline of one stage."""
        can_replicate = len(self._memory) > 1 and kept <= min(self._memory)
        asked = (_PIPELINE, _REPLICAS) if can_replicate else (_PIPELINE,)
        return tuple(strategy for strategy in asked if strategy not in self._too_long)

    def look(
        self, mode: str, length: int | None, graph: _core.Graph, rows: int, kept: int
    ) -> Answer:
        """Plans a step, and simulates what is found. Lengths ascend from call to call. `kept`: the
        bytes that lie there all the time."""
        optimizer = AdamW().core(graph)
        best: Answer | None = None
        why = ""
        for strategy in self._strategies(kept):
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
                self._too_long.add(strategy)
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


class Question:
    """A way to train a model, on some cards."""

    def __init__(
        self, model: Deep, mode: str, cards: Sequence[Cards], link: str, rows: int, say: Progress
    ) -> None:
        self._model, self._mode, self._cards, self._link = model, mode, cards, link
        self._rows, self._say = rows, say

    def answers(self, lengths: Sequence[int] | None) -> list[Answer]:
        """Returns what the lengths come to on all cards together and on one of each kind alone. The
        graph is made when a plan is asked for, and none is where the weights alone do not fit."""
        cluster = cluster_of(self._cards, self._link)
        places = [Place(f"{c.kind} alone", cluster, [f"{c.kind}/0/0"]) for c in self._cards]
        if sum(each.count for each in self._cards) > 1:
            places.insert(0, Place("all", cluster))
        answers = []
        short = {place.name: self._without_plan(place) for place in places}
        for length in self._asked(lengths):
            graph = None
            for place in places:
                why = short[place.name]
                if why:
                    answers.append(Answer(self._mode, length, place.name, why))
                    continue
                graph = graph or self._graph(length)
                answers.append(self._planned(place, length, graph))
                if not answers[-1].fits:
                    short[place.name] = "a shorter length does not fit"
        return answers

    def advice(self, length: int | None) -> list[str]:
        """Returns changes with which something would fit."""
        found = []
        whole = Place("all", cluster_of(self._cards, self._link))
        largest = max(self._cards, key=lambda each: _memory(each, self._link))
        if lacking := whole.lacks(self._model.kept):
            more = -(-lacking // _memory(largest, self._link))
            found.append(f"at least {more} more {largest.kind}")
        else:
            found += self._shorter(length) + self._more(largest, length)
        if self._mode == "full":
            found.append(
                "--mode lora: frozen weights need neither gradients nor an optimizer's state"
            )
        if self._mode == "lora":
            found.append("--mode qlora: frozen weights of 4 bits")
        return found

    def _asked(self, lengths: Sequence[int] | None) -> Sequence[int | None]:
        if not self._model.takes_tokens:
            return (None,)
        longest = self._model.longest
        return lengths or [each for each in _LENGTHS if each <= longest] or [longest]

    def _without_plan(self, place: Place) -> str:
        """Says why no plan can fit, if that is clear without one."""
        lacking = place.lacks(self._model.kept)
        if not lacking:
            return ""
        return (
            f"weights and what AdamW keeps of them take {_gib(self._model.kept)}, "
            f"{_gib(lacking)} more than there is"
        )

    def _graph(self, length: int | None) -> _core.Graph:
        with self._say("tracing the model"):
            return self._model.graph(length)

    def _planned(self, place: Place, length: int | None, graph: _core.Graph) -> Answer:
        tokens = "" if length is None else f", {length} tokens"
        with self._say(f"{self._mode}{tokens}: planning for {place.name}"):
            return place.look(self._mode, length, graph, self._rows, self._model.kept)

    def _shorter(self, length: int | None) -> list[str]:
        for shorter in _SHORTER if length is not None else ():
            whole = Place("all", cluster_of(self._cards, self._link))
            if shorter < (length or 0) and self._planned(whole, shorter, self._graph(shorter)).fits:
                return [f"--lengths {shorter}"]
        return []

    def _more(self, largest: Cards, length: int | None) -> list[str]:
        graph = self._graph(length)
        for more in _MORE_CARDS:
            others = [
                dataclasses.replace(each, count=each.count + more * (each == largest))
                for each in self._cards
            ]
            place = Place(f"{more} more {largest.kind}", cluster_of(others, self._link))
            if self._planned(place, length, graph).fits:
                return [place.name]
        return []


def _memory(cards: Cards, link: str) -> int:
    return int(cluster_of([cards], link).kind(0).memory_bytes)


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.3g} GiB"


def look(
    path: str,
    cards: Sequence[Cards],
    modes: Sequence[str],
    lora: str,
    lengths: Sequence[int] | None,
    rows: int,
    link: str | None,
    say: Progress,
) -> Found:
    """Looks at all modes and lengths, on all cards together and on one of each kind alone."""
    link = link or link_of(cards)
    found = Found({})
    for mode in modes:
        with say("reading the model"):
            model = Deep(path, "" if mode == "full" else lora, has_4_bits=mode == "qlora")
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
        question = Question(model, mode, cards, link, rows, say)
        answers = question.answers(lengths)
        found.answers += answers
        if not any(answer.fits for answer in answers):
            found.advice[mode] = question.advice(answers[0].length)
    return found
