"""The documentation: its commands print the shown output, and its links exist."""

import difflib
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import api_reference  # noqa: E402
import cli_reference  # noqa: E402
import doc_commands  # noqa: E402
import medley  # noqa: E402

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / each / "README.md" for each in ("medley", "benchmarks", "examples", "testbed")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")
CODE_PATH = re.compile(r"`((?:medley|python|data|docs|tests|scripts|examples)/[\w./\-]+\.\w+)`")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Pages whose commands train or measure for long.
LONG = (
    "write_a_plan.md",
    "report.md",
    "profile.md",
    "fits.md",
    "adapters.md",
    "quickstart_two_machines.md",
)
COMMANDS = [
    pytest.param(path, marks=[pytest.mark.slow] if path.name in LONG else [], id=name(path))
    for path in doc_commands.pages()
]


@pytest.mark.parametrize("path", COMMANDS)
def test_commands_do_what_the_page_says(path: Path) -> None:
    page = doc_commands.run_page(path)
    assert not page.problems, "\n\n".join(page.problems)


# The later ones plan for more devices, and take longer: nightly.
EXAMPLES = [
    pytest.param(path, marks=[pytest.mark.slow] if path.name >= "04" else [], id=name(path))
    for path in sorted(ROOT.glob("examples/[0-9]*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    for file in ROOT.glob("examples/*.yaml"):
        shutil.copy(file, tmp_path)
    code, lines = doc_commands.run_command(f"python {path}", tmp_path)
    assert code == 0, "\n".join(lines)


def test_a_script_of_transformers_changes_by_the_lines_that_are_shown() -> None:
    names = ("hugging_face_before.py", "07_hugging_face_script.py")
    scripts = [(ROOT / "examples" / each).read_text().splitlines() for each in names]
    found = list(difflib.unified_diff(*scripts, n=0, lineterm=""))[2:]
    code = [line for line in found if line[0] in "+-" and line[1:] and '"""' not in line]
    shown = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert shown is not None and shown[1].splitlines() == code and len(code) <= 6


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text()
    missing = [link for link in LINK.findall(text) if not (path.parent / link).exists()]
    missing += [code for code in CODE_PATH.findall(text) if not (ROOT / code).exists()]
    assert not missing


def anchors(path: Path) -> set[str]:
    """Returns the anchors that the headings of a page get."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_anchors_exist(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)#([\w\-]+)\)", path.read_text())
    targets = [(path.parent / page if page else path, anchor) for page, anchor in links]
    pages = [(page, anchor) for page, anchor in targets if page.suffix == ".md"]
    assert not [f"{page}#{anchor}" for page, anchor in pages if anchor not in anchors(page)]


def test_the_api_reference_is_current() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_reference.page(medley)


def test_the_reference_of_the_command_line_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == cli_reference.page()


# Every folder of the core has its paragraph in the map.
def test_the_map_of_the_folders_is_complete() -> None:
    text = (ROOT / "medley" / "README.md").read_text()
    folders = sorted(p.name for p in (ROOT / "medley").iterdir() if (p / "CMakeLists.txt").exists())
    assert re.findall(r"^\*\*(\w+)\*\*", text, re.M) and folders
    assert set(re.findall(r"^\*\*(\w+)\*\*", text, re.M)) == set(folders)


def test_the_page_of_refusals_quotes_the_sources() -> None:
    files = sorted((ROOT / "python" / "medley").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))
    joined = re.sub(r"\{[^{}]*\}", "{}", joined)
    quoted = re.findall(r'"([^"`|]{10,})"', (ROOT / "docs" / "howto" / "refused.md").read_text())
    assert len(quoted) > 15 and not [each for each in quoted if each not in joined]
