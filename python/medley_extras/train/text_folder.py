"""Folders of text as sequences of tokens. Does not know models, plans or devices. An example:

a.txt  the quick | brown fo   tokens of all files in the order of their names, each file
b.txt  x jumps o | ver the.   ended by one token, cut every `length`: the quick / brown fo /
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


@dataclasses.dataclass(frozen=True)
class TextFolder:
    """Sequences of `length` tokens. With `shifted`, labels are the next tokens. Otherwise they are
    the tokens themselves, and the model shifts them, as in transformers."""

    name: str
    tokens: Tensor  # 1-D: bytes as u8, those of a tokenizer as i32
    length: int
    shifted: bool

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - int(self.shifted)) // self.length)

    def rows(self, indices: list[int], epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Returns inputs and labels, i64 [rows, length]."""
        starts = torch.tensor(indices).reshape(-1, 1) * self.length
        places = starts + torch.arange(self.length)
        inputs = self.tokens[places].long()
        return inputs, self.tokens[places + 1].long() if self.shifted else inputs.clone()

    def hardest(self) -> tuple[Tensor, Tensor]:
        """Returns a row with the greatest token: a model that accepts it accepts all rows."""
        row = torch.full((1, self.length), int(self.tokens.max()))
        return row, row.clone()

    def describe(self) -> str:
        """Returns a description of the data."""
        return f"{len(self.tokens):,} tokens up to {int(self.tokens.max())}"


def read_text_folder(
    folder: Path, length: int, shifted: bool, tokenizer: Path | None = None
) -> TextFolder:
    """Reads every *.txt below `folder`, by name. Tokens are bytes, or those of a tokenizer.json.

    Files end with the byte 0, or with the tokenizer's end of text if it has one. Raises ValueError
    naming an unreadable file, or if the text is shorter than one sequence.
    """
    paths = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not paths:
        raise ValueError(f"{folder}: found no *.txt, expected a folder of text files")
    tokens = _bytes(paths) if tokenizer is None else _encoded(paths, tokenizer)
    text = TextFolder(str(folder), tokens, length, shifted)
    if len(text) < 1:
        raise ValueError(
            f"{folder}: found {len(tokens)} tokens in {len(paths)} files, expected at least "
            f"{length + int(shifted)}: one sequence of the model's length"
        )
    return text


def _bytes(paths: list[Path]) -> Tensor:
    data = bytearray()
    for path in paths:
        data += _contents(path) + b"\0"
    return torch.frombuffer(data, dtype=torch.uint8)


def _encoded(paths: list[Path], tokenizer: Path) -> Tensor:
    encoder = _load_tokenizer(tokenizer)
    end = next((i for i in map(encoder.token_to_id, _ENDS) if i is not None), None)
    pieces = []
    for path in paths:
        try:
            text = _contents(path).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: byte {error.start}: expected UTF-8") from None
        ids = encoder.encode(text, add_special_tokens=False).ids + ([] if end is None else [end])
        pieces.append(torch.tensor(ids, dtype=torch.int32))
    return torch.cat(pieces)


def _load_tokenizer(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path}: cannot be read: no such file")
    try:
        import tokenizers
    except ImportError:
        raise ValueError(f"{path}: needs a package: pip install tokenizers") from None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no more specific error
        sentence = str(error).splitlines()[0]
        raise ValueError(f"{path}: expected a tokenizer.json of tokenizers: {sentence}") from None


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
