"""One line of the output of `medley doctor`, and the conversion of checks to lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

OK, WARNING, FAILURE, UNTRIED = "ok", "warning", "failure", "untried"


class Finding(NamedTuple):
    """The result of one check. `fix` is the fix of a failure, or the requirement of a skipped
    check. `figures` are measured values with units in their names."""

    what: str
    found: str
    state: str = OK
    fix: str = ""
    figures: dict[str, Any] | None = None


def as_json(finding: Finding) -> dict[str, Any]:
    """Returns the fields of a finding that are set."""
    fields = finding._asdict()
    if finding.figures is None:
        del fields["figures"]
    return fields


Check = tuple[str, Callable[[], list[Finding]]]  # a description, and the check


def examine(
    checks: Sequence[Check],
    say: Callable[[str], None] = lambda text: None,
    together: bool = False,
) -> list[Finding]:
    """Returns all findings in the order of the checks, which run in sequence or together. A check
    that raises is a finding. `say` receives the running check."""
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
