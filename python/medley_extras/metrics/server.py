"""A small HTTP server of OpenMetrics text, one for each address in a process."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Collect = Callable[[], list[Any]]
_LOOK_SECONDS = 0.5  # after which the thread of a closed server ends
_servers: dict[tuple[str, int], Server] = {}


def serve(host: str, port: int, collect: Collect) -> Server:
    """Serves what `collect` returns; a later trainer of this process takes over the address.

    Raises OSError if the address cannot be used, and ValueError without prometheus_client.
    """
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError(
            "--metrics-port: a package is missing (got no prometheus_client). "
            "Run pip install prometheus_client."
        ) from None
    if not 0 <= port < 65536:
        raise ValueError(
            f"--metrics-port: not a port (got {port}, expected 0 to 65535). Choose another."
        )
    if (server := _servers.get((host, port))) is None:
        try:
            server = Server(host, port)
        except OSError as error:
            raise OSError(
                f"--metrics-port: cannot listen at {host}:{port} (got {error.strerror or error}). "
                "Choose another port, or 0 for any free one."
            ) from None
        _servers[host, port] = server
    server.collect = collect
    return server


class Server:
    """Answers GET /metrics, and GET /, in threads of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.collect: Collect = list
        self._key = host, port
        self._http = ThreadingHTTPServer((host, port), _handler(self))
        self._http.daemon_threads = True
        self._http.timeout = _LOOK_SECONDS
        self._has_ended = False
        self.port = int(self._http.server_address[1])
        threading.Thread(target=self._answer, daemon=True).start()
        print(f"medley: metrics at http://{host}:{self.port}/metrics", file=sys.stderr, flush=True)

    def close(self, collect: Collect) -> None:
        """Ends, if it still serves what this function collects. Waits for nothing."""
        if self.collect == collect and _servers.get(self._key) is self:
            del _servers[self._key]
            self._has_ended = True
            with contextlib.suppress(OSError):  # ends the wait of the thread: the port is free
                self._http.socket.shutdown(socket.SHUT_RDWR)
            self._http.server_close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # of a socket that was closed
            while not self._has_ended:
                self._http.handle_request()

    def text(self) -> bytes:
        """Returns the metrics of now."""
        from prometheus_client.openmetrics import exposition

        write: Any = exposition.generate_latest
        return bytes(write(_Registry(self.collect)))


class _Registry:
    """The part of a registry that prometheus_client reads."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Any]:
        yield from self._collect()


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            text = server.text()
            self.send_response(200)
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Prints nothing."""

    return Handler
