"""Draws the figures of the documentation: docs/figures/architecture.svg and timelines.svg.

    .venv/bin/python scripts/figures.py           writes both
    .venv/bin/python scripts/figures.py --check   fails if a file differs from what it would write

The timelines are those of the example of README.md: plans and traces are from the program `medley`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from medley_extras.report.draw import COMMUNICATION, ONCE, STAGES
from medley_extras.report.trace import WAITING, Trace, merged, parse

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "figures"
PROGRAM = ROOT / "python" / "medley" / "bin" / "medley"
MODEL = "medley_extras.models:gpt"
BATCH = 64
FENCE = re.compile(r"```yaml cluster\.yaml\n(.*?)```", re.DOTALL)  # in README.md
PLANS = [("data-parallel-even", "Even split"), ("hap", "Medley's plan")]
WIDTH = 860
# A figure has a background of its own, so that it is legible on pages of any color.
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #222; }
.title { font-size: 17px; font-weight: 600; } .small { font-size: 12px; }
.code { font: 12px ui-monospace, monospace; } .muted { fill: #5c6670; } .inside { fill: #fff; }
.dark { fill: #222; } .paper { fill: #fff; } .idle { fill: #ececec; } .line { stroke: #c9ced4; }
.box { fill: #f4f6f8; stroke: #1d74b5; stroke-width: 1.5; } .input { fill: none; stroke: #5c6670;
stroke-dasharray: 5 4; } .arrow { fill: none; stroke: #5c6670; stroke-width: 2; }
.head { fill: #5c6670; } .back { stroke: #d97706; } .tip { fill: #d97706; }
@media (prefers-color-scheme: dark) { text { fill: #e4e7ea; } .muted { fill: #a3adb8; }
.inside { fill: #fff; } .dark { fill: #222; } .paper { fill: #16181d; } .idle { fill: #363c45; }
.line { stroke: #4a525c; } .box { fill: #20242b; stroke: #5aa2dd; } .input { stroke: #a3adb8; }
.arrow { stroke: #a3adb8; } .head { fill: #a3adb8; } .back { stroke: #f0a040; }
.tip { fill: #f0a040; } }
""".replace("\n", " ").strip()


def text(x: float, y: float, words: str, look: str = "", anchor: str = "start") -> str:
    """Returns a text of an SVG."""
    kind = f' class="{look}"' if look else ""
    end = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{kind} x="{x:g}" y="{y:g}"{end}>{escape(words)}</text>'


def svg(height: int, label: str, parts: list[str]) -> str:
    """Returns an SVG on a background of its own."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n<title>{escape(label)}</title>\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


# --- architecture ---------------------------------------------------------------------------------

BOX = (176, 104)
FIRST, SECOND = 96, 264  # y of the two rows of boxes
# Column, row, name, two lines about it, folders.
BOXES = [
    (
        0,
        FIRST,
        "Capture",
        "traces the model once,",
        "forward and backward",
        "python/medley/capture",
    ),
    (1, FIRST, "Graph", "ops, and a rule per op:", "how it may be sharded", "graph, ops, sharding"),
    (2, FIRST, "Planner", "searches plans, judged", "by a simulator", "planner, sim"),
    (3, FIRST, "Plan", "JSON: devices, rows,", "placements, stages", "plan"),
    (3, SECOND, "Lowering", "writes the program: local", "ops and communication", "lower, program"),
    (2, SECOND, "Execution", "a process per device,", "real or emulated", "runtime, transport"),
    (
        1,
        SECOND,
        "Recovery",
        "restores the state on",
        "the remaining devices",
        "elastic, checkpoint",
    ),
]


def column(number: int) -> int:
    """Returns the left edge of a column."""
    return 22 + number * (BOX[0] + 38)


def arrow(points: str, tip: tuple[float, float], turn: int, back: bool = False) -> str:
    """Returns a line with a tip, which is turned clockwise by so many degrees from the right."""
    x, y = tip
    return (
        f'<path class="arrow{" back" if back else ""}" d="{points}"/>'
        f'<path class="{"tip" if back else "head"}" d="M0 0l-10 -5v10z" '
        f'transform="translate({x:g} {y:g}) rotate({turn})"/>'
    )


def architecture() -> str:
    """Returns the way of a model through Medley."""
    width, height = BOX
    parts = []
    for number, (place, y, name, *lines, folders) in enumerate(BOXES):
        x = column(place)
        parts.append(
            f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        )
        parts.append(text(x + 12, y + 26, f"{number + 1} {name}", "title"))
        parts += [text(x + 12, y + 48 + 18 * i, line, "small") for i, line in enumerate(lines)]
        parts.append(text(x + 12, y + 92, folders, "code muted small"))
    for place, words in ((0, "PyTorch model"), (2, "cluster.yaml, profile.json")):
        x = column(place)
        parts.append(f'<rect class="input" x="{x}" y="16" width="{width}" height="40" rx="8"/>')
        parts.append(text(x + width / 2, 41, words, "small", "middle"))
        parts.append(arrow(f"M{x + 88} 56V{FIRST - 8}", (x + 88, FIRST - 1), 90))
    middle: float = FIRST + height / 2
    for place in range(3):
        x = column(place) + width
        parts.append(arrow(f"M{x} {middle:g}h30", (x + 37, middle), 0))
    center = column(3) + width / 2
    parts.append(arrow(f"M{center:g} {FIRST + height}V{SECOND - 8}", (center, SECOND - 1), 90))
    middle = SECOND + height / 2
    for place in (3, 2):
        x = column(place)
        parts.append(arrow(f"M{x} {middle:g}h-30", (x - 37, middle), 180, back=place == 2))
    left, right, turn = column(1) + width / 2, column(2) + width / 2 - 30, FIRST + height + 32
    below = FIRST + height
    parts.append(
        arrow(f"M{left:g} {SECOND}V{turn}H{right:g}V{below + 8}", (right, below + 1), -90, True)
    )
    parts.append(text(left + 12, turn - 8, "a new plan", "small muted"))
    parts.append(text(column(2) - 19, middle - 10, "fails", "small muted", "middle"))
    x = column(0)
    parts.append(
        f'<rect class="input" x="{x}" y="{SECOND}" width="{width}" height="{height}" rx="8"/>'
    )
    lines = [
        "The plan is the interface:",
        "a search or a person",
        "writes it, and all after",
        "it reads nothing else.",
    ]
    parts += [text(x + 12, SECOND + 26 + 20 * i, line, "small") for i, line in enumerate(lines)]
    return svg(SECOND + height + 24, "The parts of Medley, from a model to training", parts)


# --- timelines ------------------------------------------------------------------------------------

LEFT, RIGHT = 120, 24  # margins of the time axis
ROW = 46
LEAST = 0.4  # pixels below which communication is not drawn
NAMED = 60  # pixels from which on a call has its name


def medley(*arguments: str, folder: Path) -> str:
    """Returns the output of the program. Raises CalledProcessError if it fails."""
    done = subprocess.run(
        [PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def predicted(graph: Path, strategy: str) -> tuple[Trace, dict[str, Any], dict[str, int]]:
    """Returns the simulated step of a strategy's plan, its figures, and the rows of each device."""
    with tempfile.TemporaryDirectory(prefix="medley_figures_") as name:
        folder = Path(name)
        shown = FENCE.findall((ROOT / "README.md").read_text())
        (folder / "cluster.yaml").write_text(shown[0])
        files = [str(graph.resolve()), "cluster.yaml"]
        wanted = ["--strategy", strategy, "--global-batch", str(BATCH)]
        medley("plan", *files, *wanted, "-o", "plan.json", folder=folder)
        figures = medley(
            "simulate", *files, "plan.json", "--trace", "trace.json", "--json", folder=folder
        )
        given = ["plan.json", "--graph", files[0], "--cluster", "cluster.yaml", "--json"]
        explained = json.loads(medley("explain", *given, folder=folder))
        trace = parse((folder / "trace.json").read_text(), "trace.json")
    devices = explained["stages"][0]["devices"]
    return trace, json.loads(figures), {each["device"]: each["rows"] for each in devices}


def milliseconds(value: float) -> str:
    """Returns nanoseconds as text: 3.49 ms."""
    return f"{value / 1e6:.2f} ms"


def timelines(graph: Path) -> str:
    """Returns one step of the even split above that of the plan, on one scale."""
    steps = [(title, *predicted(graph, strategy)) for strategy, title in PLANS]
    longest = max(figures["step_nanoseconds"] for _, _, figures, _ in steps)
    scale = (WIDTH - LEFT - RIGHT) / longest
    first = steps[0][2]["step_nanoseconds"]
    parts, y = [], 34
    for title, trace, figures, rows in steps:
        step, devices = figures["step_nanoseconds"], figures["devices"]
        busy = sum(each["computes_nanoseconds"] for each in devices) / step / len(devices)
        faster = f", {first / step:.2f}x faster" if step < first else ""
        parts.append(text(16, y, f"{title}: {milliseconds(step)} per step{faster}", "title"))
        idle = f"devices idle {100 * (1 - busy):.0f} % of the step"
        parts.append(text(WIDTH - RIGHT, y, idle, "muted", "end"))
        y += 14
        for each in devices:
            name = each["device"]
            parts += row(trace, name, each["device_type"], rows[name], y, step, scale)
            y += ROW
        y += 30
    parts += axis(y - 26, longest, scale)
    parts += legend(y + 30)
    return svg(y + 46, "One step of the even split and of Medley's plan", parts)


def row(
    trace: Trace, device: str, kind: str, rows: int, y: int, step: int, scale: float
) -> list[str]:
    """Returns the step of a device: bars of computing above, of communication below."""
    parts = [
        text(16, y + 16, device),
        text(16, y + 31, f"{kind}, {rows} rows", "small muted"),
        bar("", LEFT, y, step * scale, 26, "idle"),
    ]
    events = [event for event in trace.of(device) if event.computes and event.category != WAITING]
    for event in merged(events):
        x, width = LEFT + event.start * scale, (event.end - event.start) * scale
        calls = {"forward": STAGES[0][0], "backward": STAGES[0][1]}
        parts.append(bar(calls.get(event.category) or ONCE[event.category], x, y, width, 26))
        if event.category in calls and width >= NAMED:
            look = "dark" if event.category == "forward" else "inside"
            parts.append(text(x + width / 2, y + 18, event.category, f"small {look}", "middle"))
    for event in (event for event in trace.of(device) if not event.computes):
        width = (event.end - event.start) * scale
        if width >= LEAST:
            fill = COMMUNICATION[event.category]
            parts.append(bar(fill, LEFT + event.start * scale, y + 28, width, 8))
    return parts


def bar(fill: str, x: float, y: float, width: float, height: int, look: str = "") -> str:
    """Returns a bar of a color, or of the look of a class."""
    paint = f'class="{look}"' if look else f'fill="{fill}"'
    return f'<rect {paint} x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height}"/>'


def axis(y: int, longest: int, scale: float) -> list[str]:
    """Returns the time below both steps."""
    end = WIDTH - RIGHT
    parts = [f'<path class="line" d="M{LEFT} {y}H{end}"/>']
    for at in range(int(longest / 1e6) + 1):
        x = LEFT + at * 1e6 * scale
        parts.append(f'<path class="line" d="M{x:.1f} {y}v5"/>')
        parts.append(text(round(x, 1), y + 20, f"{at} ms", "small muted", "middle"))
    return parts


def legend(y: int) -> list[str]:
    """Returns the meaning of colors."""
    entries = [
        (STAGES[0][0], "forward"),
        (STAGES[0][1], "backward"),
        (ONCE["update"], "update"),
        ("", "idle"),
        *((COMMUNICATION[kind], kind) for kind in ("all_reduce", "all_gather", "reduce_scatter")),
    ]
    parts, x = [], LEFT
    for fill, name in entries:
        parts.append(bar(fill, x, y - 10, 12, 12, "" if fill else "idle"))
        parts.append(text(x + 17, y, name, "small"))
        x += 36 + 7 * len(name)
    return parts


# --- all ------------------------------------------------------------------------------------------


def figures(graph: Path) -> dict[str, str]:
    """Returns the text of each file. `graph` is that of the model."""
    return {"architecture.svg": architecture(), "timelines.svg": timelines(graph)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="medley_figures_") as folder:
        graph = Path(folder) / "g.graph"
        capture = ["-m", "medley", "capture", MODEL, "-o", str(graph)]
        subprocess.run([sys.executable, *capture], check=True, stdout=subprocess.DEVNULL)
        found = figures(graph)
    FOLDER.mkdir(exist_ok=True)
    differ = []
    for name, drawn in found.items():
        path = FOLDER / name
        if arguments.check and (not path.exists() or path.read_text() != drawn):
            differ.append(name)
        elif not arguments.check:
            path.write_text(drawn)
    if differ:
        print(f"docs/figures: {', '.join(differ)}: not current. Run scripts/figures.py.")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
