"""`python warm_client.py SOCKET ARGUMENT...` represents a process forked by warm_start.py. It
imports little, and no types of other modules, so that it starts quickly."""

import contextlib
import json
import os
import select
import signal
import socket
import sys

# Signals that a program may find ignored, and that are passed on.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(pid: int, number: int) -> None:
    """Sends a signal to the program, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Answers:
    """Lines of the server. Signals are handled during the wait, and those just before it too: a
    plain read would block on them."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        self._rest = b""

    def next(self) -> bytes:
        """Returns a line, or b"" if the server has ended."""
        while b"\n" not in self._rest:
            ready = select.select([self._server, self._woken], [], [])[0]
            if self._woken in ready:
                os.read(self._woken, 512)
            if self._server in ready:
                if not (more := self._server.recv(64)):
                    return b""
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def main(path: str, arguments: list[str]) -> None:
    """Has a program run by the server, and ends as it does."""
    asked: list[int] = []
    ignored = [int(n) for n in SIGNALS if signal.getsignal(n) == signal.SIG_IGN]
    pid = 0

    def pass_on(number: int, frame: object) -> None:
        asked.append(number)
        if pid:
            send(pid, number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    wanted = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "ignored": ignored,
    }
    text = json.dumps(wanted).encode()
    socket.send_fds(server, [len(text).to_bytes(4, "little")], [0, 1, 2])
    server.sendall(text)
    answers = Answers(server)
    pid = int(answers.next() or b"0")
    if not pid:
        sys.exit(f"{path}: the server has ended")
    for number in asked:
        send(pid, number)
    status = int(answers.next() or b"9")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
