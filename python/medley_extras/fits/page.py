"""The output of `medley fits`: a table per mode, and advice if no length fits."""

from __future__ import annotations

import io
from collections.abc import Sequence

from medley.cli.verb import wrapped
from medley_extras.fits.answer import Answer, Found

_HEADER = ("length", "cards", "a step", "tokens/s", "micro-batch", "memory, need of have")


def text_of(found: Found) -> str:
    """Returns the text for the terminal."""
    head = found.head
    cards = ", ".join(f"{count} {kind}" for kind, count in head["cards"].items())
    lines = [
        f"{head['model']}, {_count(head['weights'])} weights in {head['dtype']}, on {cards}; "
        f"{head['link']} between two cards",
        *head["notes"],
        f"A step is {head['rows']} rows with AdamW. Memory is counted tensor by tensor; times are "
        "predicted from data sheets.",
    ]
    for mode, trained in found.trained.items():
        answers = [answer for answer in found.answers if answer.mode == mode]
        lines += ["", f"{mode}: {_count(trained)} weights trained"]
        rows = [_row(answer, head["rows"]) for answer in answers]
        if any(answer.fits for answer in answers):
            lines += _table([row for row in rows if row])
        # A length that is too long for some GPUs is reported once.
        said = set()
        for answer in answers:
            if answer.why and answer.cards not in said:
                lines.append(f"{_length(answer)}{answer.cards}: does not fit: {answer.why}")
                said.add(answer.cards)
        if mode in found.advice:
            changes = found.advice[mode] or ["cards with more memory, or more of them"]
            lines += ["What would fit:", *(f"  {change}" for change in changes)]
    return wrapped("\n".join(lines))


def _row(answer: Answer, rows: int) -> tuple[str, ...]:
    if not answer.fits:
        return ()
    tokens = (answer.length or 0) * rows / answer.step_seconds
    memory = ", ".join(
        f"{kind} {used / 2**30:.1f} of {there / 2**30:.1f} GiB"
        for kind, (used, there) in answer.memory.items()
    )
    microbatch_rows = -(-rows // answer.microbatches)
    return (
        str(answer.length or "-"),
        answer.cards,
        f"{answer.step_seconds:.3g} s",
        f"{tokens:,.0f}" if tokens else "-",
        f"{microbatch_rows} row{'s' if microbatch_rows > 1 else ''}",
        memory,
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    from rich.console import Console
    from rich.table import Table

    table = Table(*_HEADER, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for row in rows:
        table.add_row(*row)
    console = Console(width=100, file=io.StringIO(), highlight=False)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore


def _length(answer: Answer) -> str:
    return "" if answer.length is None else f"{answer.length} on "


def _count(number: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,}"
