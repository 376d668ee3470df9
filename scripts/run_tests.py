"""Runs every tier of tests on what `make build` and `make sanitized` built, and sums up.

A tier that should have run and collected nothing fails; a tier that cannot run here says why.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Pointer arithmetic, text readers and index maps live in these.
SANITIZED = ["base", "graph", "ops", "sharding", "program"]


@dataclass
class Result:
    status: str  # "passed", "failed", "skipped"
    detail: str


def run(command: list[str], log: Path) -> tuple[int, str]:
    """Streams the output and returns it with the exit status."""
    print("$", " ".join(command), flush=True)
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), CTEST_OUTPUT_ON_FAILURE="1")
    lines = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    log.write_text("".join(lines))
    return process.returncode, "".join(lines)


def existing_sanitized() -> list[str]:
    return [m for m in SANITIZED if list((ROOT / "medley" / m).glob("*_test.cpp"))]


def ctest(folder: str, jobs: int, log: Path, *more: str) -> Result:
    code, text = run(
        ["ctest", "--test-dir", folder, "-j", str(jobs), "--no-tests=error", *more], log
    )
    found = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", text)
    if code != 0 or not found:
        return Result("failed", f"{found[2]} of {found[3]} programs" if found else "no tests ran")
    return Result("passed", f"{found[3]} programs")


def unit(jobs: int, log: Path) -> Result:
    return ctest("build/torch", jobs, log, "-L", "unit")


def sanitized(jobs: int, log: Path) -> Result:
    return ctest("build/dev", jobs, log, "-R", f"^({'|'.join(existing_sanitized())})$")


def golden(jobs: int, log: Path) -> Result:
    if not list(ROOT.glob("tests/golden/**/*.case")):
        return Result("failed", "tests/golden has no cases")
    code, text = run([sys.executable, "scripts/golden.py", "--jobs", str(jobs)], log)
    return Result("failed" if code else "passed", text.strip().splitlines()[-1] if text else "")


def pytest(folder: str, marker: str, log: Path) -> Result:
    if not list((ROOT / folder).glob("**/test_*.py")):
        return Result("failed", f"{folder} has no tests")
    code, text = run([sys.executable, "-m", "pytest", "-q", folder, "-m", marker], log)
    last = text.strip().splitlines()[-1].strip("= ") if text.strip() else "no output"
    return Result("failed" if code else "passed", last)


def python(_: int, log: Path) -> Result:
    return pytest("python/tests", "not gpu and not multi", log)


def multi(_: int, log: Path) -> Result:
    return pytest("tests/multi", "not gpu", log)


def gpu(_: int, log: Path) -> Result:
    code = subprocess.run(
        [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"],
        check=False,
    ).returncode
    if code:
        return Result("skipped", "no CUDA device here")
    return pytest("python/tests", "gpu", log)


def testbed(_: int, log: Path) -> Result:
    return Result("skipped", "shapes the machine's network as root: runs nightly, by hand")


TIERS: list[tuple[str, Callable[[int, Path], Result]]] = [
    ("unit", unit),
    ("unit, ASan+UBSan", sanitized),
    ("golden", golden),
    ("python", python),
    ("multi", multi),
    ("gpu", gpu),
    ("testbed", testbed),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="name of one tier")
    parser.add_argument("--sanitized-targets", action="store_true", help="print them and stop")
    args = parser.parse_args()
    if args.sanitized_targets:
        print(" ".join(f"{m}_test" for m in existing_sanitized()))
        return 0

    logs = ROOT / "build" / "test_logs"
    logs.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, tier in TIERS:
        if args.only in (None, name):
            start = time.monotonic()
            result = tier(args.jobs, logs / (re.sub(r"\W+", "_", name) + ".log"))
            rows.append((name, result, time.monotonic() - start))
    print("\nSummary")
    for name, result, seconds in rows:
        print(f"  {name:<18}{result.status:<9}{seconds:6.1f} s  {result.detail}")
    return int(any(result.status == "failed" for _, result, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
