"""The documentation as a site. The navigation has every page, and a broken link ends the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [
    "Is it for me?",
    "Install",
    "On a laptop",
    "On two machines",
    "My model",
    "Strategies",
    "Troubles",
    "Concepts",
    "Formats",
    "Reference",
    "Internals",
]
ADDED = {"index.md", "internals/code.md"}  # by scripts/docs_site.py


def navigation() -> Any:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


def pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for each in entry.values() if isinstance(entry, dict) else ():
        yield from pages_of(each)
    for each in entry if isinstance(entry, list) else ():
        yield from pages_of(each)


def test_the_navigation_has_every_page_once() -> None:
    found = sorted(pages_of(navigation()))
    docs = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    missing = "add them to `nav` of mkdocs.yml"
    assert sorted(docs - set(found)) == [], missing
    assert found == sorted(docs | ADDED)


def test_the_navigation_begins_with_the_questions_of_a_newcomer() -> None:
    assert [section for entry in navigation() for section in entry] == SECTIONS


def test_wheels_have_one_version() -> None:
    versions: dict[str, set[str]] = {}
    for name in ("requirements.txt", "requirements-all.txt", "requirements-docs.txt"):
        for wheel, version in re.findall(r"^([\w.\-]+)==(\S+)", (ROOT / name).read_text(), re.M):
            key = re.sub(r"[-_.]+", "-", wheel).lower()
            versions.setdefault(key, set()).add(version)
    assert {wheel: found for wheel, found in versions.items() if len(found) > 1} == {}


# --- with mkdocs ----------------------------------------------------------------------------------


@pytest.fixture
def site() -> Any:
    for name in ("mkdocs", "material", "pymdownx", "latex2mathml"):
        pytest.importorskip(name, reason="make docs installs it")
    import docs_site

    return docs_site


def test_links_lead_to_pages_copies_or_the_repository(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[a](plan.md#b) [c](../../medley/README.md#d) [e](../../LICENSE) [f](nowhere.md)"
    monkeypatch.delenv("MEDLEY_REPOSITORY", raising=False)
    assert site.linked("formats/cluster.md", text) == (
        "[a](plan.md#b) [c](../internals/code.md#d) [e](../files/LICENSE.txt) [f](nowhere.md)"
    )
    assert site.linked("index.md", "[a](docs/formats/plan.md#b) [c](docs/formats)") == (
        "[a](formats/plan.md#b) [c](formats/cluster.md)"
    )
    monkeypatch.setenv("MEDLEY_REPOSITORY", "https://example.org/medley/")
    assert "[e](https://example.org/medley/blob/main/LICENSE)" in site.linked(
        "formats/cluster.md", text
    )


def test_lists_and_fences_are_those_of_python_markdown(site: Any) -> None:
    text = (
        "- a\n  b\n\n  ```yaml c.yaml\n  [d](e.md)\n  ```\n1. f\n   g\n\n```python h.py\n  i\n```\n"
    )
    assert site.adapted("faq.md", text) == (
        '- a\n    b\n\n    ```yaml title="c.yaml"\n    [d](e.md)\n    ```\n1. f\n    g\n\n'
        '```python title="h.py"\n  i\n```\n'
    )


def build(folder: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    env = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_the_site_is_built_and_a_broken_link_ends_the_build(site: Any, tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if path.name not in ("docs", "scripts", "build") and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "scripts").mkdir()
    for name in ("docs_site.py", "doc_commands.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    code, output = build(tmp_path)
    assert code == 0, output
    pages = list((tmp_path / "build" / "site").glob("**/*.html"))
    assert len(pages) > len(list(pages_of(navigation())))  # with that of errors
    assert not [page for page in pages if 'class="arithmatex"' in page.read_text()]
    assert (tmp_path / "build" / "site" / "search" / "search_index.json").exists()

    with (tmp_path / "docs" / "faq.md").open("a") as file:
        file.write("\n[a](tour.md#no-such-anchor) [b](nowhere.md) [c](../medley/none.h)\n")
    (tmp_path / "docs" / "alone.md").write_text("# Alone\n")
    code, output = build(tmp_path)
    assert code != 0
    for name in ("no-such-anchor", "nowhere.md", "../medley/none.h", "alone.md"):
        assert name in output
