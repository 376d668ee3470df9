"""Checkpoints: everything a run is, written beside training and read under any plan.

The format is docs/formats/checkpoint.md. Each process writes the files of its own devices; the
first one says when all are there, and so when the checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import medley
from medley import _core, _runtime
from medley.cursor import Cursor
from medley.files import make_folder, unwritable
from medley.run import elastic, ends, epochs, exchange
from medley.run.job import Job
from medley.run.patience import say
from medley.whole_tensors import DTYPES

_Read = TypeVar("_Read")
# A run, what it finds in a checkpoint, and with what the names of its state begin there.
Wanted = tuple[_runtime.Run, _core.Manifest, str]
_LOOK_AGAIN_SECONDS = 0.005
_DYING_SECONDS = 10.0  # that a process which was lost may still hold a lock
_CONTAINER = Path("/sys/fs/cgroup")
_locks: dict[str, int] = {}  # descriptors, by what this process has locked


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: where it is, how many steps it has done, and where in the data
    the next one is."""

    path: str
    step: int
    global_batch: int
    data: Cursor | None


@dataclasses.dataclass(frozen=True)
class Saving:
    """How a checkpoint is written, and what stays of those of its folder: the newest so many, and
    those whose step is a multiple of `keep_every`."""

    keep: int = 3
    keep_every: int = 0
    spread: float = 0.0  # seconds that it takes beside training, or more if it needs more

    def __post_init__(self) -> None:
        if self.keep < 1 or self.keep_every < 0:
            raise ValueError(
                f"keep: found {self.keep}, keep_every: found {self.keep_every}, "
                "expected at least 1 and 0"
            )
        if not 0 <= self.spread <= 86_400:
            raise ValueError(f"spread: found {self.spread}, expected seconds, up to those of a day")


def versions() -> dict[str, str]:
    """Returns the versions that a checkpoint names."""
    return {"medley": medley.__version__, "torch": str(torch.__version__)}


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a checkpoint that one run writes, in files whose names begin with `prefix`."""

    run: _runtime.Run
    deal: _core.Deal
    prefix: str = ""


@dataclasses.dataclass
class _Save:
    """A checkpoint that is being written."""

    folder: str
    state: dict[str, Any]
    saving: Saving
    key: str  # of what the processes tell each other about it
    deals: list[_core.Deal]
    writers: list[_runtime.StateWriter]  # until this process has told what it wrote
    is_beside: bool  # nobody waits for it
    told: dict[int, str] = dataclasses.field(default_factory=dict)  # by rank
    commit: Future[str] | None = None


class Saver:
    """Writes checkpoints of a run beside its training, one at a time."""

    def __init__(self, run: _runtime.Run, program: _core.Program, job: Job | None) -> None:
        self._run = run
        self._program = program
        self._job = job
        self._deal: _core.Deal | None = None
        self._save: _Save | None = None
        self._waits: _Save | None = None  # for the first process to say that it is complete
        self._pool: ThreadPoolExecutor | None = None
        self._saved: int | None = None  # steps done in the last one that is complete

    @property
    def safe_step(self) -> int | None:
        """Steps done in what a run may have to go back to: a complete checkpoint or, where this
        process knows of none, the one that is being written."""
        if self._saved is not None or self._save is None:
            return self._saved
        return int(self._save.state["step"])

    @property
    def deal(self) -> _core.Deal:
        """Who writes what."""
        if self._deal is None:
            self._deal = _core.Deal(self._program)
        return self._deal

    def begin(
        self,
        folder: str,
        state: dict[str, Any],
        saving: Saving,
        is_beside: bool = True,
        parts: Sequence[Part] = (),
    ) -> str:
        """Lets a checkpoint of the state as it is now be written; waits for the one before.

        Returns why it cannot, "" if it can. In a job all processes call it. `parts`: of several
        runs that are saved as one; none: all of the only run.
        """
        self.wait()
        parts = parts or [Part(self._run, self.deal)]
        step = state["step"]
        patience = _DYING_SECONDS if self._may_have_lost else 0.0
        error = self._from_first(lambda: _open_folder(folder, step, patience))
        if not error:
            temporary = _core.checkpoint_folder(folder, step)
            writers = [
                _runtime.StateWriter(each.run, each.deal, temporary, saving.spread, each.prefix)
                for each in parts
            ]
            deals, key = [each.deal for each in parts], self._new_key()
            self._save = _Save(folder, state, saving, key, deals, writers, is_beside)
            held = sum(writer.bytes for writer in writers)
            if held > (room := available_memory()):
                say(
                    f"step {step} is written while training waits: beside it, up to "
                    f"{held / 1e9:.1f} GB more would be held, of {room / 1e9:.1f} GB"
                )
                self._write_rest(self._save)
        return error

    def beside(self) -> list[Any] | None:
        """Returns what is being written beside training: folder, steps, saving and data."""
        save = self._save or self._waits
        if save is None or not save.is_beside:
            return None
        saving = dataclasses.astuple(save.saving)
        return [save.folder, save.state["step"], saving, save.state["data"]]

    def close(self) -> None:
        """Lets go of a checkpoint that not all can complete any more, and which the next one
        removes; what is being completed becomes complete."""
        save, self._save = self._save, None
        for writer in [] if save is None else save.writers:
            writer.abandon()
        if save is not None and save.commit is not None:
            save.commit.result()

    def forget(self) -> None:
        """The run goes back to nothing that was saved so far."""
        self._saved = None

    def poll(self) -> None:
        """Lets what is being written go on. Waits for nothing."""
        save = self._save
        if save is None:
            return
        self._tell_when_done(save)
        if self._is_first and save.commit is None and self._have_all_told(save):
            self._pool = self._pool or ThreadPoolExecutor(1)
            save.commit = self._pool.submit(self._complete, save)

    def wait(self) -> str:
        """Waits until nothing is being written. Returns why the last checkpoint is not complete, ""
        if it is."""
        save = self._save
        if save is None:
            return ""
        self._write_rest(save)
        while self._is_first and not self._have_all_told(save):
            self._check_others()
            time.sleep(_LOOK_AGAIN_SECONDS)
        self._save, self._waits = None, save
        error = self._verdict(save)
        self._waits = None
        if not error:
            self._saved = int(save.state["step"])
        return error

    def leave(self) -> None:
        """The trainer is gone: completes what is being written, with others at the end."""
        if self._job is None:
            self.wait()
        elif self._save is not None:
            ends.leave_to_the_end(self.wait)

    def _verdict(self, save: _Save) -> str:
        if self._is_first:
            # At the end of a program there are no new threads.
            error = self._complete(save) if save.commit is None else save.commit.result()
            if self._job is not None:
                exchange.store().set(f"{save.key}/verdict", f"-{error}")
            return error
        assert self._job is not None
        return exchange.from_store(self._job, f"{save.key}/verdict", "completes a checkpoint")[1:]

    def _write_rest(self, save: _Save) -> None:
        while save.writers:
            self._check_others()
            for writer in save.writers:
                writer.next()
            self._tell_when_done(save)

    @property
    def _is_first(self) -> bool:
        return self._job is None or self._job.rank == 0

    @property
    def _may_have_lost(self) -> bool:
        """Whether a lost process may have saved before this one."""
        if self._job is None or not self._job.elastic:
            return False
        return elastic.member().epoch > 0

    def _check_others(self) -> None:
        if self._job is not None:
            exchange.check()

    def _new_key(self) -> str:
        return "" if self._job is None else exchange.new_key("save")

    def _from_first(self, make: Callable[[], bytes]) -> str:
        data = make() if self._job is None else exchange.from_first(make, "opens a checkpoint")
        return data.decode()

    def _tell_when_done(self, save: _Save) -> None:
        """Tells the first process what this one has written."""
        if not save.writers or not all(writer.is_done for writer in save.writers):
            return
        text = _written(save)
        save.writers = []
        if self._job is None:
            save.told[0] = text
        else:
            exchange.store().set(f"{save.key}/{self._job.rank}", text)

    def _have_all_told(self, save: _Save) -> bool:
        if self._job is None:
            return bool(save.told)
        for rank in range(self._job.size):
            if rank not in save.told:
                text = exchange.store().get(f"{save.key}/{rank}")
                if text is None:
                    return False
                save.told[rank] = text
        return True

    def _complete(self, save: _Save) -> str:
        """Makes a checkpoint of the files that all have written; returns why it cannot."""
        step = save.state["step"]
        told = [json.loads(save.told[rank]) for rank in sorted(save.told)]
        error = next((each["error"] for each in told if each["error"]), "")
        try:
            if not error:
                files = [tuple(file) for each in told for file in each["files"]]
                manifest = _core.Manifest(save.deals, save.state, files)
                manifest.commit(save.folder)
                self._note(save.folder, step)
        except OSError as failure:
            error = str(failure)
        try:
            if error:
                _core.drop_checkpoint(save.folder, step)
            else:
                _core.retire_checkpoints(save.folder, save.saving.keep, save.saving.keep_every)
        except OSError as failure:
            say(f"{failure}: what is of no more use stays there")
        if error:
            say(f"step {step} is not saved: {error}")
        return error

    def _note(self, folder: str, step: int) -> None:
        """Says before older ones go that the run may go back to this one."""
        if self._job is not None and self._job.elastic:
            path = _core.checkpoint_folder(folder, step).removesuffix(".tmp")
            epochs.note_checkpoint(exchange.store(), path, step)


def available_memory() -> float:
    """Returns the bytes that this machine still has, or that a container leaves this process."""
    room = math.inf
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CONTAINER / "memory.max").read_text())  # "max" is no number: no limit
        used = int((_CONTAINER / "memory.current").read_text())
        room = limit - used + _fields(_CONTAINER / "memory.stat")["file"]  # of which files go first
    with contextlib.suppress(OSError):
        room = min(room, 1024 * _fields(Path("/proc/meminfo"))["MemAvailable:"])
    return room


def _fields(path: Path) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}


def _written(save: _Save) -> str:
    files: list[tuple[int, str, int, str]] = []
    before = 0  # writers of the runs before
    try:
        for writer, deal in zip(save.writers, save.deals, strict=True):
            files += [(before + n, name, size, sum_) for n, name, size, sum_ in writer.finish()]
            before += deal.num_writers
        return json.dumps({"files": files, "error": ""})
    except OSError as error:
        return json.dumps({"files": [], "error": str(error)})


def _open_folder(folder: str, step: int, patience: float) -> bytes:
    """Makes room for a checkpoint; returns why it cannot."""
    try:
        make_folder(folder)
        _lock(folder, patience)
        _core.begin_checkpoint(folder, step)
    except OSError as error:
        say(f"step {step} is not saved: {error}")
        return str(error).encode()
    return b""


def _lock(folder: str, patience: float = 0.0) -> None:
    """Raises ValueError if another process saves to a folder, which has so many seconds to end; the
    lock ends with it."""
    path = str(Path(folder, ".lock").resolve())
    if path in _locks:
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    end = time.monotonic() + patience
    while not (is_ours := _try_lock(descriptor)) and time.monotonic() < end:
        time.sleep(0.05)
    if not is_ours:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise ValueError(
            f"{folder}: found {holder} saving to it, expected a folder that no other job uses"
        )
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} of {socket.gethostname()}\n".encode())
    _locks[path] = descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


# --- reading --------------------------------------------------------------------------------------


def load(
    wanted: Callable[[str, _core.Manifest], Sequence[Wanted]],
    job: Job | None,
    folder: str,
    done: int,
    *,
    exact: bool,
    parameters_only: bool,
) -> tuple[Checkpoint, _core.Manifest] | None:
    """Gives runs what they have of the newest checkpoint in a folder that is whole, or of the
    folder itself if it is one, after so many steps; None where there is none at all.

    Raises ValueError for one of another model or optimizer, for one that is damaged if it has to be
    `exact`ly the newest, and if all are damaged.
    """
    found = candidates(job, folder)

    def note(path: str, step: int) -> None:
        if job is not None and job.elastic and job.rank == 0:
            epochs.note_load(exchange.store(), "" if parameters_only else path, step, done)

    only = {"exact": exact, "parameters_only": parameters_only}
    try:
        return read_newest(wanted, job, found, note, **only)
    except ValueError:
        note("", 0)
        raise


def require_kind(path: str, manifest: _core.Manifest, expected: str) -> None:
    """Raises ValueError if a checkpoint has the state of another kind of optimizer."""
    kind = manifest.optimizer.get("kind", "none")
    if kind != expected:
        raise ValueError(
            f"{path}: found the optimizer {kind}, expected {expected}: parameters_only=True takes "
            "the parameters alone"
        )


def read_newest(
    wanted: Callable[[str, _core.Manifest], Sequence[Wanted]],
    job: Job | None,
    found: list[tuple[str, int, bool]],
    note: Callable[[str, int], None] = lambda path, step: None,
    *,
    exact: bool = False,
    parameters_only: bool = False,
) -> tuple[Checkpoint, _core.Manifest] | None:
    """Gives runs what they have of the newest checkpoint that is whole, of those that were found
    (path, step, whether it is complete), newest first, of which each is `note`d before it is read;
    `wanted` returns the runs, each with what it finds in a checkpoint. A process without a device
    of the plan has none: it hears what the others find."""
    last = ""
    for path, _, is_complete in found:
        if last:
            _say_first(job, f"{last}; taking {path}")
        last = "" if is_complete else f"{path}: not complete (no COMMIT)"
        if is_complete:
            manifest, last = _read(wanted, job, path, note, parameters_only)
            if manifest is not None:
                cursor = None if manifest.data is None else Cursor(*manifest.data)
                return Checkpoint(path, manifest.step, manifest.global_batch, cursor), manifest
        if exact:
            break
    if found:
        raise ValueError(last)
    return None


def has_checkpoint(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a checkpoint or has any."""
    return Path(folder, "COMMIT").exists() or bool(_core.find_checkpoints(os.fspath(folder)))


def newest_complete(folder: str) -> str:
    """Returns the newest complete checkpoint in a folder, or the folder if it is one. Raises
    ValueError if there is none."""
    if Path(folder, "COMMIT").exists():
        return folder
    for path, _, is_complete in _core.find_checkpoints(folder):
        if is_complete:
            return path
    raise ValueError(f"{folder}: found no checkpoint, expected one")


@dataclasses.dataclass(frozen=True)
class StoredValue:
    """A value of a complete checkpoint."""

    kind: str  # parameter, buffer or state
    name: str  # of the model; of a state "<moment>:<parameter>"
    dtype: torch.dtype
    shape: list[int]
    read: Callable[[], Tensor]  # all of it


def stored_values(path: str) -> list[StoredValue]:
    """Returns the values of a complete checkpoint. Raises ValueError naming the file if it is not
    itself."""
    manifest = _core.Manifest.open(path)

    def value(kind: str, name: str, dtype: torch.dtype, shape: list[int]) -> StoredValue:
        def read() -> Tensor:
            data = bytearray(manifest.read(path, kind, name))
            if not data:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(data, dtype=dtype).reshape(shape)

        return StoredValue(kind, name, dtype, shape, read)

    return [value(kind, name, DTYPES[dtype], shape) for kind, name, dtype, shape in manifest.values]


def candidates(job: Job | None, folder: str) -> list[tuple[str, int, bool]]:
    """Returns (path, step, whether it is complete), newest first, as the first process sees it."""

    def find() -> bytes:
        if Path(folder, "COMMIT").exists():
            return json.dumps([(folder, 0, True)]).encode()
        return json.dumps(_core.find_checkpoints(folder)).encode()

    data = find() if job is None else exchange.from_first(find, "looks for checkpoints")
    return [(str(path), int(step), bool(whole)) for path, step, whole in json.loads(data)]


def _read(
    wanted: Callable[[str, _core.Manifest], Sequence[Wanted]],
    job: Job | None,
    path: str,
    note: Callable[[str, int], None],
    parameters_only: bool,
) -> tuple[_core.Manifest | None, str]:
    """Returns the manifest of what all processes have read, or what one of them has found."""
    manifest, error = _try(lambda: _core.Manifest.open(path))
    if manifest is not None:
        note(path, manifest.step)
    if error := _first_of_all(job, error):
        return None, error
    assert manifest is not None
    whole = manifest
    runs: list[tuple[_runtime.Run, object, str]] = list(wanted(path, manifest))
    for run, part, _ in runs:
        _runtime.match_state(run, path, part, parameters_only)
    if runs:
        _, error = _try(lambda: _runtime.load_state(runs, path, whole, parameters_only))
    error = _first_of_all(job, error)
    return (None, error) if error else (manifest, "")


def _try(read: Callable[[], _Read]) -> tuple[_Read | None, str]:
    try:
        return read(), ""
    except (ValueError, OSError) as error:
        return None, str(error)


def _first_of_all(job: Job | None, error: str) -> str:
    if job is None:
        return error
    return next((text[1:] for text in exchange.texts(f"-{error}") if text[1:]), "")


def _say_first(job: Job | None, line: str) -> None:
    if job is None or job.rank == 0:
        say(line)
