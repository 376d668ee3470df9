"""Metrics of a run as OpenMetrics text over HTTP: `--metrics-port`, `Trainer(metrics_port=...)`.

The first process serves. Every process adds up the seconds and bytes of its devices; in a job the
others leave theirs in the store, once a second.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

from medley import Metrics
from medley.run import job
from medley.run.exchange import store
from medley_extras.metrics.devices import Devices
from medley_extras.metrics.families import Values, families
from medley_extras.metrics.server import Server, serve

if TYPE_CHECKING:
    from medley import Trainer

_SERVER = "metrics/server"  # the key under which the process that serves has its device
TELL_SECONDS = 1.0  # between two messages of a process to the first one


def export(trainer: Trainer, host: str, port: int) -> Exporter:
    """Serves the metrics of a trainer, if this process is the first.

    Raises OSError if the port cannot be used, and ValueError without prometheus_client.
    """
    exporter = Exporter(host, port)
    if not job.joins_later() and exporter.is_due(trainer):
        exporter.serve(trainer)
    weakref.finalize(trainer, exporter.close)
    return exporter


class Exporter:
    """Takes the metrics of each step. Knows the trainer only while a step is noted."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._server: Server | None = None
        self._devices = Devices()
        self._others: list[str] = []  # devices of other processes
        self._next = 0.0
        self._has_failed = False
        self.values = Values()

    def is_due(self, trainer: Trainer) -> bool:
        """Whether this process has to begin to serve: it is the first, and the one that served
        before has left the run."""
        if self._server is not None or not trainer.is_first:
            return False
        before = store().get(_SERVER) if trainer.is_elastic else None
        return before in (None, job.device_name()) or before not in trainer.members

    def serve(self, trainer: Trainer) -> None:
        """Begins to serve, as long as this process lives."""
        self._server = serve(*self._where, self.collect)
        self.values.note_plan(trainer)
        if trainer.is_elastic:
            store().set(_SERVER, job.device_name())

    def close(self) -> None:
        """Ends to serve, unless another trainer has taken over."""
        if self._server is not None:
            self._server.close(self.collect)

    def step(self, trainer: Trainer, metrics: Metrics) -> None:
        """A step is done."""
        self.values.note(trainer, metrics, self._server is not None)
        if metrics.devices:  # it was made by this process
            self._devices.note(trainer, metrics)
        if trainer.is_alone:
            return
        own = self._devices.seconds
        self._others = [name for name in self.values.members if name not in own]
        if (now := time.monotonic()) >= self._next:
            self._next = now + TELL_SECONDS
            for name, totals in self._devices.totals().items():
                store().set(f"metrics/{name}", json.dumps(totals))
            if self.is_due(trainer):
                self._take_over(trainer)

    def _take_over(self, trainer: Trainer) -> None:
        try:
            self.serve(trainer)
        except OSError as error:  # training continues, and the next second tries again
            if not self._has_failed:
                self._has_failed = True
                print(f"medley: {error}", file=sys.stderr, flush=True)

    def collect(self) -> list[Any]:
        """Returns the families of metrics, in a thread of the server."""
        totals = self._devices.totals()
        for name in self._others:
            if (text := store().get(f"metrics/{name}")) is not None:
                totals[name] = json.loads(text)
        return families(self.values, totals)
