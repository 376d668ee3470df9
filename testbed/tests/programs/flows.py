"""Sends for some seconds between pairs of devices: `flows.py FOLDER 0-1 2-1`. Every receiver writes
bytes per second of each flow to FOLDER/<pair>."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

from testbed.ready import ready

SECONDS = 3.0
RANK = int(os.environ["RANK"])
PORT = 30_000


def address(rank: int) -> str:
    """Returns the address of a device."""
    return f"10.77.0.{rank + 1}"


def receive(server: socket.socket, pair: str) -> None:
    """Counts the bytes received between the first and the last half second."""
    connection, _ = server.accept()
    count, begin, skip = 0, 0.0, time.monotonic() + 0.5
    while data := connection.recv(1 << 16):
        now = time.monotonic()
        if now < skip:
            continue
        if not begin:
            begin = now
            continue
        count += len(data)
        if now > begin + SECONDS - 1.0:
            break
    Path(sys.argv[1], pair).write_text(str(count / (time.monotonic() - begin)))
    while connection.recv(1 << 16):
        pass


def send(target: int, number: int) -> None:
    """Sends for SECONDS."""
    block = bytes(1 << 16)
    with socket.create_connection((address(target), PORT + number), timeout=10) as connection:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            connection.sendall(block)


pairs = sys.argv[2:]
threads = []
for number, pair in enumerate(pairs):
    source, target = (int(rank) for rank in pair.split("-"))
    if target == RANK:
        server = socket.create_server((address(RANK), PORT + number))
        threads.append(threading.Thread(target=receive, args=(server, pair)))
ready()
for number, pair in enumerate(pairs):
    source, target = (int(rank) for rank in pair.split("-"))
    if source == RANK:
        threads.append(threading.Thread(target=send, args=(target, number)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
