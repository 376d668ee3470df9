"""The check of prose finds each violation, at its line, and lets correct prose pass."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import check_prose

GOOD = "The planner writes one plan. You read it with a single command."


def words(number: int) -> str:
    """Returns a sentence of this many words."""
    return "The " + "word " * (number - 2) + "ends."


def problems(text: str) -> list[str]:
    return check_prose.problems_of(check_prose.figures_of(check_prose.page(text)))


VIOLATIONS = {
    "long sentences": (f"{GOOD}\n\n{words(31)}", "have more than 30 words"),
    "a very long sentence": (f"{(GOOD + chr(10)) * 20}\n{words(46)}", "have more than 45 words"),
    "what": (f"{GOOD} It prints what it finds.", "`what` per 1,000"),
    "who": (f"{GOOD} The person who reads it decides.", "`who` per 1,000"),
    "an opener": (f"{GOOD} Of these plans one is best.", "begin with What"),
    "a banned word": (f"{GOOD} The devices are alike today.", "nobody, somebody"),
    "a long line": (f"{GOOD} {'x' * 60}", "lines have more than 100"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_finds_each_violation(name: str) -> None:
    text, expected = VIOLATIONS[name]
    assert any(expected in problem for problem in problems(text))


def test_accepts_good_prose() -> None:
    assert not problems(GOOD)
    assert not problems("| What | who |\n\n# What you get\n\n```\nnobody\n```\n\n`who` is read.")
    assert not problems(f"{GOOD} [Its page](https://example.org/{'x' * 80}) has the rest.")


def test_a_sentence_ends_before_a_capital() -> None:
    lines = [(1, "One sentence ends here. Another, e.g. `This one, takes"), (2, "two lines.")]
    found = check_prose.sentences(
        [*lines, (3, ""), (4, "- first item here"), (5, "1. second it is")]
    )
    assert [(each.line, each.text) for each in found] == [
        (1, "One sentence ends here."),
        (1, "Another, e.g. `This one, takes two lines."),
        (4, "first item here"),
        (5, "second it is"),
    ]


def test_a_question_may_begin_with_any_word() -> None:
    assert check_prose.OPENER.match("Where a device fails, the run stops.")
    assert not check_prose.OPENER.match("Where are the logs?")
    assert not check_prose.OPENER.match("Sometimes it fails.")


def test_reads_comments_of_cpp() -> None:
    text = (
        '#include "a.h"\n// Returns the sum of two\n// large values.\n//\n//    a drawing of it\n'
        'auto url = "http://not.a/comment";  // in bytes of memory\n// NOLINTNEXTLINE of this one\n'
    )
    found = check_prose.cpp(text).sentences
    assert [(each.line, each.text) for each in found] == [
        (2, "Returns the sum of two large values."),
        (6, "in bytes of memory"),
    ]


def test_reads_comments_and_docstrings_of_python() -> None:
    text = (
        '"""Adds two large values."""\n\n\ndef f():\n    """Returns the sum. Requires\n'
        '    two values.\n    """\n    return 1  # noqa: not a sentence\n'
        "# One comment has\n# two lines here.\n"
    )
    found = check_prose.python(text).sentences
    assert [(each.line, each.text) for each in found] == [
        (1, "Adds two large values."),
        (5, "Returns the sum."),
        (5, "Requires two values."),
        (9, "One comment has two lines here."),
    ]


def test_the_readme_may_not_grow() -> None:
    prose = check_prose.page(GOOD)
    prose.readme_words = 1_201
    assert "1201 words in README.md, expected at most 1200" in check_prose.problems_of(
        check_prose.figures_of(prose)
    )


def test_a_pending_entry_that_passes_has_to_go() -> None:
    bad = check_prose.page("Nobody reads this page. The devices are alike.")
    files = {"docs/good.md": check_prose.page(GOOD), "docs/bad/page.md": bad}
    assert not check_prose.check(files, ["docs/bad"])
    assert check_prose.check(files, ["docs/bad", "docs/good.md"]) == [
        "docs/good.md: passes: remove it from PENDING"
    ]
    assert check_prose.check(files, ["docs/*.md", "docs/none.md"]) == [
        "docs/none.md: passes: remove it from PENDING"
    ]
    found = check_prose.check(files, [])
    assert found[-1] == "pages: see --show docs/bad/page.md"


def test_counts_wide_lines_of_code_apart() -> None:
    prose = check_prose.page(f"{GOOD}\n\n```console\n{'x' * 101}\n```\n| {'x' * 101} |")
    assert [number for number, _ in prose.wide_code] == [4] and not prose.wide
    assert not check_prose.problems_of(check_prose.figures_of(prose))


def test_shows_the_place_of_each_violation() -> None:
    wide = "x" * 101
    text = f"{GOOD}\n\nNobody reads this page\nwhat ever it says.\n{wide}"
    assert list(check_prose.shown("a.md", check_prose.page(text))) == [
        f"a.md:3: nobody first, what, nobody: Nobody reads this page what ever it says. {wide}",
        "a.md:5: 101 columns",
    ]


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ("planner: stop pruning searches at a 10 % gap", True),
        ("sim, planner: find equal micro-batches in one place", True),
        ("Merge branch 'main'", True),
        ("fixup! docs: name the module", True),
        ("Stop pruning searches", False),
        ("planner:stop", False),
        ("", False),
        (f"planner: {'x' * 64}", False),
    ],
)
def test_checks_the_subject_of_a_commit(subject: str, is_right: bool) -> None:
    found = check_prose.message_problems(f"{subject}\n\n{'A long body. ' * 20}\n# a comment")
    assert bool(found) != is_right


def test_the_hook_refuses_a_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> int:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    check_prose.install_hook(tmp_path)
    assert not (tmp_path / ".git").exists()
    assert git("init") == 0
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "check_prose.py").symlink_to(check_prose.__file__)
    check_prose.install_hook(tmp_path)
    assert git("commit", "--allow-empty", "-m", "no module here") != 0
    assert git("commit", "--allow-empty", "-m", "docs: name the module") == 0


def test_the_hook_leaves_another_one_as_it_is(tmp_path: Path) -> None:
    hook = tmp_path / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(parents=True)
    hook.write_text("another")
    check_prose.install_hook(tmp_path)
    assert hook.read_text() == "another"
