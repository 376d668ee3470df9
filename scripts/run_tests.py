"""Runs every tier of tests and sums up; --build builds their programs first.

A tier that should run but collects no test fails. A tier that cannot run here gives the reason.
--nightly adds longer ones: slow tests, all modules under sanitizers, fuzzing, other programs as
oracles, clang-tidy.

The seconds of each tier are printed, and stored in build/test_logs/seconds.json with those of
earlier runs. A run of all tiers fails if it takes longer than MEDLEY_TEST_LIMIT minutes, counted
from --since. Without the variable, more than 20 minutes give a warning: two current cores take
less, from `git clone` on. A nightly run then has no limit.
"""

import argparse
import dataclasses
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from check_layers import torch_modules

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test_logs"
SECONDS = LOGS / "seconds.json"
SLOW_COUNT = LOGS / "slow_count"  # number of tests that the tier python skips
RUNS_KEPT = 100
LIMIT_MINUTES = 20
LONGEST_CASES = 15
# Modules with pointer arithmetic and text readers, which depend on no others. Their tests run under
# sanitizers; without sanitizers only nightly. Nightly all modules are sanitized.
SANITIZED = ["base", "boxes", "graph"]
THREADED = [
    "candidates",
    "chains",
    "emulation",
    "lower",
    "planner",
    "program",
    "runtime",
    "synthesis",
    "trace",
    "worker",
]
PLAN_SEEDS_NIGHTLY = "200"
AGREEMENT_SEEDS, AGREEMENT_SEEDS_NIGHTLY = "40", "1000"  # plans simulated and emulated
REPLICAS_SEEDS, REPLICAS_SEEDS_NIGHTLY = "100", "1000"  # plans that lose a node
NODE_LOSS_CLUSTERS, NODE_LOSS_CLUSTERS_NIGHTLY = "1", "12"  # on which all plans are tried
GROUP_SEEDS, GROUP_SEEDS_NIGHTLY = "100", "1000"  # sets of pipelines, searched and enumerated
BENCHMARKS_TESTED = ["op_costs"]  # run by ctest; the others are built nightly
LONG_TO_BUILD = ["layer_peers"]  # tests of a second with half a minute of building: nightly
FUZZ_SECONDS = 60  # for each target
FUZZ_INPUT_SECONDS = 10  # a longer read of a file is a finding
ORACLES = {"toulbar2": "toulbar2", "simgrid": "libsimgrid-dev"}  # test program: Debian package
NOTHING_COLLECTED = 5  # exit status of pytest


@dataclass
class Options:
    jobs: int
    nightly: bool
    is_beside: bool = False  # another tier runs: one worker


@dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    why: list[str] = field(default_factory=list)  # skips and failures, one line each

    @property
    def status(self) -> str:
        if self.failed:
            return "failed"
        return "passed" if self.passed else "skipped" if self.skipped or self.why else "done"

    def add(self, other: "Result") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


Row = tuple[str, Result, float]  # a tier, its result, seconds


def failure(why: str) -> Result:
    return Result(failed=1, why=[why])


def skip(why: str) -> Result:
    return Result(why=[why])


def run(command: list[str], log: str, shows_late: bool = False, **more_env: str) -> tuple[int, str]:
    """Streams the output, or shows it at the end, and returns it with the exit status."""
    lines = [f"$ {' '.join(command)}\n"]
    if not shows_late:
        print(lines.pop(), end="", flush=True)
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), CTEST_OUTPUT_ON_FAILURE="1", **more_env)
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
            if not shows_late:
                print(line, end="", flush=True)
            lines.append(line)
    if shows_late:
        print("".join(lines), end="", flush=True)
    (LOGS / f"{log}.log").write_text("".join(lines))
    return process.returncode, "".join(lines)


def count(files: list[Path]) -> Result:
    """Adds up reports of gtest and pytest."""
    result = Result()
    reasons: Counter[str] = Counter()
    for case in (case for file in files for case in ElementTree.parse(file).iter("testcase")):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
            result.why.append(f"failed: {name}")
        elif skipped is not None or case.get("status") == "notrun":
            result.skipped += 1
            reasons[(skipped.get("message") if skipped is not None else None) or "disabled"] += 1
        else:
            result.passed += 1
    result.why += [f"skipped {n}: {reason.splitlines()[0]}" for reason, n in reasons.items()]
    return result


def modules_with_tests() -> list[str]:
    return sorted({path.parent.name for path in ROOT.glob("medley/*/*_test.cpp")})


def sanitized_modules(nightly: bool) -> list[str]:
    chosen = [m for m in modules_with_tests() if nightly or m in SANITIZED]
    return [m for m in chosen if m not in torch_modules()]  # PyTorch is built without sanitizers


def plain_modules(nightly: bool) -> list[str]:
    return [m for m in modules_with_tests() if nightly or m not in SANITIZED]


def targets(modules: list[str]) -> list[str]:
    return [f"{module}_test" for module in modules]


def build(options: Options) -> Result:
    """Builds the test programs. Requires: the Python modules exist (`make build`)."""
    presets = {"torch": ["all"], "dev": targets(sanitized_modules(options.nightly))}
    if options.nightly:
        presets["tsan"] = targets(THREADED)
    else:
        presets["torch"] = [
            "testing_modules",
            *BENCHMARKS_TESTED,
            *targets(plain_modules(options.nightly)),
        ]

    def built(preset: str) -> bool:
        command = ["cmake", "--build", f"build/{preset}", "-j", str(options.jobs), "--target"]
        return not run([*command, *presets[preset]], f"build_{preset}")[0]

    # Cores that idle at the end of one preset compile the other. Nightly files compile alone.
    with ThreadPoolExecutor(1 if options.nightly else len(presets)) as pool:
        failed = [
            preset for preset, ok in zip(presets, pool.map(built, presets), strict=True) if not ok
        ]
    return failure(f"build/{failed[0]} cannot be built") if failed else Result()


def ctest(preset: str, options: Options, *choice: str) -> Result:
    reports = LOGS / f"unit_{preset}"
    shutil.rmtree(reports, ignore_errors=True)
    command = ["ctest", "--test-dir", f"build/{preset}", "-j", str(options.jobs)]
    command += ["--no-tests=error", "--timeout", "600", *choice]
    many = options.nightly and preset == "torch"  # under sanitizers they would take too long
    code, text = run(
        command,
        f"unit_{preset}",
        GTEST_OUTPUT=f"xml:{reports}/",
        MEDLEY_AGREEMENT_SEEDS=AGREEMENT_SEEDS_NIGHTLY if many else AGREEMENT_SEEDS,
        MEDLEY_REPLICAS_SEEDS=REPLICAS_SEEDS_NIGHTLY if many else REPLICAS_SEEDS,
        MEDLEY_NODE_LOSS_CLUSTERS=NODE_LOSS_CLUSTERS_NIGHTLY if many else NODE_LOSS_CLUSTERS,
        MEDLEY_GROUP_SEEDS=GROUP_SEEDS_NIGHTLY if many else GROUP_SEEDS,
        MEDLEY_ALL_SEEDS="1" if many else "",  # other random cases: a fifth of them
    )
    result = count(sorted(reports.glob("*.xml")))
    if code != 0 and not result.failed:
        crashed = re.findall(r"Test +#\d+: (\w+) \.*\**(?:Failed|Exc|Timeout|Not Run)", text)
        result.failed += max(1, len(crashed))
        result.why.append("died: " + (", ".join(crashed) or "ctest, see its output"))
    return result


def one_of(modules: list[str]) -> str:
    return f"^({'|'.join(modules)})$"


def unit(options: Options) -> Result:
    left_out = [] if options.nightly else ["-E", one_of([*SANITIZED, *LONG_TO_BUILD])]
    return ctest("torch", options, "-L", "unit", *left_out)


def sanitized(options: Options) -> Result:
    return ctest("dev", options, "-R", one_of(sanitized_modules(options.nightly)))


def tsan(options: Options) -> Result:
    if not options.nightly:
        return skip("nightly")
    return ctest("tsan", options, "-R", one_of(THREADED))


def golden(options: Options) -> Result:
    _, text = run([sys.executable, "scripts/golden.py", "--jobs", str(options.jobs)], "golden")
    found = re.search(r"(\d+) cases, (\d+) differ", text)
    if not found or found[1] == "0":
        return failure("no case ran")
    return Result(passed=int(found[1]) - int(found[2]), failed=int(found[2]))


def pytest(
    folder: str, marker: str, workers: int, log: str, *more: str, is_beside: bool = False
) -> Result:
    if not list((ROOT / folder).glob("**/test_*.py")):
        return failure(f"{folder} has no tests")
    report = LOGS / f"{log}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", folder, "-m", marker, f"--junitxml={report}"]
    command += more
    if workers > 1:
        command += ["-n", str(workers), "--dist", "worksteal"]
    # One thread each: the workers fill the machine.
    threads = 1 if workers > 1 or is_beside else os.cpu_count()
    code, text = run(command, log, is_beside, OMP_NUM_THREADS=str(threads))
    result = count([report] if report.exists() else [])
    if code == NOTHING_COLLECTED:
        return failure(f"{folder}: nothing is marked '{marker}'")
    if code != 0 and not result.failed:
        last = text.strip().splitlines()[-1] if text.strip() else "no output"
        return failure(f"pytest ended with {code}: {last}")
    return result


def both(first: Result, second: Result) -> Result:
    first.add(second)
    first.why += second.why
    return first


def skip_slow(why: str) -> Result:
    # Counted by the tier before, which collects them: python/tests/conftest.py.
    return Result(skipped=int(SLOW_COUNT.read_text()) if SLOW_COUNT.exists() else 0, why=[why])


def python(options: Options) -> Result:
    os.environ["MEDLEY_COUNT_SLOW"] = str(SLOW_COUNT)
    return pytest("python/tests", "not gpu and not multi and not slow", options.jobs, "python")


def slow(options: Options) -> Result:
    if not options.nightly:
        return skip_slow("nightly; random plans have 3 seeds here, 200 there, and larger models")
    os.environ["MEDLEY_PLAN_SEEDS"] = PLAN_SEEDS_NIGHTLY
    plans_of = "python/tests/test_random_plans.py"
    result = pytest("python/tests", "slow and not gpu", 1, "slow", f"--ignore={plans_of}")
    return both(result, pytest(plans_of, "not gpu", options.jobs, "slow_plans"))


def multi(options: Options) -> Result:
    marked = "not gpu and not idle" + ("" if options.nightly else " and not nightly")
    workers = 1 if options.is_beside else options.jobs
    return pytest("tests/multi", marked, workers, "multi", is_beside=options.is_beside)


def idle(options: Options) -> Result:
    marked = "idle" if options.nightly else "idle and not nightly"
    return pytest("tests/multi", marked, 1, "idle")


def gpu(options: Options) -> Result:
    code = subprocess.run(
        [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"],
        check=False,
    ).returncode
    if code:
        return skip("no CUDA device here")
    return both(
        pytest("python/tests", "gpu", 1, "gpu"),
        pytest("tests/multi", "gpu", 1, "gpu_multi"),
    )


def testbed(options: Options) -> Result:
    # Tests that build a cluster are skipped, with the reason, where that is not possible.
    marked = "testbed" if options.nightly else "not slow"
    return pytest("testbed/tests", marked, 1, "testbed", is_beside=options.is_beside)


def clang_tidy(options: Options) -> Result:
    if not options.nightly:
        return skip("nightly")
    listed = subprocess.run(
        ["git", "ls-files", "medley/*.cpp", "python/src/*.cpp"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    files = [file for file in listed.stdout.split() if not file.endswith("_test.cpp")]

    def check(file: str) -> int:
        done = subprocess.run(
            # The build uses g++, which has warnings that clang lacks.
            ["clang-tidy", "-p", "build/torch", "--quiet"]
            + ["--extra-arg=-Wno-unknown-warning-option", file],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=False,
        )
        print(done.stdout, end="", flush=True)
        return done.returncode

    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(check, files))
    wrong = [file for file, code in zip(files, codes, strict=True) if code]
    return Result(len(files) - len(wrong), len(wrong), why=[f"failed: {file}" for file in wrong])


def fuzz_one(target: str) -> tuple[str, str, str]:
    """Runs a target of libFuzzer. Returns its name, its statistics, and its failure, or ""."""
    corpus, found = LOGS / "corpus" / target, LOGS / "fuzz"
    for folder in (corpus, found):  # inputs of earlier runs are tried again
        folder.mkdir(parents=True, exist_ok=True)
    sources = ROOT / "tests" / "fuzz"
    command = [str(ROOT / "build" / "fuzz" / "bin" / f"{target}_fuzz")]
    command += [f"-max_total_time={FUZZ_SECONDS}", f"-timeout={FUZZ_INPUT_SECONDS}"]
    command += ["-max_len=8192", "-print_final_stats=1", f"-artifact_prefix={found}/{target}-"]
    if (words := sources / f"{target}.dict").exists():
        command.append(f"-dict={words}")
    folders = [str(corpus), str(sources / "corpus" / target)]
    done = subprocess.run(
        [*command, *folders],
        cwd=ROOT,
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
    )
    text = done.stdout + done.stderr
    log = LOGS / f"fuzz_{target}.log"
    log.write_text(" ".join(command + folders) + "\n" + text)
    executed = re.search(r"number_of_executed_units: (\d+)", text)
    runs = int(executed[1]) if executed else 0
    if done.returncode == 0 and runs:
        return target, f"{target}: {runs} inputs", ""
    left = re.search(r"Test unit written to (\S+)", text)
    reason = re.search(r"^(?:does not hold|SUMMARY|.*ERROR): .*", text, re.MULTILINE)
    wrong = f"{target}: {reason[0] if reason else f'ended with {done.returncode}'}"
    return target, f"{target}: {runs} inputs", f"{wrong}; input: {left[1] if left else log}"


def fuzz(options: Options) -> Result:
    """Builds the targets of tests/fuzz, and runs each for a minute."""
    if not options.nightly:
        return skip("nightly")
    if not shutil.which("clang++"):
        return skip("clang++, which has libFuzzer, is not installed: scripts/setup.sh --nightly")
    builds = [
        ["cmake", "--preset", "fuzz"],
        ["cmake", "--build", "--preset", "fuzz", "-j", str(options.jobs)],
    ]
    if any(run(command, f"build_fuzz_{i}")[0] for i, command in enumerate(builds)):
        return failure("build/fuzz cannot be built")
    targets = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("*.cpp"))
    with ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(fuzz_one, targets))
    for _, what, wrong in done:
        print(what, wrong, flush=True)
    wrong = [wrong for _, _, wrong in done if wrong]
    return Result(len(done) - len(wrong), len(wrong), why=wrong or [what for _, what, _ in done])


def oracles(options: Options) -> Result:
    """Compares Medley's results with those of other programs (tests/oracles)."""
    if not options.nightly:
        return skip("nightly")
    if run(["cmake", "--preset", "torch"], "configure_oracles")[0]:
        return failure("build/torch cannot be configured")
    command = ["cmake", "--build", "build/torch", "-j", str(options.jobs), "--target", "oracles"]
    if run(command, "build_oracles")[0]:
        return failure("the target oracles cannot be built")
    result = Result()
    for name, package in ORACLES.items():
        program = ROOT / "build" / "torch" / "bin" / f"{name}_oracle"
        if not program.exists():
            why = f"{name}: {package} is not installed: scripts/setup.sh --nightly"
            result.add(Result(skipped=1))
            result.why.append(why)
            continue
        report = LOGS / f"oracle_{name}.xml"
        code, text = run([str(program), f"--gtest_output=xml:{report}"], f"oracle_{name}")
        one = count([report] if report.exists() else [])
        if code and not one.failed:
            one = failure(f"{name}: ended with {code}")
        result.add(one)
        result.why += one.why + re.findall(r"^\d+ \w+ .*compared.*", text, re.MULTILINE)
    return result


def wheel(options: Options) -> Result:
    """Makes the wheel, and others for the oldest and the newest PyTorch, and tries all."""
    if not options.nightly:
        return skip("nightly")
    if run(["make", "wheel"], "make_wheel")[0]:
        return failure("make wheel")
    code, text = run([sys.executable, "scripts/try_wheel.py", "--all"], "try_wheel")
    said = re.findall(r"^PyTorch [^:]*: .* took \d+ s", text, re.MULTILINE)
    return failure("scripts/try_wheel.py") if code else Result(passed=len(said), why=said)


def zoo(options: Options) -> Result:
    """Compares public models with PyTorch (benchmarks/zoo): no wrong or missing result."""
    if not options.nightly:
        return skip("nightly")
    command = [sys.executable, "-m", "benchmarks.zoo", "--kept", "benchmarks/results/zoo.jsonl"]
    code, text = run(command, "zoo")
    found = Counter(
        re.findall(r"^[\w, ]+? .*?: (exact|refused|wrong|crashed)\b", text, re.MULTILINE)
    )
    result = Result(found["exact"], found["wrong"] + found["crashed"])
    if code and not result.failed:
        result.failed = 1
    result.why = re.findall(r"^lost: .*|^.*: (?:wrong|crashed); .*", text, re.MULTILINE)
    result.why.append(f"{found['refused']} refused, as docs/models.md says")
    return result


TIERS: list[tuple[str, Callable[[Options], Result]]] = [
    ("build", build),
    ("unit", unit),
    ("unit, ASan+UBSan", sanitized),
    ("unit, TSan", tsan),
    ("golden", golden),
    ("python", python),
    ("multi", multi),
    ("multi, idle", idle),
    ("slow", slow),
    ("gpu", gpu),
    ("testbed", testbed),
    ("fuzz", fuzz),
    ("oracles", oracles),
    ("wheel", wheel),
    ("zoo", zoo),
    ("clang-tidy", clang_tidy),
]
# Tiers whose processes are idle half of the time. They run in sequence, in parallel with the tier
# python. Their nightly tests fill a machine and run alone.
BESIDE_PYTHON = ("multi", "testbed")


def timed(tier: Callable[[Options], Result], options: Options) -> tuple[Result, float]:
    start = time.monotonic()
    return tier(options), time.monotonic() - start


def run_tiers(options: Options, only: str | None, builds: bool) -> list[Row]:
    """Runs the tiers in their order, and none after a failed build."""
    rows: list[Row] = []
    begun: dict[str, Future[tuple[Result, float]]] = {}
    with ThreadPoolExecutor(1) as beside:
        for name, tier in TIERS:
            if only not in (None, name) or (tier is build and not builds):
                continue
            if tier is python and not only and not options.nightly:
                with_one = dataclasses.replace(options, is_beside=True)
                begun = {
                    other: beside.submit(timed, run_it, with_one)
                    for other, run_it in TIERS
                    if other in BESIDE_PYTHON
                }
            result, seconds = begun[name].result() if name in begun else timed(tier, options)
            rows.append((name, result, seconds))
            if tier is build and result.failed:
                break
    return rows


def longest_cases() -> list[str]:
    """Returns the test cases of this run that took longest, from the reports of pytest."""
    cases = []
    for report in LOGS.glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            cases.append((float(case.get("time") or 0), f"{report.stem}: {name}"))
    return [f"{seconds:7.1f} s  {name}" for seconds, name in sorted(cases)[-LONGEST_CASES:][::-1]]


def keep(rows: list[Row], total: float, nightly: bool) -> None:
    """Adds this run to the history of seconds."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    history = json.loads(SECONDS.read_text()) if SECONDS.exists() else []
    entry = {
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "nightly": nightly,
        "failed": sum(result.failed for _, result, _ in rows),
        "seconds": {name: round(seconds, 1) for name, _, seconds in rows},
        "total": round(total, 1),
    }
    SECONDS.write_text(json.dumps([*history, entry][-RUNS_KEPT:], indent=1) + "\n")


def too_long(total: float, rows: list[Row], nightly: bool) -> str:
    """Returns the message for a run over its time limit, or ""."""
    limit = float(os.environ.get("MEDLEY_TEST_LIMIT") or (0 if nightly else LIMIT_MINUTES))
    if not 0 < 60 * limit < total:
        return ""
    most = sorted(rows, key=lambda row: -row[2])[:3]
    return (
        f"found {total / 60:.1f} minutes, expected at most {limit:g} (MEDLEY_TEST_LIMIT); longest: "
        + ", ".join(f"{name} {seconds:.0f} s" for name, _, seconds in most)
    )


def finish(rows: list[Row], total: float, nightly: bool) -> int:
    """Sums up, and stores the seconds of a run of all tiers. Returns the exit status."""
    print(f"\n{'Summary':<28}passed failed skipped")
    sum_of = Result()
    for name, result, seconds in rows:
        counts = f"{result.passed:>6} {result.failed:>6} {result.skipped:>7}"
        print(f"  {name:<18}{result.status:<8}{counts}  {seconds:6.1f} s  {'; '.join(result.why)}")
        sum_of.add(result)
    slow = ""
    if total:
        print("\n".join(["Longest:", *longest_cases()]))
        keep(rows, total, nightly)
        slow = too_long(total, rows, nightly)
        warning = "" if os.environ.get("MEDLEY_TEST_LIMIT") else "warning: "
        print(f"{total / 60:.1f} minutes in all" + (f"; {warning}{slow}" if slow else ""))
        slow = "" if warning else slow
    print(f"{sum_of.passed} passed, {sum_of.failed} failed, {sum_of.skipped} skipped")
    return int(sum_of.failed > 0 or bool(slow))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--nightly", action="store_true", help="the long tiers too")
    parser.add_argument("--only", help="name of one tier", choices=[name for name, _ in TIERS])
    parser.add_argument(
        "--build", action="store_true", help="build the programs of the tests first"
    )
    parser.add_argument(
        "--since", type=float, default=time.time(), help="when the run began, in seconds since 1970"
    )
    args = parser.parse_args()

    # Hundreds of processes import PyTorch: cached bytecode avoids recompiling it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    LOGS.mkdir(parents=True, exist_ok=True)
    for report in LOGS.glob("*.xml"):
        report.unlink()
    rows: list[Row] = [("before", Result(), time.time() - args.since)] if args.build else []
    rows += run_tiers(Options(args.jobs, args.nightly), args.only, args.build)
    return finish(rows, 0 if args.only else time.time() - args.since, args.nightly)


if __name__ == "__main__":
    sys.exit(main())
