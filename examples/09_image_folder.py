"""A vision transformer on a folder of images, with a subfolder per class, on two devices, one of
them half as fast: rows by speed, accuracy on held-out images.

The devices are emulated: tokens/s, with one token per image here, and the idle device are those of
the cluster. For your own run, write `cluster="cluster.yaml"` with your GPUs (`medley list
devices`), and leave out `emulated`. A dataset is any object with a length that returns (image,
label): `Pictures`, or `torchvision.datasets.ImageFolder`, of your folder.
"""

import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import default_collate
from transformers import ViTConfig, ViTForImageClassification

import medley
from medley.cluster import parse_cluster
from medley.run import job

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 10 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
SIZE, ROWS = 16, 24


def draw(folder: Path, count: int) -> Path:
    """Fills a folder with pictures of stripes and checks."""
    for name in ("across", "checks", "down"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            dark, bright = (random.choices(range(low, low + 100), k=3) for low in (0, 150))
            image = Image.new("RGB", (SIZE, SIZE), tuple(dark))
            pen = ImageDraw.Draw(image)
            for place in range(random.randrange(4), SIZE, 4):
                if name != "down":
                    pen.line((0, place, SIZE, place), tuple(bright), 2)
                if name != "across":
                    pen.line((place, 0, place, SIZE), tuple(bright), 2)
            image.save(folder / name / f"{i}.png")
    return folder


class Pictures:
    """The images of a folder, each with the number of its subfolder."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(path.name for path in folder.iterdir())
        self.paths = sorted(folder.glob("*/*.png"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        pixels = np.array(Image.open(path).convert("RGB").resize((SIZE, SIZE)))
        image = torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1
        return image, self.classes.index(path.parent.name)


class Classifier(nn.Module):
    """Returns loss and accuracy of a model of transformers that returns logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(images).logits
        right = (logits.argmax(-1) == labels).float()
        return {"loss": functional.cross_entropy(logits, labels), "accuracy": right.mean()}


def train(pictures: Pictures, held_out: Pictures) -> None:
    config = ViTConfig(
        image_size=SIZE,
        patch_size=4,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=len(pictures.classes),
    )
    model = Classifier(ViTForImageClassification(config))
    graph = medley.capture(model, default_collate([pictures[i] for i in range(ROWS)]))
    # Without its name `auto` would choose, and leave such a small model to the fast device.
    strategy = "data-parallel-proportional"
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    plan = medley.plan(graph, cluster, strategy, global_batch=ROWS)
    print(plan.explain())
    with job.emulated():
        trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-3), local=True)
    trainer.fit(
        medley.Loader(plan, pictures, shuffle=True),
        epochs=6,
        evaluate=medley.Loader(plan, held_out),
        evaluate_every=26,
        callbacks=[medley.Progress(10)],
    )
    trainer.save_model("vit")


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folders = draw(Path(name, "train"), 100), draw(Path(name, "held_out"), 20)
        train(*map(Pictures, folders))


if __name__ == "__main__":
    main()
