"""The data of `medley train`: a folder as batches for a model, and their order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medley
from medley.capture.batch import Batch, read_batch
from medley_extras.train.image_folder import ImageFolder, read_image_folder
from medley_extras.train.options import Options
from medley_extras.train.text_folder import TextFolder, read_text_folder

_HELD_OUT = 1024  # maximum; their loss is computed on CPUs


@dataclasses.dataclass(frozen=True)
class Data:
    """A folder as batches of the model's arguments.

    `inputs` and `labels` are the names of these tensors. `others` (masks, token types) are the same
    for every row.
    """

    folder: TextFolder | ImageFolder
    batch: Batch
    inputs: str
    labels: str
    others: dict[str, Tensor]

    def rows(self, indices: list[int], epoch: int = 0) -> dict[str, Tensor]:
        """Returns the batch of these rows."""
        return self._named(*self.folder.rows(indices, epoch))

    def loss(self, model: nn.Module, rows: dict[str, Tensor]) -> float:
        """Returns the loss that PyTorch computes, without gradients."""
        with torch.no_grad():
            result = self.batch.call(model, [rows[name] for name in self.batch.names])
        if isinstance(result, tuple) and len(result) == 2:  # sum and normaliser
            return float(result[0] / result[1])
        if not isinstance(result, Tensor):
            result = result["loss"] if isinstance(result, dict) else result.loss
        return float(result)

    def check(self, model: nn.Module) -> None:
        """Raises ValueError if the model does not accept all data of the folder."""
        try:
            self.loss(model, self._named(*self.folder.hardest()))
        except (IndexError, RuntimeError) as error:
            raise ValueError(
                f"{self.folder.name}: {self.folder.describe()}: the model does not take them: "
                f"{str(error).splitlines()[0]}"
            ) from None

    def _named(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        others = {
            name: value.expand(len(inputs), *value.shape[1:]) for name, value in self.others.items()
        }
        return {self.inputs: inputs, self.labels: labels, **others}


def open_data(options: Options, example: Any) -> Data:
    """Returns the folder in the form of a model's example batch.

    Token ids with labels of the same shape make a language model. Images [rows, channels, height,
    width] with one label per row make a classifier. If the labels equal the ids in the example, the
    model shifts them; otherwise they are the next tokens.
    """
    folder = Path(options.data)
    if not folder.is_dir():
        raise ValueError(f"--data: {folder}: expected a folder")
    batch = read_batch(example)
    tensors = dict(zip(batch.names, batch.tensors, strict=True))
    labels = "labels" if "labels" in tensors else batch.names[-1]
    inputs = _inputs_of(tensors, labels)
    if inputs is None:
        shapes = ", ".join(f"{k} {str(v.dtype)[6:]}{list(v.shape)}" for k, v in tensors.items())
        raise ValueError(
            f"model: {options.model}: called with {shapes}; expected token ids and labels, i64 "
            "[rows, length], or images [rows, channels, height, width] and labels, i64 [rows]"
        )
    others = {
        name: torch.ones_like(value[:1]) if "mask" in name else torch.zeros_like(value[:1])
        for name, value in tensors.items()
        if name not in (inputs, labels)
    }
    found: TextFolder | ImageFolder
    if tensors[inputs].dim() == 4:
        if options.tokenizer or options.length:
            raise ValueError("--tokenizer, --length: found a model of images")
        channels, height, width = tensors[inputs].shape[1:]
        found = read_image_folder(folder, (channels, height, width), options.augment, options.seed)
    else:
        if (tensors[labels] == -100).any():
            raise ValueError(
                f"model: {options.model}: a masked language model: expected a causal one"
            )
        shifted = not torch.equal(tensors[inputs], tensors[labels])
        tokenizer = None if options.tokenizer is None else Path(options.tokenizer)
        found = read_text_folder(folder, tensors[inputs].shape[1], shifted, tokenizer)
    return Data(found, batch, inputs, labels, others)


def _inputs_of(tensors: dict[str, Tensor], labels: str) -> str | None:
    target = tensors[labels]
    for name, value in tensors.items():
        if name == labels or target.dtype != torch.int64:
            continue
        tokens = value.dtype == torch.int64 and value.dim() == 2 and value.shape == target.shape
        images = value.is_floating_point() and value.dim() == 4 and target.dim() == 1
        if tokens or images:
            return name
    return None


class FolderLoader(medley.Loader):
    """The global batches of a folder in an order that depends on the seed. An incomplete batch is
    dropped. Held-out rows are the last ones of text, and random ones of images."""

    def __init__(self, data: Data, chosen: medley.Plan, held_out: float, seed: int) -> None:
        self._data = data
        count = len(data.folder)
        kept = min(_HELD_OUT, math.ceil(held_out * count))
        order = torch.arange(count)
        if isinstance(data.folder, ImageFolder):
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        self._own: list[int] = order[: count - kept].tolist()
        self.held_out: list[int] = order[count - kept :].tolist()
        if len(self._own) < chosen.global_batch:
            raise ValueError(
                f"{data.folder.name}: found {len(self._own)} rows to train on and {kept} held out, "
                f"expected at least a global batch of {chosen.global_batch}"
            )
        super().__init__(chosen, self._own, shuffle=True, seed=seed, drop_last=True)

    def reader(self, rows: list[int]) -> Callable[[Sequence[int]], Any]:
        """Returns a function that reads positions of the batch with these rows."""
        epoch = self.epoch  # images are augmented differently in each
        own = [self._own[row] for row in rows]
        return lambda positions: self._data.rows([own[each] for each in positions], epoch)
