"""The metrics by name, as families of prometheus_client."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from medley import Metrics

if TYPE_CHECKING:
    from medley import Plan, Trainer

DRIFT_SECONDS = 5.0  # between two looks at the drift


class Values:
    """The numbers of the run in the first process."""

    def __init__(self) -> None:
        self.last: Metrics | None = None
        self.global_batch = 0
        self.samples = 0  # since this process has begun
        self.lost = 0
        self.recoveries = 0
        self.members: list[str] = []
        self.memory: dict[str, int] = {}
        self.links: dict[str, int] = {}
        self.drift: list[tuple[str, str, float]] = []
        self._of_a_step: dict[str, int] = {}
        self._next = 0.0
        self._plan: Callable[[], Plan | None] = lambda: None  # a weak reference

    def note_plan(self, trainer: Trainer) -> None:
        """The run begins, or resumes with another plan."""
        self._plan, self.global_batch = weakref.ref(trainer.plan), trainer.plan.global_batch
        self.memory = {name: each["peak"] for name, each in trainer.memory().items()}
        self._of_a_step = trainer.traffic()

    def note(self, trainer: Trainer, metrics: Metrics, serves: bool) -> None:
        """A step is done; `serves`: this process does."""
        members = trainer.members
        self.lost += len(set(self.members) - set(members))
        self.members, self.recoveries = members, trainer.recoveries
        self.last = metrics
        if not serves:
            return
        if trainer.plan is not self._plan() and trainer.ranks is not None:
            self.note_plan(trainer)
        self.samples += self.global_batch
        for link, sent in self._of_a_step.items():
            self.links[link] = self.links.get(link, 0) + sent
        if (now := time.monotonic()) >= self._next:
            self._next = now + DRIFT_SECONDS
            self.drift = [(row.kind, row.ops, row.ratio) for row in trainer.drift()]


def families(values: Values, devices: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Returns all families; `devices`: "seconds" and "bytes" by device."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, text: str, value: float) -> Any:
        return GaugeMetricFamily(f"medley_{name}", text, value=value)

    def labelled(kind: Any, name: str, text: str, labels: list[str], rows: Any) -> Any:
        family = kind(f"medley_{name}", text, labels=labels)
        for *where, value in rows:
            family.add_metric(where, value)
        return family

    found: list[Any] = []
    if (last := values.last) is not None:
        seconds = max(last.step_seconds, 1e-12)
        found += [
            gauge("step", "Steps that are done.", last.step + 1),
            gauge("loss", "Loss of the last step.", last.loss),
            gauge("gradient_norm", "Norm of the gradient of the last step.", last.grad_norm),
            gauge("learning_rate", "Learning rate of the last step.", last.learning_rate),
            gauge("step_seconds", "Seconds of the last step.", last.step_seconds),
            gauge("samples_per_second", "Samples over seconds.", values.global_batch / seconds),
            gauge("tokens_per_second", "Tokens over seconds.", last.tokens_per_second),
        ]
    samples = CounterMetricFamily("medley_samples", "Samples since this process serves.")
    samples.add_metric([], values.samples)
    lost = CounterMetricFamily("medley_devices_lost", "Devices that have left the run.")
    lost.add_metric([], values.lost)
    changes = CounterMetricFamily("medley_recoveries", "Times that the run resumed after a change.")
    changes.add_metric([], values.recoveries)
    return [
        *found,
        samples,
        gauge("devices", "Devices in the run.", len(values.members)),
        lost,
        changes,
        labelled(
            CounterMetricFamily,
            "device_seconds",
            "Seconds of steps: busy computes, exposed waits for its own communication, idle waits "
            "for other devices.",
            ["device", "state"],
            (
                (n, state, value)
                for n, d in devices.items()
                for state, value in d["seconds"].items()
            ),
        ),
        labelled(
            CounterMetricFamily,
            "communication_bytes",
            "Bytes that a device communicates, by kind of communication.",
            ["device", "kind"],
            ((n, kind, value) for n, d in devices.items() for kind, value in d["bytes"].items()),
        ),
        labelled(
            CounterMetricFamily,
            "link_bytes",
            "Bytes over each link, as the plan's simulation has them.",
            ["link"],
            list(values.links.items()),
        ),
        labelled(
            GaugeMetricFamily,
            "memory_peak_bytes",
            "Peak of the memory that the plan needs on a device.",
            ["device"],
            list(values.memory.items()),
        ),
        labelled(
            GaugeMetricFamily,
            "drift_ratio",
            "Measured time over the profile's, by device type and class of ops.",
            ["kind", "ops"],
            list(values.drift),
        ),
    ]
