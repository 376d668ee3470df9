"""A diffusion model whose forward draws time steps and noise, on two devices, one of them half as
fast. The random values belong to the rows of the batch, not to devices. Losses equal those of one
device, which trains here for comparison.

For your own devices write `cluster="cluster.yaml"` (`medley list devices`). For a model of the
package diffusers replace `UNet()` by `diffusers.UNet2DModel(sample_size=16, block_out_channels=(32,
64), ...)`, and add `.sample` after `self.unet(noisy, time)`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

import medley
from medley.cluster import parse_cluster

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
ONE_DEVICE = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": 24,
    "pipelines": [
        {"microbatches": [{"rows": 24}], "stages": [{"mesh": {"devices": ["fast/0/0"]}}]}
    ],
}
ROWS, SIZE, WIDTH, TIMES = 24, 16, 16, 100


class Block(nn.Module):
    """Two convolutions with a residual; the time shifts the values between them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(4, outputs)
        self.time = nn.Linear(WIDTH, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(functional.silu(hidden))


class UNet(nn.Module):
    """Predicts the noise in images, at half their size and then at full size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = Block(3, WIDTH)
        self.below = Block(WIDTH, 2 * WIDTH)
        self.up = Block(3 * WIDTH, WIDTH)
        self.last = nn.Conv2d(WIDTH, 3, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(WIDTH // 2) * -math.log(1e4) / (WIDTH // 2))
        angles = time[:, None] * rates
        time = torch.cat([angles.sin(), angles.cos()], 1)
        beside = self.down(x, time)
        below = self.below(functional.avg_pool2d(beside, 2), time)
        above = functional.interpolate(below, scale_factor=2.0)
        return self.last(self.up(torch.cat([beside, above], 1), time))


class Diffusion(nn.Module):
    """Returns the loss of DDPM (https://arxiv.org/abs/2006.11239): how far the predicted noise is
    from that which was added."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-3, 0.1, TIMES), 0))

    def forward(self, images: Tensor) -> Tensor:
        time = torch.randint(0, TIMES, (len(images),), device=images.device)
        noise = torch.randn_like(images)
        kept = self.kept[time][:, None, None, None]
        noisy = kept.sqrt() * images + (1 - kept).sqrt() * noise
        return functional.mse_loss(self.unet(noisy, time), noise)


def discs() -> Tensor:
    """Returns pictures of discs [rows, 3, SIZE, SIZE] from -1 to 1."""
    places = torch.arange(SIZE)
    centre = torch.randint(4, SIZE - 4, (ROWS, 2, 1, 1))
    inside = (places[:, None] - centre[:, 0]) ** 2 + (places - centre[:, 1]) ** 2 < 12
    colour = torch.rand(ROWS, 3, 1, 1)
    return torch.where(inside[:, None], colour, -colour)


def main() -> None:
    torch.manual_seed(0)
    model = Diffusion(UNet())
    graph = medley.capture(model, {"images": discs()})
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    plan = medley.plan(graph, cluster, global_batch=ROWS)
    print(plan.explain())
    one = medley.plan(graph, cluster, plan=medley.Plan.from_dict(ONE_DEVICE))
    trainers = [
        medley.Trainer(model, graph, each, medley.AdamW(lr=3e-3), local=True)
        for each in (plan, one)
    ]
    for step in range(50):
        batch = {"images": discs()}
        losses = [trainer.step(batch).loss for trainer in trainers]
        if step % 10 == 9:
            print(f"step {step}: loss {losses[0]:.5f}, on one device {losses[1]:.5f}")


if __name__ == "__main__":
    main()
