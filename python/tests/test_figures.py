"""The figures of the documentation are those that scripts/figures.py draws."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import figures
import medley
from medley_extras.models import gpt

MOST_BYTES = 40_000


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("figures") / "g.graph"
    path.write_text(medley.capture(*gpt()).text())
    return figures.figures(path)


@pytest.mark.parametrize("name", ["architecture.svg", "timelines.svg"])
def test_the_file_is_current(drawn: dict[str, str], name: str) -> None:
    found = (figures.FOLDER / name).read_text()
    assert found == drawn[name], "run scripts/figures.py"
    assert len(found) <= MOST_BYTES


@pytest.mark.parametrize("name", ["architecture.svg", "timelines.svg"])
def test_the_file_is_an_svg_for_light_and_dark_pages(name: str) -> None:
    text = (figures.FOLDER / name).read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text and 'class="paper"' in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


# Estimated: a browser may not be here. The widest text of these lengths fits in a box.
def test_texts_fit_in_their_boxes() -> None:
    for _, _, _, first, second, folders in figures.BOXES:
        assert max(len(first), len(second)) <= 25 and len(folders) <= 21


def test_the_boxes_name_folders_of_the_code() -> None:
    core = Path(figures.ROOT) / "medley"
    for *_, folders in figures.BOXES:
        for name in folders.split(", "):
            assert (core / name).is_dir() or (figures.ROOT / name).is_dir(), name
