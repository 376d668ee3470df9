"""`medley fits`: the ways to train a model that fit on given GPUs, without a GPU, weights or a
run."""

from __future__ import annotations

import argparse
import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from medley.cli.verb import print_next, progress

if TYPE_CHECKING:
    from medley_extras.fits.answer import Answer

MODES = ("lora", "qlora", "full")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument("model", help="hf:config.json, the file that comes with a model's weights")
    parser.add_argument(
        "--cards", nargs="+", required=True, metavar="CARD", help="3090 4060Ti-16GB, 2x3090, T4 ..."
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="adapters of the package peft, these over weights of 4 bits, or all of the model; "
        "default: lora, then full",
    )
    parser.add_argument("--lora", metavar="r=16,targets=q_proj,v_proj", default="r=16")
    parser.add_argument(
        "--lengths",
        metavar="512,2048",
        help="in tokens; default: of 512, 2048 and 8192 those that the model takes",
    )
    parser.add_argument("--rows", type=int, default=16, help="of a step; default: 16")
    parser.add_argument(
        "--link",
        metavar="BANDWIDTH",
        help='between two cards: "10 Gbit/s"; default: what the slower one reaches on its bus',
    )
    parser.add_argument("--no-cache", action="store_true", help="trace again, and store nothing")


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    kind, _, path = arguments.model.partition(":")
    if kind != "hf" or not Path(path).is_file():
        raise ValueError(f"fits: found {arguments.model!r}, expected hf:config.json, a file")
    if not 0 < arguments.rows < 1 << 20:
        raise ValueError(f"--rows: found {arguments.rows}, expected at least 1")
    lengths = _lengths(arguments.lengths)
    from medley_extras.fits.answer import look
    from medley_extras.fits.cards import read_cards
    from medley_extras.fits.page import text_of
    from medley_extras.recall.store import folder

    def say(what: str) -> AbstractContextManager[None]:
        return progress(what, arguments.json)

    cards = read_cards(arguments.cards)
    modes = [arguments.mode] if arguments.mode else ["lora", "full"]
    found = look(
        path,
        cards,
        modes,
        arguments.lora,
        lengths,
        arguments.rows,
        arguments.link,
        None if arguments.no_cache else folder("fits"),
        say,
    )
    if arguments.json:
        answers = [{"fits": each.fits, **dataclasses.asdict(each)} for each in found.answers]
        print(json.dumps({**found.head, "answers": answers}))
    else:
        print(text_of(found))
        for each in [each for each in found.answers if each.fits][:1]:
            print_next(_capture(arguments, each))
    return 0


def _capture(arguments: argparse.Namespace, answer: Answer) -> list[str]:
    size = f"{arguments.rows}x{answer.length}"
    words = ["medley", "capture", arguments.model, *(["--batch", size] if answer.length else [])]
    words += [] if answer.mode == "full" else ["--lora", arguments.lora]
    return [*words, *(["--bits", "4"] if answer.mode == "qlora" else []), "-o", "g.graph"]


def _lengths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(word.isdigit() and 0 < int(word) <= 1 << 20 for word in words):
        raise ValueError(f"--lengths: found {text!r}, expected numbers of tokens such as 512,2048")
    return sorted({int(word) for word in words})
