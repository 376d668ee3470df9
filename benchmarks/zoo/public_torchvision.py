"""Models of torchvision, made tiny: one of each architecture, for images and for videos. Most are
built from the package's own classes, with sizes as arguments. Classes without such arguments keep
their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo import images

CLASSES = 10
SIZE = 32  # pixels a side
FRAMES = 4

Built = tuple[nn.Module, dict[str, Tensor]]


def _alexnet(models: Any) -> nn.Module:
    model: nn.Module = models.alexnet(num_classes=CLASSES)
    model.classifier = nn.Sequential(  # 54 of its 57 million weights
        nn.Dropout(0.0), nn.Linear(256 * 36, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )
    return model


def _vgg(models: Any, norm: bool) -> nn.Module:
    layers = models.vgg.make_layers([8, "M", 16, 16, "M", 512, "M"], batch_norm=norm)
    model: nn.Module = models.vgg.VGG(layers, num_classes=CLASSES, dropout=0.0)
    model.classifier = nn.Sequential(
        nn.Linear(512 * 49, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, CLASSES)
    )
    return model


def _efficientnet(models: Any, fused: bool) -> nn.Module:
    of = models.efficientnet
    first = (
        of.FusedMBConvConfig(4, 3, 1, 16, 16, 1)
        if fused
        else of.MBConvConfig(1, 3, 1, 16, 16, 1, 1.0, 1.0)
    )
    blocks = [first, of.MBConvConfig(4, 3, 2, 16, 24, 2, 1.0, 1.0)]
    model: nn.Module = of.EfficientNet(
        blocks, dropout=0.0, stochastic_depth_prob=0.0, num_classes=CLASSES, last_channel=64
    )
    return model


def _regnet(models: Any, squeeze: float | None) -> nn.Module:
    of = models.regnet
    widths = of.BlockParams.from_init_params(
        depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=squeeze
    )
    model: nn.Module = of.RegNet(widths, num_classes=CLASSES)
    return model


def _resnet(models: Any, **fields: Any) -> nn.Module:
    of = models.resnet
    block = of.Bottleneck if fields else of.BasicBlock
    model: nn.Module = of.ResNet(block, [1, 1, 1, 1], num_classes=CLASSES, **fields)
    return model


def _swin(models: Any, second: bool) -> nn.Module:
    of = models.swin_transformer
    later = {"block": of.SwinTransformerBlockV2, "downsample_layer": of.PatchMergingV2}
    model: nn.Module = of.SwinTransformer(
        [4, 4],
        16,
        [2, 2],
        [2, 2],
        [4, 4],
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
        **(later if second else {}),
    )
    return model


def _convnext(models: Any) -> nn.Module:
    of = models.convnext
    blocks = [of.CNBlockConfig(16, 32, 1), of.CNBlockConfig(32, None, 1)]
    model: nn.Module = of.ConvNeXt(blocks, num_classes=CLASSES)
    return model


# Constructors by name, given torchvision.models.
CLASSIFIERS: dict[str, Callable[[Any], Any]] = {
    "alexnet": _alexnet,
    "convnext": _convnext,
    "densenet": lambda of: of.DenseNet(8, (2, 2, 2, 2), 16, num_classes=CLASSES),
    "efficientnet": lambda of: _efficientnet(of, fused=False),
    "efficientnet_v2": lambda of: _efficientnet(of, fused=True),
    "googlenet": lambda of: of.GoogLeNet(CLASSES, init_weights=False, dropout=0.0, dropout_aux=0.0),
    "maxvit": lambda of: of.MaxVit(
        input_size=(SIZE, SIZE),
        stem_channels=16,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    ),
    "mnasnet": lambda of: of.MNASNet(0.25, CLASSES, dropout=0.0),
    "mobilenet_v2": lambda of: of.MobileNetV2(CLASSES, width_mult=0.25, dropout=0.0),
    "mobilenet_v3_small": lambda of: of.mobilenet_v3_small(
        num_classes=CLASSES, width_mult=0.5, dropout=0.0
    ),
    "regnet_x": lambda of: _regnet(of, None),
    "regnet_y": lambda of: _regnet(of, 0.25),
    "resnet": _resnet,
    "resnext": lambda of: _resnet(of, groups=4, width_per_group=4),
    "shufflenet_v2": lambda of: of.ShuffleNetV2([2, 2, 2], [8, 16, 16, 32, 64], CLASSES),
    "squeezenet1_0": lambda of: of.SqueezeNet("1_0", CLASSES, 0.0),
    "squeezenet1_1": lambda of: of.SqueezeNet("1_1", CLASSES, 0.0),
    "swin": lambda of: _swin(of, second=False),
    "swin_v2": lambda of: _swin(of, second=True),
    "vgg": lambda of: _vgg(of, norm=False),
    "vgg_bn": lambda of: _vgg(of, norm=True),
    "vit": lambda of: of.VisionTransformer(SIZE, 8, 2, 2, 32, 48, num_classes=CLASSES),
    "wide_resnet": lambda of: _resnet(of, width_per_group=96),
}


def _video(models: Any, conv: str, stem: str) -> nn.Module:
    of = models.video.resnet
    model: nn.Module = of.VideoResNet(
        of.BasicBlock, [getattr(of, conv)] * 4, [1, 1, 1, 1], getattr(of, stem), CLASSES
    )
    return model


def _mvit(models: Any) -> nn.Module:
    of = models.video.mvit
    blocks = [
        of.MSBlockConfig(1, 16, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
        of.MSBlockConfig(2, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
    ]
    model: nn.Module = of.MViT(
        spatial_size=(SIZE, SIZE),
        temporal_size=FRAMES,
        block_setting=blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        attention_dropout=0.0,
        dropout=0.0,
        num_classes=CLASSES,
    )
    return model


VIDEOS: dict[str, Callable[[Any], Any]] = {
    "mvit": _mvit,
    "mc3": lambda of: _video(of, "Conv3DNoTemporal", "BasicStem"),
    "r2plus1d": lambda of: _video(of, "Conv2Plus1D", "R2Plus1dStem"),
    "r3d": lambda of: _video(of, "Conv3DSimple", "BasicStem"),
    "swin3d": lambda of: of.video.SwinTransformer3d(
        [2, 4, 4], 16, [2, 2], [2, 2], [2, 4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES
    ),
}


def _segmented(models: Any, kind: str) -> nn.Module:
    of = models.segmentation
    backbone = models.resnet.ResNet(
        models.resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=[False, True, True]
    )
    make = of.fcn._fcn_resnet if kind == "fcn" else of.deeplabv3._deeplabv3_resnet
    model: nn.Module = make(backbone, CLASSES, True)
    return model


SEGMENTERS: dict[str, Callable[[Any], Any]] = {
    "deeplabv3": lambda of: _segmented(of, "deeplabv3"),
    "fcn": lambda of: _segmented(of, "fcn"),
    "lraspp_mobilenet_v3_large": lambda of: of.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=CLASSES
    ),
}
# Others loop over the images of a batch for minutes before they are refused.
DETECTORS = ("fasterrcnn_mobilenet_v3_large_320_fpn",)


class Detector(nn.Module):
    """A detector for a batch of images of one size, with as many boxes in each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, **targets: Tensor) -> Any:
        """Returns the sum of the losses that the detector returns in training."""
        each = [{name: targets[name][row] for name in targets} for row in range(len(images))]
        return sum(self.model(list(images), each).values())


def _detector(models: Any, name: str, rows: int) -> Built:
    model = getattr(models.detection, name)(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        min_size=64,
        max_size=64,
        rpn_pre_nms_top_n_train=40,
        rpn_post_nms_top_n_train=20,
        box_batch_size_per_image=8,
    )
    corners = torch.rand(rows, 2, 2) * 24
    batch = {
        "images": torch.rand(rows, 3, 64, 64),
        "boxes": torch.cat([corners, corners + 8 + 24 * torch.rand(rows, 2, 2)], 2),
        "labels": torch.ones(rows, 2, dtype=torch.long),
    }
    return Detector(model.train()), batch


def listed() -> list[tuple[str, str, str]]:
    """Returns (family, name, class) of all models."""
    families = {
        "classes": CLASSIFIERS,
        "videos": VIDEOS,
        "pixels": SEGMENTERS,
        "boxes": dict.fromkeys(DETECTORS),
    }
    return [(f"torchvision, {family}", n, "") for family, of in families.items() for n in of]


def build(name: str, _: str, rows: int) -> Built:
    """Returns the tiny form of a model, which returns its loss, and a batch."""
    from torchvision import models

    if name in DETECTORS:
        return _detector(models, name, rows)
    if name in VIDEOS:
        batch = images.classes(rows, SIZE, CLASSES)
        batch["images"] = torch.randn(rows, 3, FRAMES, SIZE, SIZE)
        return images.Classified(VIDEOS[name](models).train()), batch
    if name in SEGMENTERS:
        batch = {
            "images": torch.randn(rows, 3, SIZE, SIZE),
            "labels": torch.randint(0, CLASSES, (rows, SIZE, SIZE)),
        }
        return images.Classified(SEGMENTERS[name](models).train()), batch
    size = 2 * SIZE if name == "alexnet" else SIZE
    return images.Classified(CLASSIFIERS[name](models).train()), images.classes(rows, size, CLASSES)
