"""Public models, made tiny, trained and compared with PyTorch: `python -m benchmarks.zoo`. Each
model is captured, planned by rows and by `auto` for three different devices, and trained for two
steps in float64. A model is a separate process with a limit of CPU time, so that a failure does not
hide the others. The results go to a file, one JSON line per model, from which `--page` writes the
page of the documentation."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import queue
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.zoo import packages, page, training

# Modules of models by package.
ZOOS = {
    "transformers": "benchmarks.zoo.public_transformers",
    "timm": "benchmarks.zoo.public_timm",
    "torchvision": "benchmarks.zoo.public_torchvision",
    "diffusers": "benchmarks.zoo.public_diffusers",
    "peft": "benchmarks.zoo.public_peft",
}

GOOD = (training.EXACT, training.EXACT_SINGLE)


@dataclasses.dataclass(frozen=True)
class Model:
    """One model of a package, with its class if the name is ambiguous."""

    zoo: str
    family: str
    name: str
    kind: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.family, self.name, self.kind)))


def listed(zoo: str) -> list[Model]:
    """Returns all models of a package."""
    return [Model(zoo, *each) for each in importlib.import_module(ZOOS[zoo]).listed()]


def train(model: Model) -> dict[str, Any]:
    """Builds the tiny form of a model and trains it; see training.outcome."""
    torch.set_num_threads(1)
    torch.manual_seed(training.SEED)
    try:
        packages.find()
        built, batch = importlib.import_module(ZOOS[model.zoo]).build(
            model.name, model.kind, training.ROWS
        )
    except Exception as error:
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return {"result": training.NO_PEER, "sentence": sentence}
    return training.outcome(built, batch)


def _child(model: Model, limit: int, results: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    try:
        results.put(train(model))
    except BaseException:
        results.put({"result": training.CRASHED, "sentence": traceback.format_exc()[-400:]})


class _Least(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean()


def train_apart(model: Model, limit: int) -> dict[str, Any]:
    """Runs `train` in a separate process, for at most `limit` seconds of CPU time."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_child, args=(model, limit, results), daemon=True)
    process.start()
    found: dict[str, Any] | None = None
    while found is None and (process.is_alive() or not results.empty()):
        with contextlib.suppress(queue.Empty):
            found = results.get(timeout=0.5)
    process.join()
    if found is None:
        late = process.exitcode == -signal.SIGXCPU
        sentence = f"not done in {limit} s" if late else f"ended with {process.exitcode}"
        found = {"result": training.CRASHED, "sentence": sentence}
    return found


def _warm_up(zoos: list[str]) -> None:
    """Imports the packages of the models' processes, which are forks of this one, because imports
    take longer than most models. Autograd may have run, as long as it had no GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    packages.find()
    for zoo in zoos:
        importlib.import_module(zoo)
    training.outcome(_Least(), {"x": torch.randn(training.ROWS, 2)})


def read(path: Path | None) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Returns the results in a file by family, name and class, or none without a file."""
    if path is None or not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {(each["family"], each["name"], each["class"]): each for each in found}


def write(path: Path, results: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """Writes results to a file, a line each, sorted."""
    path.write_text("".join(f"{json.dumps(results[key])}\n" for key in sorted(results)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--packages", nargs="+", choices=list(ZOOS), default=list(ZOOS))
    parser.add_argument("--only", nargs="+", help="names of models, such as llama")
    parser.add_argument("--every", type=int, default=1, help="take each n-th model only")
    parser.add_argument("--limit", type=int, default=180, help="CPU seconds for a model")
    parser.add_argument("--results", type=Path, help="keep what became of each here, JSON lines")
    parser.add_argument("--missing", action="store_true", help="leave out who is there already")
    parser.add_argument("--kept", type=Path, help="fail for what is exact there and not now")
    parser.add_argument("--page", type=Path, help="write the page of all results here")
    options = parser.parse_args()
    results, kept = read(options.results), read(options.kept)
    if options.page and not options.results:
        parser.error("--page is written from --results")
    _warm_up(options.packages)
    bad = 0
    for zoo in options.packages:
        chosen = [x for x in listed(zoo) if not options.only or x.name in options.only]
        for model in chosen[:: options.every]:
            key = (model.family, model.name, model.kind)
            if options.missing and key in results:
                continue
            each = train_apart(model, options.limit)
            lost = kept.get(key, {}).get("result") in GOOD and each["result"] not in GOOD
            bad += lost or each["result"] in (training.WRONG, training.CRASHED)
            seconds = ", ".join(f"{k} {v:g} s" for k, v in each.pop("seconds", {}).items())
            results[key] = {"family": model.family, "name": model.name, "class": model.kind, **each}
            print(f"{model}: {each['result']}; {each.get('sentence', '')} ({seconds})", flush=True)
            if lost:
                print(f"lost: {model} was {kept[key]['result']}", flush=True)
            if options.results:
                write(options.results, results)
    print(page.counts(list(results.values())))
    if options.page:
        options.page.write_text(page.text(list(results.values())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
