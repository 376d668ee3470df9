"""`python warm_client.py SOCKET ARGUMENT...` stands for what warm_start.py forks.

It imports little, and has no types of others, so that it starts at once.
"""

import contextlib
import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(pid: int, number: int) -> None:
    """Sends a signal to the program, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


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
    answers = server.makefile("rb")
    pid = int(answers.readline() or b"0")
    if not pid:
        sys.exit(f"{path}: the server has ended")
    for number in asked:
        send(pid, number)
    status = int(answers.readline() or b"9")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
