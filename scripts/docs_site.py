"""Hooks of mkdocs for the pages of docs/, which are written for GitHub.

README.md and medley/README.md become pages. MEDLEY_REPOSITORY may have the address of the
repository (https://host/owner/name). A link to a file outside of docs/ leads there, else to a copy
of the file in the site. A link to a file that does not exist stays as it is, so that mkdocs warns.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parent.parent
# Pages of the site that are not in docs/.
ADDED = {"index.md": "README.md", "internals/code.md": "medley/README.md"}
BRANCH = "main"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=[^)]*\))")
FENCE = re.compile(r"^(\s*```\w+) ([\w.\-]+)$")
EQUATION = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>',
    re.DOTALL,
)
MARKER = re.compile(r"([-*]|\d+\.) +")


def source_of(page: str) -> str:
    """Returns the file of a page of the site, from the root of the repository."""
    return ADDED.get(page, f"docs/{page}")


def page_of(source: str) -> str | None:
    """Returns the place in the site of a file of the repository, None if it has none."""
    for page, added in ADDED.items():
        if source == added:
            return page
    if not source.startswith("docs/"):
        return None
    page = source.removeprefix("docs/")
    if (ROOT / source).is_dir():  # its first page in the navigation
        first = re.search(rf"\b{page}/[\w.\-]+\.md", (ROOT / "mkdocs.yml").read_text())
        return first[0] if first else page
    return page


def copy_of(source: str) -> str:
    """Returns the place in the site of the copy of a file outside of docs/."""
    return f"files/{source.rstrip('/')}.txt"


def repository() -> str:
    """Returns the address of the repository, "" if it has none."""
    return os.environ.get("MEDLEY_REPOSITORY", "").rstrip("/")


def target_of(source: str, link: str) -> str:
    """Returns the file to which a link of a file leads, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def outside(source: str, text: str) -> Iterator[str]:
    """Yields the files of the repository to which a text links and that are no pages."""
    for link in LINK.finditer(text):
        target = target_of(source, link[1])
        if page_of(target) is None and not target.startswith("..") and (ROOT / target).exists():
            yield target


def linked(page: str, text: str) -> str:
    """Returns the text of a page with its links as they are in the site."""
    source = source_of(page)

    def replace(link: re.Match[str]) -> str:
        target, anchor = target_of(source, link[1]), link[2] or ""
        found = page_of(target)
        if found is not None:
            return posixpath.relpath(found, posixpath.dirname(page) or ".") + anchor
        if target.startswith("..") or not (ROOT / target).exists():
            return link[0]
        if address := repository():
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{address}/{kind}/{BRANCH}/{target}{anchor}"
        return posixpath.relpath(copy_of(target), posixpath.dirname(page) or ".")

    return LINK.sub(replace, text)


def adapted(page: str, text: str) -> str:
    """Returns the text of a page for Python-Markdown. Its lists need four spaces of indentation.
    The file name of a fence is a title."""
    lines, fenced, shift = [], False, 0
    for line in text.splitlines():
        begins = line.lstrip().startswith("```")
        if not line.startswith(" ") and not fenced and line:
            marker = MARKER.match(line)
            shift = 4 - len(marker[0]) if marker else 0
        if begins and not fenced:
            line = FENCE.sub(r'\1 title="\2"', line)
        if not fenced and not begins:
            line = linked(page, line)
        if begins:
            fenced = not fenced
        lines.append(" " * max(0, shift) + line if line.startswith("  ") else line)
    return "\n".join(lines) + "\n"


# --- hooks ----------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Anchors are those of GitHub."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.repo_url = repository() or None
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/, and copies of files."""
    for page, source in ADDED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    if repository():
        return files
    pages = [file.src_uri for file in files.documentation_pages()]
    wanted = {
        target
        for page in pages
        for target in outside(source_of(page), (ROOT / source_of(page)).read_text())
    }
    for target in sorted(wanted):
        path = ROOT / target
        if path.is_dir():
            content = "\n".join(sorted(each.name for each in path.iterdir())) + "\n"
        else:
            content = path.read_text(errors="replace")
        files.append(File.generated(config, copy_of(target), content=content))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Writes equations as MathML, which browsers draw without a script."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return str(convert(unescape(found[2]), display=display))

    return EQUATION.sub(drawn, html)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapts the text of each page."""
    return adapted(page.file.src_uri, markdown)
