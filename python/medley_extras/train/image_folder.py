"""Folders of images, one subfolder per class. Does not know models, plans or devices.

data/cat/1.png  data/cat/2.jpg  data/dog/a.jpeg      classes in the order of their names
"""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medley.run.threads import can_start

_ENDINGS = (".png", ".jpg", ".jpeg")
_THREADS = 4


@dataclasses.dataclass(frozen=True)
class ImageFolder:
    """Images as f32 [rows, channels, height, width] from -1 to 1, labels as i64 [rows].

    An image is scaled to cover height and width, then cropped at its center. With `augment` the
    place and the orientation are random, and depend only on seed, epoch and image.
    """

    name: str
    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # channels, height, width
    augment: bool = False
    seed: int = 0

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, indices: list[int], epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Returns images and labels. Raises ValueError naming a file that is no image."""
        read = functools.partial(self._image, epoch=epoch)
        if can_start():
            with ThreadPoolExecutor(_THREADS) as pool:
                images = list(pool.map(read, indices))
        else:  # the script has ended, and the last step is repeated
            images = [read(index) for index in indices]
        return torch.stack(images), torch.tensor([self.labels[index] for index in indices])

    def hardest(self) -> tuple[Tensor, Tensor]:
        """Returns a row of the last class: a model that accepts it accepts all rows."""
        return torch.zeros(1, *self.shape), torch.tensor([len(self.classes) - 1])

    def describe(self) -> str:
        """Returns a description of the data."""
        return f"{len(self.paths):,} images of {len(self.classes)} classes"

    def _image(self, index: int, epoch: int) -> Tensor:
        channels, height, width = self.shape
        image = _decode(self.paths[index], "L" if channels == 1 else "RGB")
        scale = max(height / image.height, width / image.width)
        size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        image = image.resize(size)
        across, down, mirrored = 0.5, 0.5, False
        if self.augment:
            seed = (self.seed * 1_000_003 + epoch) * len(self.paths) + index
            draws = torch.rand(3, generator=torch.Generator().manual_seed(seed % 2**63)).tolist()
            across, down, mirrored = draws[0], draws[1], draws[2] < 0.5
        left, top = int((size[0] - width) * across), int((size[1] - height) * down)
        image = image.crop((left, top, left + width, top + height))
        data = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels = data.reshape(height, width, channels).permute(2, 0, 1).float() / 127.5 - 1
        return pixels.flip(2) if mirrored else pixels


def read_image_folder(
    folder: Path, shape: tuple[int, int, int], augment: bool = False, seed: int = 0
) -> ImageFolder:
    """Lists the PNG and JPEG files of every subfolder, which is a class, without decoding them.
    Raises ValueError if there are none, or fewer than two classes."""
    if shape[0] not in (1, 3):
        raise ValueError(f"model: found images of {shape[0]} channels, expected 1 or 3")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        everything = (folder / name).rglob("*")
        found = sorted(p for p in everything if p.suffix.lower() in _ENDINGS and p.is_file())
        if not found:
            raise ValueError(f"{folder / name}: found no image ({', '.join(_ENDINGS)})")
        paths += found
        labels += [label] * len(found)
    if len(classes) < 2:
        raise ValueError(
            f"{folder}: found {len(classes)} subfolders, expected two or more: one for each class"
        )
    return ImageFolder(
        str(folder), tuple(paths), tuple(labels), tuple(classes), shape, augment, seed
    )


def _decode(path: Path, mode: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(f"{path}: needs a package: pip install pillow") from None
    try:
        with Image.open(path) as image:
            return image.convert(mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ValueError(f"{path}: cannot be read: {reason}") from None
