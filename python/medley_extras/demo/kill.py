"""The last part of `medley demo`: three processes train, one is killed, the others continue.

    kill.py FOLDER STEP

is the program of each process. FOLDER has model.graph, cluster.yaml and plan.json. The process of
the plan's last device kills itself before STEP. That of the first device writes losses.json.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import medley
from medley.cluster import load_cluster, parse_cluster
from medley.run import job
from medley_extras.demo import emulated

CLUSTER = emulated.ONE.replace("count: 1", "count: 3") + (
    "networks:\n  - {name: lan, connects: [fast], bandwidth: 10 Gbit/s, latency: 20 us}\n"
)
ROWS, STEPS, KILLED = 24, 24, 9
_BARS = "▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True)
class Survival:
    """The effect of a kill on a run."""

    lost: str
    step: int  # the last one done before the kill
    seconds: float  # from the detection of the loss until the others were ready for the next step
    losses: list[float]
    undisturbed: list[float]  # losses of one device without a kill

    @property
    def difference(self) -> float:
        """Returns the largest difference of the two curves."""
        return max(abs(a - b) for a, b in zip(self.losses, self.undisturbed, strict=True))

    def figures(self) -> dict[str, object]:
        """Returns all values, for JSON."""
        return dataclasses.asdict(self) | {"difference": self.difference}

    def text(self) -> str:
        """Returns all values as lines of text."""
        return (
            f"Killed {self.lost}, 1 of 3 processes, after step {self.step + 1}. "
            f"Training resumed after {self.seconds:.2f} s.\n"
            f"  loss  {curve(self.losses)}  {self.losses[-1]:.4f}\n"
            f"  alone {curve(self.undisturbed)}  {self.undisturbed[-1]:.4f}, "
            f"at most {self.difference:.1e} apart"
        )


def curve(losses: list[float]) -> str:
    """Returns a bar for each loss."""
    low, high = min(losses), max(losses)
    scale = (len(_BARS) - 1) / max(high - low, 1e-9)
    return "".join(_BARS[round((loss - low) * scale)] for loss in losses)


def survive(shown: emulated.Demo) -> Survival:
    """Trains in processes, one of which is killed, and alone. Raises OSError if they do not
    continue."""
    with tempfile.TemporaryDirectory(prefix="medley-demo-") as name:
        folder = Path(name)
        (folder / "model.graph").write_text(shown.graph.text())
        (folder / "cluster.yaml").write_text(CLUSTER)
        cluster = load_cluster(folder / "cluster.yaml")
        plan = medley.plan(shown.graph, cluster, "data-parallel-even", global_batch=ROWS)
        plan.save(folder / "plan.json")
        log = folder / "elastic.jsonl"
        command = [
            *(sys.executable, "-m", "medley", "launch", "--elastic", "--elastic-log", str(log)),
            *(str(folder / "plan.json"), __file__, name, str(KILLED)),
        ]
        run = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            undisturbed = alone(shown)
            _, errors = run.communicate()
        finally:
            run.kill()
            run.wait()
        if run.returncode != 0:
            raise OSError(f"medley demo: the run that loses a process has ended: {errors}")
        (line,) = [json.loads(text) for text in log.read_text().splitlines()]
        losses = json.loads((folder / "losses.json").read_text())
    return Survival(line["lost"][0], line["step"], line["seconds"]["total"], losses, undisturbed)


def alone(shown: emulated.Demo) -> list[float]:
    """Returns the losses of one device."""
    cluster = parse_cluster(emulated.ONE, "one.yaml")
    plan = medley.plan(shown.graph, cluster, "data-parallel-even", global_batch=ROWS)
    trainer = medley.Trainer(
        shown.model, shown.graph, plan, _optimizer(), local=True, keep_gradients=False
    )
    return [trainer.step(batch).loss for batch in emulated.batches(shown.text, STEPS, ROWS)]


def _optimizer() -> medley.AdamW:
    return medley.AdamW(lr=3e-3)


def main(folder: Path, killed: int) -> None:
    """Trains as one of the processes."""
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    model, _ = emulated.make_model()
    trainer = medley.Trainer(model, graph, plan, _optimizer(), keep_gradients=False)
    losses = []
    for step, batch in enumerate(emulated.batches(emulated.library_text(), STEPS, ROWS)):
        if step == killed and job.device_name() == plan.devices[-1]:
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(trainer.step(batch).loss)
    if trainer.is_first:
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
