"""Checkpoints and the end of a run: the part of a trainer that its session implements."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from medley.checkpoint import Checkpoint, Saving
from medley.cursor import Cursor
from medley.metrics import Metrics
from medley.run.journal import Kind
from medley.run.sessions import go_on_after

if TYPE_CHECKING:
    from medley.run.sessions import Session


class OfSession:
    """The part of a trainer that its session implements, for one objective or several."""

    session: Session

    def fail(self, cause: str) -> str:
        """Ends the run on all devices. Returns its first cause, which may be on another device."""
        return self.session.fail(cause)

    def finish(self) -> None:
        """Completes checkpoints in progress and notifies the other devices that this one has
        finished. The first process prints the devices that were slower than the plan expects."""
        self.session.finish()

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_every: int = 0,
        wait: bool = True,
        spread: float = 0.0,
        data: Cursor | tuple[int, int, int] | None = None,
    ) -> None:
        """Writes a checkpoint `folder`/step-<steps>: parameters, buffers, optimizer state and
        position. `load` reads it under any plan. With several objectives it covers all.

        The newest `keep` remain, and those whose step is a multiple of `keep_every`. `data` is the
        position of the next step's rows. With `wait=False` training continues meanwhile, and the
        writing takes `spread` seconds or more. A full disk then only prints a warning to stderr.
        Collective: each process writes the values of its device.
        """
        path, place = os.fspath(folder), None if data is None else Cursor(*data)
        whole, saving = self.session.whole, Saving(keep, keep_every, spread)
        error = self.session.once(Kind.SAVE, lambda: whole.save(path, saving, wait, place))
        if wait and error:
            raise OSError(error)

    def load(
        self,
        folder: str | os.PathLike[str],
        *,
        exact: bool = False,
        parameters_only: bool = False,
    ) -> Checkpoint:
        """Reads a checkpoint of `save`, made under any plan for the same objectives. Training
        resumes there.

        `folder` is a checkpoint, or contains some; the newest whole one is read. `exact` refuses a
        damaged newest one instead of reading an older one. `parameters_only` skips optimizer and
        steps, which start anew. It also accepts a checkpoint of another trainer with all parameters
        and buffers. Collective: each process reads the values of its device.
        """
        found = self._read(folder, exact, parameters_only)
        if found is None:
            raise ValueError(f"{folder}: found no checkpoint, expected one")
        return found

    def resume(self, folder: str | os.PathLike[str]) -> Checkpoint | None:
        """Resumes from the newest checkpoint in a folder. Returns None if there is none."""
        return self._read(folder, False, False)

    def _read(
        self, folder: str | os.PathLike[str], exact: bool, parameters_only: bool
    ) -> Checkpoint | None:
        whole, path = self.session.whole, os.fspath(folder)
        loaded = self.session.once(Kind.LOAD, lambda: whole.read(path, exact, parameters_only))
        if loaded is None:
            return None
        found, step, rows, data, counts = loaded
        for engine in whole.engines.values():
            engine.resets.clear()
        self.session.begin_at(counts, found)
        return Checkpoint(found, step, rows, None if data is None else Cursor(*data))

    def load_model(self, folder: str | os.PathLike[str]) -> None:
        """Reads parameters and buffers written by `save_model` or by transformers'
        `save_pretrained`. They are in one file, or in several with an index. Their names must be
        those of the model's state dict, with tied ones at least once. Optimizers and steps start
        anew. Collective: the first process reads."""
        whole = self.session.whole

        def load() -> list[int]:
            for engine in whole.engines.values():
                engine.load_model(folder)
            if whole.shared is not None:
                whole.shared.begin()
            return [0] * len(whole.engines)

        go_on_after(self.session, load)

    def catch_up(self) -> Metrics | None:
        """Fast-forwards a process that replaces a lost one to the current step of the run. Returns
        the metrics of the step before the last one; `step` then returns those of the last step,
        which the other processes may still be finishing. The script continues at `steps`, with
        several objectives at their sum. In other processes it returns None."""
        return self.session.catch_up()
