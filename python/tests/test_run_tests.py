"""scripts/run_tests.py: it stores times, and reports a run that takes too long."""

import json
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import run_tests  # noqa: E402

ROWS = [
    ("before", run_tests.Result(), 200.0),
    ("unit", run_tests.Result(passed=3), 90.0),
    ("python", run_tests.Result(passed=5, skipped=1, why=["skipped 1: no CUDA"]), 700.0),
]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(run_tests, "SECONDS", tmp_path / "seconds.json")
    monkeypatch.delenv("MEDLEY_TEST_LIMIT", raising=False)
    return tmp_path


def test_a_slow_run_warns_and_fails_only_beyond_a_limit_that_is_set(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_tests.finish(ROWS, 20 * 60.0, nightly=False) == 0
    assert "warning" not in capsys.readouterr().out
    assert run_tests.finish(ROWS, 20 * 60 + 1.0, nightly=False) == 0
    said = capsys.readouterr().out
    assert "; warning: found 20.0 minutes, expected at most 20 (MEDLEY_TEST_LIMIT)" in said
    assert "; longest: python 700 s, before 200 s" in said
    monkeypatch.setenv("MEDLEY_TEST_LIMIT", "30")
    assert run_tests.finish(ROWS, 29 * 60.0, nightly=False) == 0
    assert run_tests.finish(ROWS, 31 * 60.0, nightly=False) == 1


def test_nightly_tiers_have_no_default_limit(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tests.finish(ROWS, 5 * 3600.0, nightly=True) == 0
    monkeypatch.setenv("MEDLEY_TEST_LIMIT", "60")
    assert run_tests.finish(ROWS, 5 * 3600.0, nightly=True) == 1


def test_seconds_of_each_run_are_kept(logs: Path) -> None:
    for total in (900.0, 1000.0):
        run_tests.finish(ROWS, total, nightly=False)
    run_tests.finish(ROWS[1:2], 0, nightly=False)  # one tier alone is no run
    kept = json.loads((logs / "seconds.json").read_text())
    assert [run["total"] for run in kept] == [900.0, 1000.0]
    assert kept[0]["seconds"] == {"before": 200.0, "unit": 90.0, "python": 700.0}
    assert kept[0]["failed"] == 0


def test_cases_that_took_longest_are_named(logs: Path) -> None:
    (logs / "python.xml").write_text(
        '<testsuite><testcase classname="a" name="fast" time="0.1"/>'
        '<testcase classname="a" name="slow" time="31.5"/></testsuite>'
    )
    assert run_tests.longest_cases()[0].split() == ["31.5", "s", "python:", "a.slow"]


# Modules of SANITIZED are built and run once. All are tested.
def test_every_module_is_tested_once() -> None:
    plain, sanitized = run_tests.plain_modules(False), run_tests.sanitized_modules(False)
    assert sorted(plain + sanitized) == run_tests.modules_with_tests()
    assert run_tests.plain_modules(True) == run_tests.modules_with_tests()


# Both run in parallel: a core that idles at the end of one compiles the other.
def test_all_presets_are_built_and_the_one_that_cannot_be_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def run(command: list[str], log: str) -> tuple[int, str]:
        asked.append(log)
        return int(log == "build_dev"), ""

    monkeypatch.setattr(run_tests, "run", run)
    result = run_tests.build(run_tests.Options(jobs=2, nightly=False))
    assert sorted(asked) == ["build_dev", "build_torch"]
    assert (result.failed, result.why) == (1, ["build/dev cannot be built"])


def fuzz_target(root: Path, script: str) -> None:
    program = root / "build" / "fuzz" / "bin" / "plan_fuzz"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)


def test_a_finding_of_libfuzzer_fails_with_the_path_of_its_input(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    said = "==7== ERROR: libFuzzer: deadly signal\\nTest unit written to /found/plan-crash-1"
    fuzz_target(tmp_path, f'echo "does not hold: equal"; echo "{said}" >&2; exit 77')
    _, _, wrong = run_tests.fuzz_one("plan")
    assert wrong == "plan: does not hold: equal; input: /found/plan-crash-1"


def test_a_target_of_libfuzzer_that_tried_nothing_fails(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    fuzz_target(tmp_path, "exit 0")
    assert run_tests.fuzz_one("plan")[2].startswith("plan: ended with 0; input: ")
    (tmp_path / "build/fuzz/bin/plan_fuzz").write_text(
        "#!/bin/sh\necho stat::number_of_executed_units: 512"
    )
    assert run_tests.fuzz_one("plan")[1:] == ("plan: 512 inputs", "")


def test_an_oracle_that_is_not_installed_is_skipped_in_words(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "run", lambda *_: (0, ""))
    result = run_tests.oracles(run_tests.Options(jobs=1, nightly=True))
    assert (result.status, result.skipped) == ("skipped", 2)
    assert result.why[1] == "simgrid: libsimgrid-dev is not installed: scripts/setup.sh --nightly"


def test_waiting_tiers_run_in_parallel_and_report_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    multi_began, seen = threading.Event(), []

    def python(options: run_tests.Options) -> run_tests.Result:
        assert multi_began.wait(60), "multi waits for python"
        seen.append(("python", options.is_beside))
        return run_tests.Result(passed=1)

    def multi(options: run_tests.Options) -> run_tests.Result:
        multi_began.set()
        seen.append(("multi", options.is_beside))
        return run_tests.Result(failed=1)

    monkeypatch.setattr(run_tests, "python", python)
    tiers = [("python", python), ("slow", run_tests.slow), ("multi", multi)]
    monkeypatch.setattr(run_tests, "TIERS", tiers)
    rows = run_tests.run_tiers(run_tests.Options(2, nightly=False), None, builds=False)
    assert [(name, result.failed) for name, result, _ in rows] == [
        ("python", 0),
        ("slow", 0),
        ("multi", 1),
    ]
    assert seen == [("multi", True), ("python", False)]
    seen.clear()
    run_tests.run_tiers(run_tests.Options(2, nightly=False), "multi", builds=False)
    assert seen == [("multi", False)]
