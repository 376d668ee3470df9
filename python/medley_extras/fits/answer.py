"""Sequence lengths that fit on given GPUs, their step times, and changes if none fits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from medley.cli.core import command_of_core
from medley.cluster import parse_cluster
from medley_extras.fits.cards import Cards, cluster_of, cluster_text, link_of
from medley_extras.fits.facts import Facts
from medley_extras.fits.known import Known

Progress = Callable[[str], AbstractContextManager[None]]  # shows the work in progress

_LENGTHS = (512, 2048, 8192)
_SHORTER = (256, 128)
_MORE_CARDS = (1, 3)
_PIPELINE, _REPLICAS = "harp", "data-parallel-proportional"
_NO_PLAN = "no plan fits: "

# By strategy: the plan from `medley plan`, or the reason why there is none.
Plans = dict[str, Future[tuple[dict[str, Any] | None, str]]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """The plan of a step on some GPUs, or the reason `why` there is none."""

    mode: str
    length: int | None  # in tokens; None: the model has no tokens
    cards: str
    why: str = ""
    strategy: str = ""
    stages: int = 0
    microbatches: int = 0
    step_seconds: float = 0.0
    # bytes needed, bytes available
    memory: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Returns whether there is a plan."""
        return not self.why


@dataclasses.dataclass
class Found:
    """All answers with their question, and changes by mode if none fits."""

    head: dict[str, Any]
    answers: list[Answer] = dataclasses.field(default_factory=list)
    trained: dict[str, int] = dataclasses.field(default_factory=dict)
    advice: dict[str, list[str]] = dataclasses.field(default_factory=dict)


class Place:
    """Some GPUs, or all of a cluster if no devices are given. `folder`: for files of plans."""

    def __init__(
        self,
        name: str,
        cards: Sequence[Cards],
        link: str,
        folder: Path,
        devices: Sequence[str] = (),
    ) -> None:
        self.name, self._devices = name, list(devices)
        self._file = folder / f"{name}.yaml"
        text = cluster_text(cards, link)
        self._file.write_text(text)
        cluster = parse_cluster(text, "--link")
        numbers = [cluster.find(device) for device in devices or cluster.devices]
        self._memory = [int(cluster.kind(n).memory_bytes) for n in numbers if n is not None]
        # Strategies that did not fit at some length: as soon as known, and in the order of answers,
        # which is independent of the order in which plans end.
        self._known, self._failed = set[str](), set[str]()

    def lacks(self, kept: int) -> int:
        """Returns the bytes by which a model's persistent state exceeds the memory of all GPUs."""
        return max(0, kept - sum(self._memory))

    def _strategies(self, kept: int) -> tuple[str, ...]:
        """Returns the strategies to try. Replicas require that each GPU can store the model. One
        GPU is a pipeline of one stage."""
        can_replicate = len(self._memory) > 1 and kept <= min(self._memory)
        return (_PIPELINE, _REPLICAS) if can_replicate else (_PIPELINE,)

    def begin(self, graph: Path, rows: int, kept: int, pool: ThreadPoolExecutor) -> Plans:
        """Starts planning a step of the graph in a file, with each strategy.

        Lengths ascend from call to call: a strategy that did not fit is skipped. `kept`: persistent
        bytes.
        """
        return {
            strategy: pool.submit(self._plan, graph, strategy, rows)
            for strategy in self._strategies(kept)
        }

    def answer(self, mode: str, length: int | None, plans: Plans) -> Answer:
        """Returns the best of the started plans. Lengths ascend: a strategy that does not fit at
        one of them is skipped at longer ones, whether it was started or not."""
        best: Answer | None = None
        why = ""
        for strategy, plan in plans.items():
            if strategy in self._failed:
                continue
            said, reason = plan.result()
            if said is None:
                why = why or reason
                self._failed.add(strategy)
                continue
            found = self._answer(mode, length, strategy, said)
            if best is None or found.step_seconds < best.step_seconds:
                best = found
        return best or Answer(mode, length, self.name, why or "a shorter length does not fit")

    def _plan(self, graph: Path, strategy: str, rows: int) -> tuple[dict[str, Any] | None, str]:
        """Returns the plan from `medley plan`, or the reason why there is none. It runs in
        parallel, as a process with an allocator for such work."""
        if strategy in self._known:
            return None, ""
        words = [str(graph), str(self._file), "--strategy", strategy, "--global-batch", str(rows)]
        chosen = ["--devices", *self._devices] if self._devices else []
        output = self._file.with_suffix(f".{strategy}.{graph.stem}.json")
        done = subprocess.run(
            [*command_of_core(), "plan", *words, *chosen, "--json", "-o", str(output)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            said: dict[str, Any] = json.loads(done.stdout)
            return said, ""
        _, found, reason = done.stderr.strip().partition(_NO_PLAN)
        if not found:
            raise OSError(f"medley plan: ended with {done.returncode}: {done.stderr.strip()}")
        self._known.add(strategy)
        return None, reason.partition("\n")[0]

    def _answer(self, mode: str, length: int | None, strategy: str, said: dict[str, Any]) -> Answer:
        memory: dict[str, tuple[int, int]] = {}
        devices = [device for stage in said["stages"] for device in stage["devices"]]
        for device in devices:
            kind = device["device_type"]
            most = max(device["memory_bytes"], memory.get(kind, (0, 0))[0])
            memory[kind] = (most, device["available_bytes"])
        return Answer(
            mode,
            length,
            self.name,
            strategy=strategy,
            stages=len(said["stages"]),
            microbatches=len(devices[0]["microbatches"]),
            step_seconds=said["step_seconds"],
            memory=memory,
        )


class Question:
    """A way to train a model on some GPUs. `folder`: for files of plans, which `pool` makes."""

    def __init__(
        self,
        model: Known,
        mode: str,
        cards: Sequence[Cards],
        link: str,
        rows: int,
        say: Progress,
        folder: Path,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._model, self._mode, self._cards, self._link = model, mode, cards, link
        self._rows, self._say, self._folder, self._pool = rows, say, folder, pool

    def begin(self, lengths: Sequence[int] | None) -> Callable[[], list[Answer]]:
        """Starts planning for the lengths, on all GPUs together and on one of each type alone.
        Returns a function that waits for the answers.

        The graph is made with the first plan, and not at all if the weights alone do not fit.
        """
        places = [
            Place(f"{c.kind} alone", self._cards, self._link, self._folder, [f"{c.kind}/0/0"])
            for c in self._cards
        ]
        if sum(each.count for each in self._cards) > 1:
            places.insert(0, self._all())
        short = {place.name: self._without_plan(place) for place in places}
        asked = [place for place in places if not short[place.name]]
        all_of = self._asked(lengths)
        begun = [self._begin(asked, length) for length in all_of if asked]

        def answers() -> list[Answer]:
            found: list[Answer] = []
            for i, length in enumerate(all_of):
                planned = self._planned(asked, length, begun[i]) if asked else {}
                for place in places:
                    why = short[place.name]
                    found.append(
                        planned.get(place.name) or Answer(self._mode, length, place.name, why)
                    )
                    short[place.name] = why and "a shorter length does not fit"
            return found

        return answers

    def advice(self, length: int | None) -> list[str]:
        """Returns changes with which the model would fit."""
        found = []
        largest = max(self._cards, key=lambda each: _memory(each, self._link))
        if lacking := self._all().lacks(self._model.facts.kept):
            more = -(-lacking // _memory(largest, self._link))
            found.append(f"at least {more} more {largest.kind}")
        else:
            found += self._shorter(length)
            found += self._more(largest, length)
        if self._mode == "full":
            found.append(
                "--mode lora: frozen weights need neither gradients nor an optimizer's state"
            )
        if self._mode == "lora":
            found.append("--mode qlora: frozen weights of 4 bits")
        return found

    def _asked(self, lengths: Sequence[int] | None) -> Sequence[int | None]:
        if not self._model.facts.takes_tokens:
            return (None,)
        longest = self._model.facts.longest
        return lengths or [each for each in _LENGTHS if each <= longest] or [longest]

    def _without_plan(self, place: Place) -> str:
        """Returns the reason why no plan can fit, if it is clear without planning."""
        lacking = place.lacks(self._model.facts.kept)
        if not lacking:
            return ""
        return (
            f"weights and what AdamW keeps of them take {_gib(self._model.facts.kept)}, "
            f"{_gib(lacking)} more than there is"
        )

    def _all(self) -> Place:
        return Place("all", self._cards, self._link, self._folder)

    def _graph(self, length: int | None) -> Path:
        path = self._folder / f"{length}.graph"
        if not path.exists():
            with self._say("tracing the model"):
                path.write_text(self._model.graph(length))
        return path

    def _begin(self, places: Sequence[Place], length: int | None) -> list[Plans]:
        graph, kept = self._graph(length), self._model.facts.kept
        return [place.begin(graph, self._rows, kept, self._pool) for place in places]

    def _planned(
        self, places: Sequence[Place], length: int | None, begun: Sequence[Plans]
    ) -> dict[str, Answer]:
        """Returns the answers by place."""
        tokens = "" if length is None else f", {length} tokens"
        with self._say(f"{self._mode}{tokens}: planning for {', '.join(p.name for p in places)}"):
            return {
                place.name: place.answer(self._mode, length, plans)
                for place, plans in zip(places, begun, strict=True)
            }

    def _shorter(self, length: int | None) -> list[str]:
        for shorter in _SHORTER if length is not None else ():
            if shorter < (length or 0):
                places = [self._all()]
                found = self._planned(places, shorter, self._begin(places, shorter))
                if found["all"].fits:
                    return [f"--lengths {shorter}"]
        return []

    def _more(self, largest: Cards, length: int | None) -> list[str]:
        for more in _MORE_CARDS:
            others = [
                dataclasses.replace(each, count=each.count + more * (each == largest))
                for each in self._cards
            ]
            places = [Place(f"{more} more {largest.kind}", others, self._link, self._folder)]
            begun = self._begin(places, length)
            if self._planned(places, length, begun)[places[0].name].fits:
                return [places[0].name]
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
    folder: Path | None,
    say: Progress,
) -> Found:
    """Answers all modes and lengths, on all GPUs together and on one of each type alone. `folder`:
    cache of models."""
    link = link or link_of(cards)
    found = Found({})
    with (
        tempfile.TemporaryDirectory(prefix="medley-fits-") as plans,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        asked: list[tuple[str, Known, Question, Callable[[], list[Answer]]]] = []
        # Plans of one mode are made while the next mode is traced.
        for mode in modes:
            with say("reading the model"):
                model = Known(path, "" if mode == "full" else lora, mode == "qlora", folder)
            with contextlib.closing(model):
                here = Path(plans, mode)
                here.mkdir()
                question = Question(model, mode, cards, link, rows, say, here, pool)
                asked.append((mode, model, question, question.begin(lengths)))
        for mode, model, question, begun in asked:
            found.head = _head(model.facts, cards, link, rows)
            found.trained[mode] = model.facts.trained
            answers = begun()
            found.answers += answers
            if not any(answer.fits for answer in answers):
                with contextlib.closing(model):
                    found.advice[mode] = question.advice(answers[0].length)
    return found


def _head(facts: Facts, cards: Sequence[Cards], link: str, rows: int) -> dict[str, Any]:
    return {
        "model": facts.kind,
        "weights": facts.weights,
        "dtype": facts.dtype,
        "cards": {each.kind: each.count for each in cards},
        "notes": [each.note for each in cards if each.note],
        "link": link,
        "rows": rows,
    }
