"""The look of a report: its style sheet for light and dark screens, and the script that draws its
figures."""

from __future__ import annotations

import json

from medley_extras.report.draw import DARK

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --muted: #5c6670; --line: #ddd;
  --soft: #f4f6f8; --link: #1d5fa5; --warning: #fff3d1; --edge: #d39e00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --paper: #16181d; --muted: #9aa5b1; --line: #3a4048; --soft: #20242b;
    --link: #8ab8ef; --warning: #3d3211; --edge: #d39e00; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1240px; margin: 2em auto; padding: 0 1.2em; overflow-wrap: anywhere; }
h1 { font-size: 1.6em; line-height: 1.25; margin: 0; }
h2 { font-size: 1.2em; margin: 2.2em 0 0; border-top: 1px solid var(--line); padding-top: 1em; }
a { color: var(--link); }
p.note { color: var(--muted); margin: .2em 0 .6em; max-width: 60em; }
p.reason { margin: .8em 0; max-width: 60em; }
.banner { background: var(--warning); border-left: 4px solid var(--edge); margin: 1em 0;
  padding: .5em 1em; }
nav.contents ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2em 1.2em; margin: 0;
  padding: 0; }
.tiles { display: grid; grid-template-columns: repeat(var(--tiles), 1fr); gap: .8em;
  margin: 1.2em 0; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .6em 1em; }
.tile b { display: block; font-size: 1.35em; }
.tile span { color: var(--muted); font-size: .9em; }
table { border-collapse: collapse; margin: .6em 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25em .7em; border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 500; vertical-align: bottom; overflow-wrap: normal; }
td { white-space: nowrap; }
td.text, td.long { white-space: normal; overflow-wrap: anywhere; }
th.text, td.text { text-align: left; }
.chip { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
.figure-legend { display: flex; flex-wrap: wrap; gap: 0 .9em; }
.figure-legend button { all: unset; cursor: pointer; font-size: 12px; line-height: 1.6; }
.figure-legend button:focus-visible { outline: 2px solid var(--link); }
.figure-legend button[aria-pressed=false] { opacity: .4; }
.figure-legend svg { width: 1.4em; height: .8em; margin-right: .4em; }
svg.cluster { display: block; max-width: 100%; }
svg.cluster text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg.cluster text.muted { fill: var(--muted); }
svg.cluster .node { fill: var(--soft); stroke: var(--line); }
svg.cluster .device { fill: var(--paper); stroke: var(--muted); }
svg.cluster .unused { stroke-dasharray: 4 3; }
svg.cluster .link { stroke: var(--muted); stroke-width: 2; }
svg.cluster .network { fill: var(--muted); }
.narrow { display: none !important; }
@media (max-width: 960px) {
  body { margin: 1em auto; padding: 0 .8em; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tile:first-child:nth-last-child(odd) { grid-column: span 2; }
  nav.contents ul { display: grid; grid-template-columns: 1fr 1fr; }
  .narrow { display: block !important; }
  .broad { display: none !important; }
  /* Each row of a table becomes a list of its fields. */
  table, tbody { display: block; }
  tr { display: block; border: 1px solid var(--line); border-radius: 6px; margin: .5em 0;
    padding: .2em 0; }
  tr.header { display: none; }
  td, td.text { display: flex; justify-content: space-between; gap: 1em; border: 0;
    text-align: right; padding: .1em .7em; }
  td::before { content: attr(data-label); color: var(--muted); text-align: left; flex: none;
    max-width: 50%; }
  td:empty { display: none; }
}
"""

# Shows errors in the page itself, for readers and for a test.
SCRIPT = (
    f"const DARK = {json.dumps(DARK)};"
    + """
const screen_is_dark = matchMedia("(prefers-color-scheme: dark)");
const small = matchMedia("(max-width: 960px)");
const sources = Array.from(document.querySelectorAll("script.figure"));
function read(source) {
  let text = source.textContent;
  if (screen_is_dark.matches)
    for (const [light, dark] of Object.entries(DARK))
      text = text.replaceAll(`"${light}"`, `"${dark}"`)
        .replaceAll(`color:${light}`, `color:${dark}`);
  const figure = JSON.parse(text);
  figure.layout.showlegend = false;
  if (small.matches) {
    figure.layout.font.size = 11;
    figure.layout.margin = {...figure.layout.margin, l: 4, r: 8};
  }
  return figure;
}
function draw(source) {
  const figure = read(source), plot = source.previousElementSibling;
  const options = {responsive: true, displayModeBar: false};
  for (const shape of plot.parentElement.querySelectorAll(".figure-legend rect"))
    shape.setAttribute("fill", figure.data[shape.closest("button").dataset.trace].marker.color);
  return Plotly.react(plot, figure.data, figure.layout, options);
}
function toggle(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", shown);
  const plot = button.closest("section").querySelector(".plot");
  Plotly.restyle(plot, {visible: shown}, [+button.dataset.trace]);
}
for (const button of document.querySelectorAll(".figure-legend button"))
  button.onclick = () => toggle(button);
screen_is_dark.onchange = small.onchange = () => {
  sources.forEach(draw);
  for (const button of document.querySelectorAll(".figure-legend button"))
    button.setAttribute("aria-pressed", true);
};
let drawn = 0;
window.onerror = (message) => { document.body.dataset.error = message; };
Promise.all(sources.map((source) => draw(source).then(() => { drawn += 1; })))
  .then(() => { document.body.dataset.drawn = drawn; })
  .catch((error) => { document.body.dataset.error = error; });
"""
)
