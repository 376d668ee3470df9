"""`medley fits` for public configs and sets of cards: what it takes, and whether it is right.

    python benchmarks/fits.py --json build/fits.json [--only NAME ...] [--mode lora]
    python benchmarks/fits.py --json build/fits.json --exact [--only NAME ...]
    python benchmarks/fits.py --json build/fits.json --page

The first asks what the command asks, for each config of benchmarks/data/public_configs.json and 12
sets of cards, 512 and 2,048 tokens: a process for each config, which traces once. It notes seconds
on the clock and of processor, until the first graph is there and for each set, memory, and what
fits. With --exact each
config is also captured with all its layers at 512 tokens, and the graph compared with the one that
is planned: equal graphs have equal plans and memory. What the file has already is not done again,
so that this may be run in pieces. --page prints the tables of the results page.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "benchmarks" / "data" / "public_configs.json"
CARDS = (
    ("3060",),
    ("4060Ti-16GB",),
    ("3090",),
    ("4090",),
    ("T4",),
    ("3090", "4060Ti-16GB"),
    ("3090", "3060"),
    ("4090", "3090"),
    ("2x3090",),
    ("4x3060",),
    ("A100-40GB", "2xV100-16GB"),
    ("2x4090", "2x3090"),
)
LENGTHS = (512, 2048)
ROWS = 16
_SELF, _CHILDREN = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
# peft has no targets of its own for these.
TARGETS = {
    "vit": ",targets=q_proj,v_proj",
    "opt": ",targets=q_proj,v_proj",
    "phi3": ",targets=qkv_proj",
}


@contextlib.contextmanager
def _silently(what: str) -> Iterator[None]:
    yield


def _now() -> tuple[float, float]:
    """Returns the clock, and the seconds of processor of this process and of those that it has
    started, which plan."""
    return time.perf_counter(), sum(os.times()[:4])


def _since(begin: tuple[float, float]) -> list[float]:
    return [after - before for after, before in zip(_now(), begin, strict=True)]


def model_of(fields: dict[str, Any], mode: str) -> Any:
    """Returns what the command makes of a config."""
    from medley.fits.deep import Deep

    lora = "r=16" + TARGETS.get(fields["model_type"], "") if mode == "lora" else ""
    with tempfile.TemporaryDirectory(prefix="medley-fits-") as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(fields))
        return Deep(str(path), lora)


def lengths_of(model: Any) -> list[int]:
    """Returns those of LENGTHS that a model takes, the longest at least."""
    return [each for each in LENGTHS if each <= model.longest] or [model.longest]


def ask(fields: dict[str, Any], mode: str) -> dict[str, Any]:
    """Returns what all sets of cards come to, and what that took."""
    begin = _now()
    gc.disable()  # as the command does
    model = model_of(fields, mode)
    model.graph(lengths_of(model)[0] if model.takes_tokens else None)
    traced = _since(begin)
    from medley.fits.answer import Question
    from medley.fits.cards import link_of, read_cards

    sets = {}
    for words in CARDS:
        begin = _now()
        cards = read_cards(words)
        question = Question(model, mode, cards, link_of(cards), ROWS, _silently)
        answers = question.answers(lengths_of(model))
        sets[" ".join(words)] = {
            "took": _since(begin),
            "answers": [[each.length, each.cards, each.step_seconds] for each in answers],
        }
    kilobytes = [resource.getrusage(who).ru_maxrss for who in (_SELF, _CHILDREN)]
    return {
        "traced": traced,
        "stretched": model.is_stretched,
        "kilobytes": kilobytes,  # of this process, of the largest that it has started
        "sets": sets,
    }


def exact(fields: dict[str, Any], mode: str) -> dict[str, bool]:
    """Captures all layers; returns whether the graphs are equal."""
    from medley import _core

    model = model_of(fields, mode)
    length = lengths_of(model)[0] if model.takes_tokens else None
    quick = model.graph(length).hash()
    whole, _ = _core.Graph.parse(model.captured(length), "<whole>").run_passes()
    return {"stretched": model.is_stretched, "equal": quick == whole.hash()}


def page(found: dict[str, Any]) -> str:
    """Returns the tables, in Markdown."""
    lines = [
        "| config | mode | until the first graph | a set of cards: median, most | MiB "
        "| answers that fit | equal to all layers traced |",
        "|---|---|---|---|---|---|---|",
    ]
    exactly = {name: value for name, value in found.items() if name.endswith(" | exact")}
    for name, value in found.items():
        if name in exactly:
            continue
        equal = exactly.get(f"{name} | exact")
        said = "-" if equal is None else "yes" if equal["equal"] else "**no**"
        clock, processor = zip(*(each["took"] for each in value["sets"].values()), strict=True)
        steps = [step for each in value["sets"].values() for _, _, step in each["answers"]]
        lines.append(
            f"| {name} | {value['traced'][0]:.1f} s ({value['traced'][1]:.1f})"
            f"{'' if value['stretched'] else ', all layers traced'} "
            f"| {statistics.median(clock):.1f}, {max(clock):.1f} s "
            f"({statistics.median(processor):.1f}) | {max(value['kilobytes']) / 1024:.0f} "
            f"| {sum(step > 0 for step in steps)} of {len(steps)} | {said} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="what was found; is gone on with")
    parser.add_argument("--only", nargs="*", help="these configs")
    parser.add_argument("--mode", choices=("lora", "full"), default="lora")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    configs = json.loads(CONFIGS.read_text())
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.page:
        print(page(found))
        return 0
    for name in options.only or configs:
        key = f"{name} | {options.mode}" + (" | exact" if options.exact else "")
        if key in found:
            continue
        # A process of its own, so that imports count for each.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            run = exact if options.exact else ask
            found[key] = pool.submit(run, configs[name], options.mode).result()
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1))
        print(key, json.dumps(found[key])[:200], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
