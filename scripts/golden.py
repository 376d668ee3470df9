"""Runs the golden cases, tests/golden/**/*.case.

    # A comment: what is expected and why.
    $ medley plan --strategy hap tests/data/mlp.graph tests/data/1x_1y2.yaml --show ratios
    > batch: x0 0.333  y0 0.667
    $ medley plan tests/data/bad.yaml
    > bad.yaml:3: nodes[1].count: must be positive: -3
    ? 2

`> ` lines are the output with standard error, `? N` the exit status if it is nonzero. The commands
of a case share a temporary directory, with links to `data`, `docs`, `examples` and `tests` of the
repository, so each runs by hand in its root too. `$ cat FILE` shows a file that a command wrote.
There is no shell. --update rewrites the expectations.
"""

import argparse
import difflib
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKS = ["data", "docs", "examples", "tests"]
TIME_LIMIT_S = 120


def run_command(line: str, medley: str, directory: Path) -> list[str]:
    words = shlex.split(line)
    if words[0] == "medley":
        words[0] = medley
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "python"),
    }
    try:
        done = subprocess.run(
            words,
            cwd=directory,
            env=env,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"> (no end after {TIME_LIMIT_S} s)"]
    except FileNotFoundError:
        return [f"> (no such program: {words[0]})"]
    lines = [f"> {text}".rstrip() for text in done.stdout.splitlines()]
    return lines + ([f"? {done.returncode}"] if done.returncode else [])


def run_case(path: Path, medley: str) -> tuple[str, str]:
    """Returns the file as it is and as it would be if the output were right."""
    expected = path.read_text()
    actual: list[str] = []
    with tempfile.TemporaryDirectory(prefix="medley_golden_") as name:
        directory = Path(name)
        for link in LINKS:
            if (ROOT / link).exists():
                (directory / link).symlink_to(ROOT / link)
        for line in expected.splitlines():
            if line.startswith("$ "):
                actual += [line, *run_command(line[2:], medley, directory)]
            elif line.startswith("#") or not line.strip():
                actual.append(line)
            elif line[0] not in ">?":
                sys.exit(f"{path}: a line starts with '#', '$ ', '> ' or '? ': {line}")
    return expected, "\n".join(actual) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", type=Path, help="default: all")
    parser.add_argument("--medley", default=str(ROOT / ".venv/bin/medley"), help="the program")
    parser.add_argument("--update", action="store_true", help="rewrite what is expected")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()

    cases = args.cases or sorted(ROOT.glob("tests/golden/**/*.case"))
    differ = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda case: run_case(case, args.medley), cases)
        for case, (expected, actual) in zip(cases, results, strict=True):
            if expected == actual:
                continue
            differ += 1
            if args.update:
                case.write_text(actual)
            name = str(case.resolve().relative_to(ROOT))
            sys.stdout.writelines(
                difflib.unified_diff(
                    expected.splitlines(True), actual.splitlines(True), name, f"{name} (now)"
                )
            )
    if args.update:
        print(f"{len(cases)} cases, {differ} rewritten")
        return 0
    print(f"{len(cases)} cases, {differ} differ")
    return int(differ > 0 or not cases)


if __name__ == "__main__":
    sys.exit(main())
