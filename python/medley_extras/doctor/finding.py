"""One line of what `medley doctor` says, and how checks become lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

OK, WARNING, FAILURE, UNTRIED = "ok", "warning", "failure", "untried"


class Finding(NamedTuple):
    """What was looked at and found; `fix` says what to do about what is not ok, or what it takes to
    try what was not; `figures` are what was measured, with units in their names."""

    what: str
    found: str
    state: str = OK
    fix: str = ""
    figures: dict[str, Any] | None = None


def as_json(finding: Finding) -> dict[str, Any]:
    """Returns the fields that a finding has."""
    fields = finding._asdict()
    if finding.figures is None:
        del fields["figures"]
    return fields


Check = tuple[str, Callable[[], list[Finding]]]  # what is said while it runs, and what runs


def examine(
    checks: Sequence[Check],
    say: Callable[[str], None] = lambda text: None,
    together: bool = False,
) -> list[Finding]:
    """Returns all findings in the order of the checks, which run one after the other or together.
    A check that fails itself is a finding; `say` is told what runs."""
    if not together:
        findings = []
        for check in checks:
            say(check[0])
            findings += _run(check)
        return findings
    say(", ".join(name for name, _ in checks))
    with ThreadPoolExecutor(max(1, len(checks))) as pool:
        return [finding for found in pool.map(_run, checks) for finding in found]


def _run(check: Check) -> list[Finding]:
    name, function = check
    begin = time.monotonic()
    try:
        findings = function()
    except Exception as error:
        lines = str(error).splitlines()
        sentence = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        findings = [Finding(name, sentence, FAILURE, "attach the output of --json to a report")]
    seconds = round(time.monotonic() - begin, 1)
    if seconds < 1:
        return findings
    return [
        each._replace(figures={**(each.figures or {}), "check_seconds": seconds})
        for each in findings
    ]
