"""Checkpoints: the state of a run, written in parallel with training and readable under any plan.
The format is docs/formats/checkpoint.md. Each process writes the files of its own devices. The
first process marks the checkpoint complete once all files exist."""

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
from medley.run import elastic, ends, exchange, generations
from medley.run.job import Job
from medley.run.patience import say
from medley.whole_tensors import DTYPES

_Read = TypeVar("_Read")
# A run, the values that it reads from a checkpoint, and the prefix of the names of its state there.
Wanted = tuple[_runtime.Run, _core.Manifest, str]
_LOOK_AGAIN_SECONDS = 0.005
_DYING_SECONDS = 10.0  # how long a lost process may still hold a lock
_CONTAINER = Path("/sys/fs/cgroup")
_locks: dict[str, int] = {}  # descriptors by locked path


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its path, its number of steps, and the position of its next step
    in the data."""

    path: str
    step: int
    global_batch: int
    data: Cursor | None


@dataclasses.dataclass(frozen=True)
class Saving:
    """How a checkpoint is written, and which ones of its folder are kept: the newest `keep`, and
    those whose step is a multiple of `keep_every`."""

    keep: int = 3
    keep_every: int = 0
    spread: float = 0.0  # seconds over which the writing is spread, or more if needed

    def __post_init__(self) -> None:
        if self.keep < 1 or self.keep_every < 0:
            raise ValueError(
                f"keep: found {self.keep}, keep_every: found {self.keep_every}, "
                "expected at least 1 and 0"
            )
        if not 0 <= self.spread <= 86_400:
            raise ValueError(f"spread: found {self.spread}, expected seconds, up to those of a day")


def versions() -> dict[str, str]:
    """Returns the versions recorded in a checkpoint."""
    return {"medley": medley.__version__, "torch": str(torch.__version__)}


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a checkpoint that one run writes, in files whose names begin with `prefix`."""

    run: _runtime.Run
    write_plan: _core.WritePlan
    prefix: str = ""


@dataclasses.dataclass
class _Save:
    """A checkpoint that is being written."""

    folder: str
    state: dict[str, Any]
    saving: Saving
    key: str  # names its messages between processes
    write_plans: list[_core.WritePlan]
    writers: list[_runtime.StateWriter]  # until this process has reported its files
    is_beside: bool  # training runs meanwhile
    reports: dict[int, str] = dataclasses.field(default_factory=dict)  # by rank
    commit: Future[str] | None = None


class Saver:
    """Writes checkpoints of a run in parallel with its training, one at a time."""

    def __init__(self, run: _runtime.Run, program: _core.Program, job: Job | None) -> None:
        self._run = run
        self._program = program
        self._job = job
        self._write_plan: _core.WritePlan | None = None
        self._save: _Save | None = None
        self._waits: _Save | None = None  # until the first process reports it complete
        self._pool: ThreadPoolExecutor | None = None
        self._saved: int | None = None  # steps done in the newest complete one

    @property
    def safe_step(self) -> int | None:
        """Returns the steps of the checkpoint to which a run may return: a complete one or, if this
        process knows of none, the one being written."""
        if self._saved is not None or self._save is None:
            return self._saved
        return int(self._save.state["step"])

    @property
    def write_plan(self) -> _core.WritePlan:
        """Returns the write plan: which process writes which values."""
        if self._write_plan is None:
            self._write_plan = _core.WritePlan(self._program)
        return self._write_plan

    def begin(
        self,
        folder: str,
        state: dict[str, Any],
        saving: Saving,
        is_beside: bool = True,
        parts: Sequence[Part] = (),
    ) -> str:
        """Starts writing a checkpoint of the current state, after the one before has ended. Returns
        the reason why it cannot, or "". In a job all processes call it. `parts` are those of
        several runs saved as one; if empty, the only run is saved whole."""
        self.wait()
        parts = parts or [Part(self._run, self.write_plan)]
        step = state["step"]
        patience = _DYING_SECONDS if self._may_have_lost else 0.0
        error = self._from_first(lambda: _open_folder(folder, step, patience))
        if not error:
            temporary = _core.checkpoint_folder(folder, step)
            writers = [
                _runtime.StateWriter(
                    each.run, each.write_plan, temporary, saving.spread, each.prefix
                )
                for each in parts
            ]
            key = "" if self._job is None else exchange.new_key("save")
            write_plans = [each.write_plan for each in parts]
            self._save = _Save(folder, state, saving, key, write_plans, writers, is_beside)
            held = sum(writer.bytes for writer in writers)
            if held > (room := available_memory()):
                say(
                    f"step {step} is written while training waits: beside it, up to "
                    f"{held / 1e9:.1f} GB more would be held, of {room / 1e9:.1f} GB"
                )
                self._write_rest(self._save)
        return error

    def beside(self) -> list[Any] | None:
        """Returns the checkpoint that is being written in the background: folder, steps, saving and
        data."""
        save = self._save or self._waits
        if save is None or not save.is_beside:
            return None
        saving = dataclasses.astuple(save.saving)
        return [save.folder, save.state["step"], saving, save.state["data"]]

    def close(self) -> None:
        """Completes a checkpoint whose files all exist. Gives up one that some processes cannot
        complete; the next one removes its files."""
        save, self._save = self._save, None
        for writer in [] if save is None else save.writers:
            writer.abandon()
        if save is not None and save.commit is not None:
            save.commit.result()

    def forget(self) -> None:
        """Marks all saved checkpoints as unusable for returning to an earlier step."""
        self._saved = None

    def poll(self) -> None:
        """Advances the write in progress without blocking."""
        save = self._save
        if save is None:
            return
        self._tell_when_done(save)
        if self._is_first and save.commit is None and self._have_all_reported(save):
            self._pool = self._pool or ThreadPoolExecutor(1)
            save.commit = self._pool.submit(self._complete, save)

    def wait(self) -> str:
        """Waits until no write is in progress. Returns the reason why the last checkpoint is
        incomplete, or ""."""
        save = self._save
        if save is None:
            return ""
        self._write_rest(save)
        while self._is_first and not self._have_all_reported(save):
            self._check_others()
            time.sleep(_LOOK_AGAIN_SECONDS)
        self._save, self._waits = None, save
        error = self._verdict(save)
        self._waits = None
        if not error:
            self._saved = int(save.state["step"])
        return error

    def leave(self) -> None:
        """Completes the write in progress when the trainer is deleted, with the other processes at
        exit."""
        if self._job is None:
            self.wait()
        elif self._save is not None:
            ends.leave_to_the_end(self.wait)

    def _verdict(self, save: _Save) -> str:
        if self._is_first:
            # No thread can start while the program exits.
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
        """Returns whether a lost process may have saved before this one."""
        if self._job is None or not self._job.elastic:
            return False
        return elastic.member().generation > 0

    def _check_others(self) -> None:
        if self._job is not None:
            exchange.check()

    def _from_first(self, make: Callable[[], bytes]) -> str:
        data = make() if self._job is None else exchange.from_first(make, "opens a checkpoint")
        return data.decode()

    def _tell_when_done(self, save: _Save) -> None:
        """Reports the files that this process has written to the first process."""
        if not save.writers or not all(writer.is_done for writer in save.writers):
            return
        text = _written(save)
        save.writers = []
        if self._job is None:
            save.reports[0] = text
        else:
            exchange.store().set(f"{save.key}/{self._job.rank}", text)

    def _have_all_reported(self, save: _Save) -> bool:
        if self._job is None:
            return bool(save.reports)
        for rank in range(self._job.size):
            if rank not in save.reports:
                text = exchange.store().get(f"{save.key}/{rank}")
                if text is None:
                    return False
                save.reports[rank] = text
        return True

    def _complete(self, save: _Save) -> str:
        """Completes a checkpoint from the files of all processes. Returns the reason why it cannot,
        or ""."""
        step = save.state["step"]
        reports = [json.loads(save.reports[rank]) for rank in sorted(save.reports)]
        error = next((each["error"] for each in reports if each["error"]), "")
        try:
            if not error:
                files = [tuple(file) for each in reports for file in each["files"]]
                manifest = _core.Manifest(save.write_plans, save.state, files)
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
        """Publishes the checkpoint as one to return to, before older ones are removed."""
        if self._job is not None and self._job.elastic:
            path = _core.checkpoint_folder(folder, step).removesuffix(".tmp")
            generations.note_checkpoint(exchange.store(), path, step)


def available_memory() -> float:
    """Returns the free bytes of this machine, or of its container if that has fewer."""
    room = math.inf
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CONTAINER / "memory.max").read_text())  # "max" means no limit
        used = int((_CONTAINER / "memory.current").read_text())
        # the cache of files is reclaimed first
        room = limit - used + _fields(_CONTAINER / "memory.stat")["file"]
    with contextlib.suppress(OSError):
        room = min(room, 1024 * _fields(Path("/proc/meminfo"))["MemAvailable:"])
    return room


def _fields(path: Path) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}


def _written(save: _Save) -> str:
    files: list[tuple[int, str, int, str]] = []
    before = 0  # writers of earlier runs
    try:
        for writer, write_plan in zip(save.writers, save.write_plans, strict=True):
            files += [(before + n, name, size, sum_) for n, name, size, sum_ in writer.finish()]
            before += write_plan.num_writers
        return json.dumps({"files": files, "error": ""})
    except OSError as error:
        return json.dumps({"files": [], "error": str(error)})


def _open_folder(folder: str, step: int, patience: float) -> bytes:
    """Prepares the folder of a checkpoint. Returns the reason why it cannot, or b""."""
    try:
        make_folder(folder)
        _lock(folder, patience)
        _core.begin_checkpoint(folder, step)
    except OSError as error:
        say(f"step {step} is not saved: {error}")
        return str(error).encode()
    return b""


def _lock(folder: str, patience: float = 0.0) -> None:
    """Locks a folder until this process ends. Raises ValueError if another process saves to it and
    does not end within `patience` seconds."""
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
        pass  # this file system has no locks
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
    """Reads the newest whole checkpoint of a folder, or the folder itself if it is one, into runs
    that have done `done` steps. Returns None if there is no checkpoint. Raises ValueError if the
    checkpoint is of another model or optimizer, if the newest one is damaged and `exact` is set, or
    if all are damaged."""
    found = candidates(job, folder)

    def note(path: str, step: int) -> None:
        if job is not None and job.elastic and job.rank == 0:
            generations.note_load(exchange.store(), "" if parameters_only else path, step, done)

    only = {"exact": exact, "parameters_only": parameters_only}
    try:
        return read_newest(wanted, job, found, note, **only)
    except ValueError:
        note("", 0)
        raise


def require_kind(path: str, manifest: _core.Manifest, expected: str) -> None:
    """Raises ValueError if a checkpoint has the state of another type of optimizer."""
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
    """Reads the newest whole checkpoint among `found`: (path, step, is complete), newest first.
    Calls `note` before each is read. `wanted` returns the runs, each with the values that it reads
    from a checkpoint. A process without a device of the plan has no run and receives the results of
    the others."""
    last = ""
    for path, _, is_complete in found:
        if last and (job is None or job.rank == 0):
            say(f"{last}; taking {path}")
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
    """Returns whether a folder is a checkpoint or contains one."""
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
    """A value of a complete checkpoint.

    Example:
        for value in stored_values(newest_complete("runs/1")):
            print(value.kind, value.name, value.read().shape)
    """

    kind: str  # "parameter", "buffer" or "state"
    name: str  # name in the model; for state "<moment>:<parameter>"
    dtype: torch.dtype
    shape: list[int]
    read: Callable[[], Tensor]  # reads the whole value


def stored_values(path: str) -> list[StoredValue]:
    """Returns the values of a complete checkpoint. Raises ValueError naming a damaged file."""
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
    """Returns (path, step, is complete), newest first, as seen by the first process."""

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
    """Returns the manifest that all processes have read, or the first error among them."""
    manifest, error = _try(lambda: _core.Manifest.open(path))
    if manifest is not None:
        note(path, manifest.step)
    if error := exchange.first_error(job, error):
        return None, error
    assert manifest is not None
    whole = manifest
    runs: list[tuple[_runtime.Run, object, str]] = list(wanted(path, manifest))
    for run, part, _ in runs:
        _runtime.match_state(run, path, part, parameters_only)
    if runs:
        _, error = _try(lambda: _runtime.load_state(runs, path, whole, parameters_only))
    error = exchange.first_error(job, error)
    return (None, error) if error else (manifest, "")


def _try(read: Callable[[], _Read]) -> tuple[_Read | None, str]:
    try:
        return read(), ""
    except (ValueError, OSError) as error:
        return None, str(error)
