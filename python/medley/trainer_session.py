"""Checkpoints and the end of a run: the part of a trainer that its session does."""

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
    """The part of a trainer, of one objective or of several, that its session does."""

    session: Session

    def fail(self, cause: str) -> str:
        """Ends the run on all devices; returns its first cause, which may be another's."""
        return self.session.fail(cause)

    def finish(self) -> None:
        """Tells the other devices that this one has nothing more to do; the first one says which
        of them were slower than the plan expects. What is being saved is completed first."""
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
        """Writes a checkpoint `folder`/step-<steps>: parameters, buffers, the optimizer's state and
        where training is, which `load` reads under any plan. Of several objectives it has all, and
        the steps of all.

        The newest `keep` stay, and those whose step is a multiple of `keep_every`. `data` says
        where the rows of the next step are. Without `wait` it is written while training goes on,
        over `spread` seconds if these are more than it needs: a full disk is then said on stderr,
        and ends nothing. In a job all processes call this, and each writes what its device holds.
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
        """Takes everything from what `save` wrote under any plan for the same objectives: the
        newest checkpoint in a folder that is whole, or the folder itself if it is one. Training
        goes on from there.

        `exact` refuses a newest one that is damaged rather than take an older one;
        `parameters_only` leaves the optimizer and the steps out, which start anew, and also takes
        the checkpoint of another trainer that has all parameters and buffers. In a job all
        processes call this, and each reads what its device needs.
        """
        found = self._read(folder, exact, parameters_only)
        if found is None:
            raise ValueError(f"{folder}: found no checkpoint, expected one")
        return found

    def resume(self, folder: str | os.PathLike[str]) -> Checkpoint | None:
        """Goes on from the newest checkpoint in a folder; None, and nothing, if there is none."""
        return self._read(folder, False, False)

    def _read(
        self, folder: str | os.PathLike[str], exact: bool, parameters_only: bool
    ) -> Checkpoint | None:
        whole, path = self.session.whole, os.fspath(folder)
        told = self.session.once(Kind.LOAD, lambda: whole.read(path, exact, parameters_only))
        if told is None:
            return None
        found, step, rows, data, counts = told
        for engine in whole.engines.values():
            engine.resets.clear()
        self.session.begin_at(counts, found)
        return Checkpoint(found, step, rows, None if data is None else Cursor(*data))

    def load_model(self, folder: str | os.PathLike[str]) -> None:
        """Takes parameters and buffers from what `save_model` or transformers' `save_pretrained`
        wrote, in one file or in several with an index; optimizers and steps start anew. They have
        the names of the model's state dict, tied ones at least once, and no other. In a job all
        processes call this and the first one reads."""
        whole = self.session.whole

        def load() -> list[int]:
            for engine in whole.engines.values():
                engine.load_model(folder)
            if whole.shared is not None:
                whole.shared.begin()
            return [0] * len(whole.engines)

        go_on_after(self.session, load)

    def catch_up(self) -> Metrics | None:
        """Goes on where the others are, in a process that takes the place of a lost one: `step`
        then returns the metrics of the last step that was made, behind which they may be still, and
        this those of the one before. Elsewhere nothing. The script goes on at `steps`, of several
        objectives at their sum."""
        return self.session.catch_up()
