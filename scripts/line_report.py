"""Prints the lines of each module, tests apart. --check fails on a file over 600 lines."""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600
FOLDERS = ["medley", "python", "scripts", "testbed", "tests", "benchmarks", "examples"]
# Budgets of the C++ core without tests; signals, not gates.
BUDGETS = {"planner": 5_000, "runtime + torch": 4_000, "bindings": 2_000, "core": 25_000}


def is_test(path: Path) -> bool:
    return path.name.endswith("_test.cpp") or "tests" in path.relative_to(ROOT).parts


def module_of(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[:-1][:2])


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
    if args.check:
        return int(bool(too_long))

    code: dict[str, int] = defaultdict(int)
    tests: dict[str, int] = defaultdict(int)
    for path, count in lines.items():
        (tests if is_test(path) else code)[module_of(path)] += count
    for module in sorted(code.keys() | tests.keys()):
        print(f"{module:<24}{code[module]:>8}{tests[module]:>8} test")
    core = {m.removeprefix("medley/"): n for m, n in code.items() if m.startswith("medley/")}
    sums = {
        "planner": core.get("planner", 0),
        "runtime + torch": core.get("runtime", 0) + core.get("torch", 0),
        "bindings": code.get("python/src", 0),
        "core": sum(core.values()),
    }
    for name, count in sums.items():
        print(f"{name:<24}{count:>8} of {BUDGETS[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
