"""Verbs and models of packages above the public API, found by name. No module of Medley imports
`medley_extras` (scripts/check_python.py). Its table is loaded when a verb or a model is looked up;
without the package the table is empty."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from medley import _core

if TYPE_CHECKING:
    from torch import nn

    from medley.cli.verb import Verb
    from medley.metrics import Metrics
    from medley.trainer import Trainer

# Reads name, options and the (rows, length) of the example batch, if given.
ModelReader = Callable[[str, dict[str, Any], tuple[int, int] | None], tuple["nn.Module", Any]]


class Observer(Protocol):
    """Takes the metrics of each step."""

    def step(self, trainer: Trainer, metrics: Metrics) -> None: ...


class Tuner(Observer, Protocol):
    """Changes the plan after some steps."""

    # Called before each step.
    def prepare(self, trainer: Trainer, batch: Any) -> None: ...

    # Notes that the first step under its plan has failed. Returns False if the plan is not its own.
    def takes(self, error: Exception) -> bool: ...


class Speed(Protocol):
    """Compares the compute times of devices with the plan, at the end of a run."""

    def add(self, nanoseconds: int) -> None: ...

    def report(self) -> None: ...


_PACKAGE = "medley_extras"


def verbs() -> Sequence[Verb]:
    """Returns the verbs that the table has."""
    table = _table()
    return () if table is None else table.VERBS


def form(name: str, option: str) -> Verb | None:
    """Returns the form of a verb that begins with an option, if the table has it."""
    table = _table()
    return None if table is None else table.FORMS.get((name, option))


def before(name: str, arguments: Sequence[str]) -> None:
    """Calls the addition of the table to a verb of the core, before that verb runs."""
    table = _table()
    if table is not None and name in table.BEFORE:
        importlib.import_module(table.BEFORE[name]).before(arguments, _core.Graph.parse)


def model_reader(kind: str) -> ModelReader | None:
    """Returns the reader of models named `kind:name?options`, if the table has this kind."""
    table = _table()
    if table is None or kind not in table.MODELS:
        return None
    read: ModelReader = importlib.import_module(table.MODELS[kind]).load
    return read


def exporter(trainer: Trainer, host: str, port: int) -> Observer:
    """Returns the object that serves the metrics of a trainer. Raises ValueError without one."""
    made: Observer = _module("EXPORTER", "--metrics-port").export(trainer, host, port)
    return made


def tuner(trainer: Trainer, steps: int | None, remember: bool) -> Tuner | None:
    """Returns the race of plans, which may cost `steps` steps. Without the package it returns None
    for the default number (None), and raises ValueError for another."""
    if steps is None and _table() is None:
        return None
    made: Tuner = _module("TUNER", "--tune").tuner(trainer, steps, remember)
    return made


def tempo(*arguments: Any) -> Any:
    """Returns the object that finds devices that become slower in an elastic run, or None without
    the package."""
    return None if _table() is None else _module("TEMPO", "").Tempo(*arguments)


def speed(*arguments: Any) -> Speed | None:
    """Returns the object that reports slow devices of a job, or None without the package."""
    return None if _table() is None else _module("SPEED", "").Speed(*arguments)


def _module(name: str, option: str) -> Any:
    if (table := _table()) is None:
        raise ValueError(f"{option}: needs the package {_PACKAGE}. Install it.")
    return importlib.import_module(getattr(table, name))


def _table() -> Any:
    if importlib.util.find_spec(_PACKAGE) is None:
        return None
    return importlib.import_module(f"{_PACKAGE}.table")
