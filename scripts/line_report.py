"""Prints the lines of each module without tests, with its budget. --check fails on a file over 600
lines and on a module over its budget. Split such a module, or raise its budget in the same change
with a reason."""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600
FOLDERS = ["medley", "python", "scripts", "testbed", "tests", "benchmarks", "examples"]
EXTRAS = ("python", "medley_extras")  # each package there is a module
# Lines without tests. A module for a day's reading has 6,000 at most; most need a third of that.
# The default is for unlisted, new modules.
A_NEW_MODULE = 2_000
BUDGETS = {
    "medley/base": 1_556,  # whole blocks of files that go past the cache of the system, too
    "medley/graph": 3_000,
    "medley/ops": 4_000,  # a table row per PyTorch op with a rule
    "medley/sharding": 1_500,
    "medley/boxes": 1_200,
    "medley/stages": 2_000,
    "medley/cluster": 1_500,
    "medley/network": 3_000,
    "medley/profile": 1_000,
    "medley/cost": 1_500,
    "medley/schedule": 1_690,  # the lists of every schedule, which program made for two of them
    "medley/plan": 1_664,
    "medley/prepare": 1_198,
    "medley/program": 3_896,  # the calls and steps of every device, and their checks
    "medley/lower": 4_945,  # all that becomes of a plan: gradient syncs, owners and types too
    "medley/memory": 750,
    "medley/solve": 3_500,
    "medley/sim": 2_089,  # devices that do the same are followed once
    "medley/synthesis": 4_856,  # a candidate that cannot be lowered is skipped
    "medley/chains": 2_760,  # with devices counted, and priced
    "medley/candidates": 2_908,  # ports; cuts between parts of layers
    "medley/measured_layers": 1_725,
    "medley/planner": 1_233,  # a table, and the selection of pipelines
    "medley/trace": 210,
    "medley/runtime": 3_500,
    "medley/emulation": 1_299,
    "medley/worker": 1_000,
    "medley/measure": 1_500,
    "medley/cli": 4_260,  # the tables of every verb, none wider than 100 columns
    "medley/kernels": 2_871,  # kernels of our own ops, optimizers and gradient syncs
    "medley/executor": 1_540,
    "medley/transport": 1_380,
    "medley/run": 1_665,
    "medley/testing": 1_960,  # how many seeds, too
    "python/src": 3_096,
    "medley/groups": 1_922,
    "medley/goal": 490,
    "medley/next_best": 440,
    "medley/command": 80,
    "medley/checkpoint": 2_100,  # also several objectives as one
    "medley/elastic": 2_000,
    "python/medley": 22_380,  # capture is a third of it; a failed first step returns to its plan
    "python/medley_extras": 100,  # the table of verbs
    "python/medley_extras/convert": 275,
    "python/medley_extras/demo": 410,
    "python/medley_extras/deploy": 1_100,
    "python/medley_extras/doctor": 1_470,
    "python/medley_extras/fits": 1_380,
    "python/medley_extras/hf": 535,
    "python/medley_extras/metrics": 445,
    "python/medley_extras/models": 1_321,
    "python/medley_extras/probe": 410,
    "python/medley_extras/profile": 205,
    "python/medley_extras/race": 927,  # searches in all processes, failed plans, slow devices
    "python/medley_extras/recall": 345,
    "python/medley_extras/report": 2_781,  # the picture of a cluster, the first difference of steps
    "python/medley_extras/search": 215,  # from race: corrections and searches beside training
    "python/medley_extras/trackers": 95,
    "python/medley_extras/train": 740,
}
# Modules above the command line; the core runs without them.
ABOVE = {"medley/goal", "medley/next_best", "medley/command"}
CORE = 75_625  # all other modules of medley/: raised for a new ability, not for a second answer


def is_test(path: Path) -> bool:
    return path.name.endswith("_test.cpp") or "tests" in path.relative_to(ROOT).parts


def module_of(path: Path) -> str:
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[: 3 if folders[:2] == EXTRAS else 2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    lines = {
        path: len(path.read_text(errors="replace").splitlines())
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".h", ".cpp", ".py"} and path.is_file()
    }
    too_long = [path for path, count in lines.items() if count > LIMIT]
    for path in too_long:
        print(f"{path.relative_to(ROOT)}: {lines[path]} lines, at most {LIMIT}: split it by idea")
    code: dict[str, int] = defaultdict(int)
    tests: dict[str, int] = defaultdict(int)
    for path, count in lines.items():
        (tests if is_test(path) else code)[module_of(path)] += count
    budgets = {
        m: BUDGETS.get(m, A_NEW_MODULE) for m in code if m.startswith(("medley/", "python/"))
    }
    code["medley"] = sum(n for m, n in code.items() if m.startswith("medley/") and m not in ABOVE)
    budgets["medley"] = CORE
    over = [m for m, most in sorted(budgets.items()) if code[m] > most]
    for module in over:
        print(f"{module}: {code[module]} lines without tests, at most {budgets[module]}: split it")
    if not args.check:
        for module in sorted(code.keys() | tests.keys()):
            budget = f" of {budgets[module]:>6}" if module in budgets else ""
            print(f"{module:<30}{tests[module]:>8} test{code[module]:>8}{budget}")
    return int(args.check and bool(too_long or over))


if __name__ == "__main__":
    sys.exit(main())
