"""`medley fits` for public configs and sets of GPUs: its cost, and its correctness.

    python benchmarks/fits.py --json build/fits.json [--only NAME ...] [--mode lora]
    python benchmarks/fits.py --json build/fits.json --exact [--only NAME ...]
    python benchmarks/fits.py --json build/fits.json --page

The first runs the command for each config of benchmarks/data/public_configs.json and 12 sets of
GPUs, 512 and 2,048 tokens, in sequence, as a user who compares GPUs. The first run traces the
model, the others use the cache. It records wall time, CPU time, memory, and the fits. With --exact
each config is also captured with all its layers at 512 tokens, and the graph compared with the
planned one: equal graphs have equal plans and memory. Results already in the file are skipped, so
it may run in pieces. --page prints the tables of the results page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
_LONGEST = ("max_position_embeddings", "n_positions", "sliding_window")
# Models for which peft has no targets.
TARGETS = {
    "vit": ",targets=q_proj,v_proj",
    "opt": ",targets=q_proj,v_proj",
    "phi3": ",targets=qkv_proj",
}


def _lora(fields: dict[str, Any]) -> str:
    return "r=16" + TARGETS.get(fields["model_type"], "")


@contextlib.contextmanager
def _config(fields: dict[str, Any]) -> Iterator[Path]:
    """Gives a config.json, alone in its folder."""
    with tempfile.TemporaryDirectory(prefix="medley-fits-") as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(fields))
        yield path


def _lengths(fields: dict[str, Any]) -> list[int]:
    """Returns those of LENGTHS that a model accepts, the longest at least, or none for a model
    without tokens."""
    if "image_size" in fields:
        return []
    longest = [fields.get(name) or 1 << 30 for name in _LONGEST]
    return [each for each in LENGTHS if each <= min(longest)] or [min(longest)]


def ask(fields: dict[str, Any], mode: str) -> dict[str, Any]:
    """Returns the answers for all sets of GPUs, and the cost of each command."""
    sets = {}
    with _config(fields) as path:
        words = [sys.executable, "-m", "medley", "fits", f"hf:{path}", "--json", "--mode", mode]
        words += ["--rows", str(ROWS), "--lora", _lora(fields)]
        if lengths := _lengths(fields):
            words += ["--lengths", ",".join(map(str, lengths))]
        for cards in CARDS:
            sets[" ".join(cards)] = _run([*words, "--cards", *cards], path.parent)
    return {"sets": sets}


def _run(words: list[str], cache: Path) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        started = subprocess.Popen(
            words, stdout=output, env={**os.environ, "XDG_CACHE_HOME": str(cache)}
        )
        _, status, used = os.wait4(started.pid, 0)
        took = [time.perf_counter() - begin, used.ru_utime + used.ru_stime]
        if status:
            raise ChildProcessError(f"{' '.join(words)}: ended with {status}")
        output.seek(0)
        said = json.load(output)
    answers = [[each["length"], each["cards"], each["step_seconds"]] for each in said["answers"]]
    # The maximum over the command and its processes.
    return {"took": took, "kilobytes": used.ru_maxrss, "answers": answers}


def exact(fields: dict[str, Any], mode: str) -> dict[str, bool]:
    """Captures all layers. Returns whether the graphs are equal."""
    from medley import _core
    from medley_extras.fits.deep import Deep

    def hash_of(text: str) -> str:
        graph, _ = _core.Graph.parse(text, "<text>").run_passes()
        return graph.hash()

    with _config(fields) as path:
        model = Deep(str(path), _lora(fields) if mode == "lora" else "")
    length = next(iter(_lengths(fields)), None)
    quick, whole = hash_of(model.text(length)), hash_of(model.captured(length))
    return {"stretched": model.traces is not None, "equal": quick == whole}


def page(found: dict[str, Any]) -> str:
    """Returns the tables, in Markdown."""
    lines = [
        "| config | mode | the first set of cards | the others: median, most | MiB "
        "| answers that fit | equal to all layers traced |",
        "|---|---|---|---|---|---|---|",
    ]
    exactly = {name: value for name, value in found.items() if name.endswith(" | exact")}
    for name, value in found.items():
        if name in exactly:
            continue
        equal = exactly.get(f"{name} | exact")
        said = "-" if equal is None else "yes" if equal["equal"] else "**no**"
        first, *others = value["sets"].values()
        clock, processor = zip(*(each["took"] for each in others), strict=True)
        most = max(each["kilobytes"] for each in value["sets"].values())
        steps = [step for each in value["sets"].values() for _, _, step in each["answers"]]
        lines.append(
            f"| {name} | {first['took'][0]:.1f} s ({first['took'][1]:.1f}) "
            f"| {statistics.median(clock):.1f}, {max(clock):.1f} s "
            f"({statistics.median(processor):.1f}) | {most / 1024:.0f} "
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
        run = exact if options.exact else ask
        found[key] = run(configs[name], options.mode)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1))
        print(key, json.dumps(found[key])[:200], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
