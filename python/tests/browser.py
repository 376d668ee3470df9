"""A headless browser for tests of pages. It draws a page at some widths, light or dark, and
measures it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
HEIGHT = 900

# Each page measures itself when its figures are drawn, and posts the result to the page around it.
PROBE = """
<script>
const visible = (element) => {
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0 && element.checkVisibility({opacityProperty: true})
    && !element.closest("defs, #js-plotly-tester, .hoverlayer");
};
const all = (what) => Array.from(document.querySelectorAll(what)).filter(visible);
const say = (element) =>
  `${element.tagName} ${element.getAttribute("class") || ""} ${element.textContent.slice(0, 40)}`;
function overlaps(elements) {
  const boxes = elements.map((element) => [element, element.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (x > 2 && y > 2) found.push(`${say(a)} | ${say(b)}`);
  }));
  return found;
}
function luminance(color) {
  const [r, g, b] = color.match(/[\\d.]+/g).map((v) => v / 255).map(
    (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function background(element) {
  for (let e = element; e; e = e.parentElement) {
    const color = getComputedStyle(e).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)") return luminance(color);
  }
  return 1;
}
function contrast(element) {
  const style = getComputedStyle(element);
  const ink = luminance(element.closest("svg") ? style.fill : style.color);
  const paper = background(element);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}
function measure() {
  const edge = document.documentElement.clientWidth;
  const beyond = all("body *").filter((element) => {
    if (element.closest("svg") && !["svg", "text"].includes(element.tagName)) return false;
    const box = element.getBoundingClientRect();
    return box.right > edge + 1 || box.left < -1;
  });
  const rows = {};
  for (const tile of all(".tile")) {
    const box = tile.getBoundingClientRect();
    (rows[Math.round(box.top)] ||= []).push(Math.round(box.right));
  }
  const parts = all("section, .figure-legend, .js-plotly-plot");
  const texts = all(".ytick text, .ytick2 text, .xtick text, .xtitle, .ytitle, .annotation text, " +
    "svg.cluster text, p, h1, h2, td, nav a, .figure-legend button");
  const links = Array.from(document.querySelectorAll("nav.contents a"), (link) => {
    link.click();
    const target = document.getElementById(link.hash.slice(1));
    const top = target ? target.getBoundingClientRect().top : 1e9;
    const atEnd = scrollY + innerHeight > document.documentElement.scrollHeight - 2;
    return [link.hash, location.hash === link.hash && top > -2 && (top < 40 || atEnd)];
  });
  scrollTo(0, 0);
  return {
    error: document.body.dataset.error || "",
    drawn: +document.body.dataset.drawn,
    wide: document.documentElement.scrollWidth > edge,
    beyond: beyond.map(say),
    overlaps: all("section").flatMap((section) => overlaps(
      Array.from(section.querySelectorAll("svg text, .figure-legend button")).filter(visible)
        .filter((text) => text.textContent.trim() && !text.querySelector("text")))),
    sections: all("section").map((section) => section.id),
    tops: Object.fromEntries(all("section, .tiles, nav.contents, .banner").map(
      (element) => [element.id || element.className, element.getBoundingClientRect().top])),
    tiles: Object.values(rows),
    legends: all(".figure-legend").map((legend) => legend.offsetHeight
      / (legend.offsetHeight + legend.parentElement.querySelector(".plot").offsetHeight)),
    faint: texts.filter((text) => contrast(text) < 3.5).map(say),
    paper: getComputedStyle(document.body).backgroundColor,
    links,
  };
}
const poll = setInterval(() => {
  if (!document.body.dataset.drawn && !document.body.dataset.error) return;
  clearInterval(poll);
  parent.postMessage({name: window.name, found: measure()}, "*");
}, 50);
</script>
"""
AROUND = """<!doctype html><body>%s<pre id="measured"></pre><script>
const measured = {};
onmessage = (event) => {
  measured[event.data.name] = event.data.found;
  document.getElementById("measured").textContent = JSON.stringify(measured);
};
</script></body>"""


def find() -> str:
    """Returns a browser of this machine; skips the test if there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no headless browser: apt-get install chromium")
    return found


def dump(page: Path, folder: Path, *more: str) -> str:
    """Returns the HTML of a page after its scripts have run."""
    done = subprocess.run(
        [
            find(),
            "--headless",
            "--disable-gpu",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={folder / 'browser'}",
            "--virtual-time-budget=20000",
            *more,
            "--dump-dom",
            f"file://{page}",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout


def measure(
    pages: dict[str, Path], widths: Sequence[int], folder: Path, dark: bool = False
) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the measures of each page at each width. A window has at least 500 pixels, a frame in
    it any number."""
    frames = []
    for name, page in pages.items():
        probed = folder / f"probed_{name}.html"
        probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
        frames += [
            f'<iframe name="{name} {width}" src="{probed.name}" width="{width}" height="{HEIGHT}"'
            ' style="border: 0"></iframe>'
            for width in widths
        ]
    around = folder / "around.html"
    around.write_text(AROUND % "".join(frames))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    text = dump(around, folder, scheme, f"--window-size={max(widths) + 40},{HEIGHT}")
    found = re.search(r'<pre id="measured">(.+?)</pre>', text, re.S)
    assert found is not None, text[-2000:]
    measured = json.loads(html.unescape(found[1]))
    return {(name, width): measured[f"{name} {width}"] for name in pages for width in widths}
