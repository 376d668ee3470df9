"""Starts Python programs of tests in a process that has already imported PyTorch.

A test runs `command([sys.executable, ...])` in place of the command itself. It starts
warm_client.py, which is fast. The client requests a fork for the program from a server, one per
process of tests. It passes on signals and the exit status, and ends the program if it is killed.
The program has the arguments, environment, folder, standard streams and signals of the original
command. Its own commands with the same interpreter are forked too. Importing PyTorch takes more
seconds than most of these programs then need.

A fork cannot show the start and end of an interpreter. Tests of these, and of stopped launchers,
start their own. With MEDLEY_COLD_START=1 all do, and on machines with NVIDIA GPUs: a fork of a
process that has searched for GPUs cannot use them.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import functools
import gc
import json
import logging
import multiprocessing.util
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warm_client import SIGNALS

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "scripts" / "warm_client.py"
STREAMS = 3  # the standard ones
# Common imports of the programs.
IMPORTED = (
    "medley.cli",
    "medley_extras.train.run",
    "medley.capture",
    "medley_extras.models.hf",
    "medley.run.launch",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
)
# Search path of an interpreter without a script and PYTHONPATH.
_ASKED = {str(ROOT / "scripts"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
PATHS = [path for path in sys.path if path not in _ASKED]
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


# --- functions for tests --------------------------------------------------------------------------


def command(words: Sequence[str], imports: tuple[str, ...] = ()) -> list[str]:
    """Returns a command that runs these words in a fork, if the first is this interpreter.
    `imports`: further modules that the server has imported."""
    is_cold = os.environ.get("MEDLEY_COLD_START") or os.path.exists("/dev/nvidiactl")
    if words[0] != sys.executable or is_cold or _unknown(words[1:]):
        return list(words)
    return [sys.executable, "-I", "-S", str(CLIENT), _served(imports), *words[1:]]


def _unknown(arguments: Sequence[str]) -> bool:
    """Returns whether a fork would not support the options of the interpreter."""
    first = next((word for word in arguments if word != "-u"), "-")
    return first.startswith("-") and first not in ("-m", "-c")


_lock = threading.Lock()


def _served(imports: tuple[str, ...]) -> str:
    with _lock:
        return _serve(os.getpid(), imports)


@functools.cache
def _serve(owner: int, imports: tuple[str, ...]) -> str:
    """Starts the server of this process, and returns where it is."""
    folder = tempfile.TemporaryDirectory(prefix="medley-warm-")
    path = os.path.join(folder.name, "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        more = {"OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8", "PYTHONPATH": ":".join(paths)}
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), *imports],
            env={**os.environ, **more},
            stdin=subprocess.PIPE,  # ends with this process, and the server with it
            pass_fds=[listener.fileno()],
        )

    def end() -> None:
        if os.getpid() == owner:
            server.kill()
            server.wait()
            folder.cleanup()

    atexit.register(end)
    return path


# --- the server -----------------------------------------------------------------------------------


def serve(listener: socket.socket, imports: Sequence[str]) -> None:
    """Forks on request until the process of the tests is gone."""
    for name in (*IMPORTED, *imports):
        __import__(name)
    gc.collect()
    gc.freeze()
    running: dict[int, socket.socket] = {}
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they this
    with selectors.DefaultSelector() as selector:
        for file in (sys.stdin, listener, woken):
            selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for pid in running:
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                elif key.fileobj is woken:
                    woken.recv(1024)
                elif key.fileobj is listener:
                    asker, _ = listener.accept()
                    try:
                        wanted, streams = _receive(asker)
                    except EOFError:  # it was killed before its request
                        asker.close()
                        continue
                    pid = fork(functools.partial(_become, wanted, streams), streams)
                    for stream in streams:
                        os.close(stream)
                    running[pid] = asker
                    with contextlib.suppress(OSError):
                        asker.sendall(b"%d\n" % pid)
                    selector.register(asker, selectors.EVENT_READ, pid)
                elif key.data in running:  # its client was killed
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                asker = running.pop(ended[0])
                with contextlib.suppress(KeyError):
                    selector.unregister(asker)
                with contextlib.suppress(OSError):
                    asker.sendall(b"%d\n" % ended[1])
                asker.close()


def _receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, control, _, _ = asker.recvmsg(4, socket.CMSG_SPACE(STREAMS * 4))
    streams = array.array("i")
    for _, _, numbers in control:
        streams.frombytes(numbers)
    length = int.from_bytes(data, "little")
    text = b""
    while len(text) < length and (more := asker.recv(length - len(text))):
        text += more
    if not data or len(text) < length:
        for stream in streams:
            os.close(stream)
        raise EOFError
    return json.loads(text), list(streams)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# --- a fork ---------------------------------------------------------------------------------------


def fork(program: Callable[[], None], kept: Sequence[int]) -> int:
    """Returns the process that runs a program with no files but the first three and those kept."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():  # about threads: those of a launcher are its store's
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            if callable(signal.getsignal(number)) and number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
        low = STREAMS
        for number in sorted(kept):
            os.closerange(low, number)
            low = max(low, number + 1)
        os.closerange(low, os.sysconf("SC_OPEN_MAX"))
        code = _ended(program)
    finally:
        os._exit(code)


def _ended(program: Callable[[], None]) -> int:
    """Runs a program to its end as the interpreter does. Returns the exit status."""
    code = 0
    interrupted = False
    try:
        program()
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException as error:
        error.__traceback__ = _own(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        interrupted = isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


def _own(trace: Any) -> Any:
    """Returns a traceback without the frames that started the program."""
    while trace and (trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>")):
        trace = trace.tb_next
    return trace


def _forget_what_ends() -> None:
    """Leaves work at exit to the parent of the fork."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def _become(wanted: Mapping[str, Any], streams: Sequence[int]) -> None:
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(STREAMS, max(streams) + 1)
    os.chdir(wanted["folder"])
    for number in SIGNALS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in wanted["ignored"] else default)
    run(wanted["arguments"], wanted["environment"])


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs the code that the interpreter would run with these arguments."""
    import runpy

    import torch

    words = list(arguments)
    os.environ.clear()
    os.environ.update(environment)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined,method-assign]
    threads = environment.get("OMP_NUM_THREADS", "")
    if threads != "1":
        torch.set_num_threads(int(threads) if threads.isdigit() else os.cpu_count() or 1)
    while words[0] == "-u":
        words.pop(0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    base = [path for path in PATHS if path not in paths]
    if words[0] == "-m":
        sys.path[:] = [os.getcwd(), *paths, *base]
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[:] = ["", *paths, *base]
        sys.argv[:] = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[:] = [os.path.dirname(os.path.realpath(words[0])), *paths, *base]
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


_executed = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _execute_child(
    self: Any,
    args: Any,
    executable: Any,
    preexec_fn: Any,
    close_fds: Any,
    pass_fds: Any,
    *more: Any,
) -> None:
    """Forks where a program starts another one of the same interpreter (subprocess.Popen)."""
    words = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
    parent = 0
    if words[1:3] == ["-I", "-S"] and words[3].endswith("start_device.py"):
        parent, words = int(words[4]), words[5:]
    if words[:1] != [sys.executable] or _unknown(words[1:]) or preexec_fn is not None:
        return _executed(self, args, executable, preexec_fn, close_fds, pass_fds, *more)
    (folder, environment, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = more[
        :11
    ]
    start_new_session = more[16]
    own = dict(os.environ if environment is None else environment)

    def program() -> None:
        _forget_what_ends()
        if start_new_session:
            os.setsid()
        for target, stream in enumerate((p2cread, c2pwrite, errwrite)):
            if stream >= 0:
                os.dup2(stream, target)
        for stream in (p2cread, c2pwrite, errwrite):
            if stream >= STREAMS and stream not in pass_fds:
                with contextlib.suppress(OSError):
                    os.close(stream)
        if folder is not None:
            os.chdir(folder)
        if parent:
            _die_with(parent)
        if parent or signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run(words[1:], own)

    kept = {each for each in (p2cread, c2pwrite, errwrite, *pass_fds) if each >= STREAMS}
    self.pid = fork(program, sorted(kept))
    self._child_created = True
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


if __name__ == "__main__":
    # Forks import it by this name.
    import warm_start

    warm_start.serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
