"""`medley fits` for public configs and sets of cards: what it takes, and whether it is right.

    python benchmarks/fits.py --json build/fits.json [--only NAME ...] [--modes lora full]
    python benchmarks/fits.py --json build/fits.json --exact [--only NAME ...]
    python benchmarks/fits.py --json build/fits.json --page

The first runs the command once for each config of benchmarks/data/public_configs.json, set of cards
and mode, and notes seconds, processor seconds and peak memory of the process. With --exact each
config is also captured with all its layers at two lengths, and the graph compared with the one that
the command plans with: equal graphs have equal plans and memory. What the file has already is not
done again, so that this may be run in pieces. --page prints the tables of the results page.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
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


def config_file(folder: str, fields: dict[str, Any]) -> Path:
    """Writes a config.json."""
    path = Path(folder, "config.json")
    path.write_text(json.dumps(fields))
    return path


def run(fields: dict[str, Any], cards: tuple[str, ...], mode: str) -> dict[str, Any]:
    """Runs the command; returns what it took and what it said."""
    with tempfile.TemporaryDirectory(prefix="medley-fits-") as folder:
        path = config_file(folder, fields)
        command = [sys.executable, "-m", "medley", "fits", f"hf:{path}", "--json"]
        command += ["--mode", mode, "--cards", *cards]
        if mode == "lora" and fields["model_type"] in ("vit", "opt"):
            names = {"vit": "query,value", "opt": "q_proj,v_proj"}[fields["model_type"]]
            command += ["--lora", f"r=16,targets={names}"]
        begin = time.perf_counter()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(command, stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            text, error = out.read().decode(), err.read().decode()
    found = {
        "seconds": time.perf_counter() - begin,
        "processor": usage.ru_utime + usage.ru_stime,
        "mib": usage.ru_maxrss / 1024,
    }
    if process.returncode != 0:
        return {**found, "error": error.strip().splitlines()[-1] if error.strip() else "?"}
    answers = json.loads(text)["answers"]
    return {**found, "fitting": sum(a["fits"] for a in answers), "answers": len(answers)}


def exact(fields: dict[str, Any], mode: str) -> dict[str, Any]:
    """Captures all layers; returns whether the graphs are equal."""
    from medley import _core
    from medley.fits.deep import Deep

    lora = ""
    if mode == "lora":
        own = {"vit": ",targets=query,value", "opt": ",targets=q_proj,v_proj"}
        lora = "r=16" + own.get(fields["model_type"], "")
    with tempfile.TemporaryDirectory(prefix="medley-fits-") as folder:
        model = Deep(str(config_file(folder, fields)), lora)
        found: dict[str, Any] = {"stretched": True}
        for length in LENGTHS if model.takes_tokens else (None,):
            length = None if length is None else min(length, model.longest)
            quick = model.graph(length).hash()
            found["stretched"] &= model.is_stretched
            whole, _ = _core.Graph.parse(model.captured(length), "<whole>").run_passes()
            found[str(length)] = quick == whole.hash()
    return found


def key(name: str, cards: tuple[str, ...], mode: str) -> str:
    """Names a run."""
    return f"{name} | {mode} | {' '.join(cards)}"


@dataclasses.dataclass
class Notes:
    """What was found so far, in a file."""

    path: Path
    found: dict[str, Any]

    def note(self, name: str, value: dict[str, Any]) -> None:
        """Keeps it."""
        self.found[name] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=1))
        print(name, value, flush=True)


def page(found: dict[str, Any]) -> str:
    """Returns the tables, in Markdown."""
    lines = ["| config | mode | runs | seconds, processor seconds, most | MiB, most | fitting |"]
    lines.append("|---|---|---|---|---|---|")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, value in found.items():
        words = name.split(" | ")
        if len(words) == 3:
            groups.setdefault((words[0], words[1]), []).append(value)
    for (config, mode), runs in groups.items():
        good = [run for run in runs if "error" not in run]
        if not good:
            lines.append(f"| {config} | {mode} | {len(runs)} | {runs[0]['error']} | | |")
            continue
        lines.append(
            f"| {config} | {mode} | {len(good)} of {len(runs)} "
            f"| {max(r['seconds'] for r in good):.1f}, {max(r['processor'] for r in good):.1f} "
            f"| {max(r['mib'] for r in good):.0f} "
            f"| {sum(r['fitting'] for r in good)} of {sum(r['answers'] for r in good)} |"
        )
    good = [run for runs in groups.values() for run in runs if "error" not in run]
    if good:
        processor = [run["processor"] for run in good]
        lines.append(
            f"\n{len(good)} runs: {statistics.median(processor):.1f} processor seconds in the "
            f"median, {max(processor):.1f} at most; {max(r['seconds'] for r in good):.1f} s and "
            f"{max(r['mib'] for r in good):.0f} MiB at most."
        )
    exactly = {name: value for name, value in found.items() if name.endswith(" | exact")}
    equal = [n for n, v in exactly.items() if all(x for k, x in v.items() if k != "stretched")]
    stretched = [n for n in equal if exactly[n]["stretched"]]
    lines.append(
        f"\n{len(equal)} of {len(exactly)} graphs equal those captured with all layers, "
        f"{len(stretched)} of them from shallow ones."
    )
    return "\n".join(lines)


def main() -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="what was found; is gone on with")
    parser.add_argument("--only", nargs="*", help="these configs")
    parser.add_argument("--modes", nargs="*", default=["lora"])
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    configs = json.loads(CONFIGS.read_text())
    before = json.loads(options.json.read_text()) if options.json.exists() else {}
    notes = Notes(options.json, before)
    if options.page:
        print(page(notes.found))
        return 0
    for name in options.only or configs:
        for mode in options.modes:
            if options.exact:
                if f"{name} | {mode} | all | exact" not in notes.found:
                    notes.note(f"{name} | {mode} | all | exact", exact(configs[name], mode))
                continue
            for cards in CARDS:
                if key(name, cards, mode) not in notes.found:
                    notes.note(key(name, cards, mode), run(configs[name], cards, mode))
    return 0


if __name__ == "__main__":
    sys.exit(main())
