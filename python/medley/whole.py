"""The state of a run as a whole: the engines of all objectives, and its checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medley import checkpoint
from medley.checkpoint import Part, Saving, Wanted
from medley.cursor import Cursor
from medley.engine import Engine
from medley.model_files import tensors_of
from medley.run import exchange
from medley.schedules import schedule_text

if TYPE_CHECKING:
    from medley.shared_state import SharedState


class Whole:
    """The state of one objective. `medley/joint_state.py` has that of several over one state."""

    shared: SharedState | None = None  # values that several objectives share

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        """`engines`: by objective, in order."""
        self.engines = engines
        self.saver: Any = None  # stays None without a device of the plan

    @property
    def first(self) -> Engine:
        """The engine whose run monitors the others, and whose plan defines the first process."""
        return next(iter(self.engines.values()))

    @property
    def steps(self) -> int:
        """The steps done, over all objectives."""
        return sum(engine.steps for engine in self.engines.values())

    def set_steps(self, counts: Sequence[int]) -> None:
        """Sets the number of steps of each engine."""
        for engine, count in zip(self.engines.values(), counts, strict=True):
            engine.steps = count

    # --- checkpoints ---

    def open(self, introduce: Callable[[Engine], None] = lambda engine: None) -> None:
        """Makes the first runs with the values of the models, after calling `introduce` for each
        engine."""
        for engine in self.engines.values():
            with exchange.reordered(engine.order):
                engine.open()
                introduce(engine)
                with engine.together("Trainer()"):
                    engine.start(functools.partial(tensors_of, engine.model))
        self.opened()

    def opened(self) -> None:
        """Marks that the engines have their first runs, or receive them from other processes."""
        self.open_saver()

    def open_saver(self) -> None:
        """Makes the saver of the engines' new runs."""
        first = self.first
        has_run = first.run is not None
        self.saver = checkpoint.Saver(first.run, first.program, first.job) if has_run else None

    def leave(self) -> None:
        """Completes the checkpoint in progress when the trainer is deleted."""
        self.saver.leave()

    def save(self, folder: str, saving: Saving, wait: bool, data: Cursor | None) -> str:
        """Writes a checkpoint. Returns the reason why it cannot, or "" if it is or will be
        written."""
        if self.saver is None:
            return ""
        state, parts = self.description(data), self.parts()
        for engine in self.engines.values():
            engine.reset()
        with self.first.together("save()"):
            error: str = self.saver.begin(folder, state, saving, not wait, parts)
            return error or (self.saver.wait() if wait else "")

    def read(self, folder: str, exact: bool, parameters_only: bool) -> list[Any] | None:
        """Reads everything from the newest checkpoint in a folder. Returns its path, step, global
        batch, position in the data, and the steps of each objective, or None if there is none."""
        runs = {name: engine.run for name, engine in self.engines.items()}
        with self.first.together("load()"):
            self.saver.wait()
            self.first.settle()
            result = checkpoint.load(
                lambda path, manifest: self.wanted(runs, path, manifest, parameters_only),
                self.first.job,
                folder,
                self.steps,
                exact=exact,
                parameters_only=parameters_only,
            )
        if result is None:
            return None
        found, manifest = result
        counts = [0] * len(runs)
        if not parameters_only:
            counts = self.counts(manifest)
            for run, seed in zip(runs.values(), self.seeds(manifest), strict=True):
                run.seed = seed
        if self.shared is not None:
            self.shared.begin()
        return [found.path, found.step, found.global_batch, found.data, counts]

    def description(self, data: Cursor | None) -> dict[str, Any]:
        """Returns the position of training."""
        engine = self.first
        return {
            "step": engine.steps,
            "global_batch": engine.plan.global_batch,
            "seed": engine.run.seed,
            "data": data,
            "optimizer": engine.optimizer.description(),
            "schedule": schedule_text(engine.optimizer.lr),
            "graph": engine.graph.hash(),
            "plan": checkpoint.text_hash(engine.plan.text),
            "cluster": engine.plan.core.cluster_hash,
            "versions": checkpoint.versions(),
        }

    def parts(self) -> list[Part]:
        """Returns the parts that the objectives write: their own state, and the shared values they
        own. An empty list means all of the only run."""
        return []

    def wanted(
        self, runs: Mapping[str, Any], path: str, manifest: Any, parameters_only: bool = False
    ) -> list[Wanted]:
        """Returns the values that runs read from a checkpoint. A run is None without a device of
        the plan."""
        if not parameters_only:
            checkpoint.require_kind(path, manifest, self.first.optimizer.description()["kind"])
        return [(run, manifest, "") for run in runs.values() if run is not None]

    def counts(self, manifest: Any) -> list[int]:
        """Returns the steps of each objective in a checkpoint."""
        return [int(manifest.step)]

    def seeds(self, manifest: Any) -> list[int]:
        """Returns the seeds of the runs in a checkpoint."""
        return [int(manifest.seed)]
