"""Models of timm, made tiny: one of each architecture that has a small form. Sizes are arguments of
timm's own constructors. Its own test models are used if they exist. All other arguments keep the
values of the package."""

from __future__ import annotations

import inspect
import sys
from typing import Any
from unittest import mock

from torch import Tensor, nn

from benchmarks.zoo import images

CLASSES = 10
ONES = (1, 1, 1, 1)
NARROW = (16, 16, 32, 32)

# By name: pixels per side, and arguments of the constructor.
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (32, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "cait_xxs24_224": (32, {"embed_dim": 32, "depth": 2, "num_heads": 4}),
    "caformer_s18": (32, {"depths": ONES, "dims": (32, 32, 32, 32)}),
    "coat_lite_tiny": (32, {"embed_dims": NARROW, "serial_depths": ONES}),
    "coat_tiny": (
        32,
        {"embed_dims": (16, 16, 16, 16), "serial_depths": ONES, "parallel_depth": 1},
    ),
    "convformer_s18": (32, {"depths": ONES, "dims": NARROW}),
    "convit_tiny": (32, {"embed_dim": 32, "depth": 3, "num_heads": 4, "local_up_to_layer": 2}),
    "convmixer_768_32": (32, {"dim": 32, "depth": 2}),
    "crossvit_tiny_240": (
        240,
        {"embed_dim": (16, 32), "depth": ((1, 2, 0),), "num_heads": (2, 2)},
    ),
    "davit_tiny": (32, {"depths": ONES, "embed_dims": NARROW, "num_heads": (2, 2, 2, 2)}),
    "deit3_small_patch16_224": (32, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "deit_tiny_distilled_patch16_224": (
        32,
        {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2},
    ),
    "densenet121": (32, {"growth_rate": 8, "block_config": (2, 2, 2, 2)}),
    "dla34": (32, {"channels": (8, 8, 8, 16, 16, 32)}),
    "dpn48b": (32, {"k_sec": ONES}),
    "edgenext_xx_small": (32, {"depths": ONES, "dims": (8, 16, 32, 32)}),
    "efficientformerv2_s0": (32, {"depths": ONES, "embed_dims": NARROW, "num_vit": 1}),
    "efficientvit_b0": (32, {"widths": (8, 8, 16, 32, 32), "depths": (1, 1, 1, 1, 1)}),
    "efficientvit_m0": (64, {"embed_dim": (32, 32, 32), "num_heads": (2, 2, 2)}),
    "eva02_tiny_patch14_224": (28, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "fasternet_t0": (32, {"embed_dim": 16, "depths": ONES}),
    "fastvit_t8": (32, {"layers": ONES, "embed_dims": NARROW}),
    "focalnet_tiny_srf": (32, {"embed_dim": 16, "depths": ONES}),
    "gcvit_xxtiny": (32, {"embed_dim": 16, "depths": ONES, "num_heads": (1, 1, 2, 2)}),
    "ghostnet_050": (32, {}),
    "ghostnetv2_100": (64, {"width": 0.35}),
    "gmixer_12_224": (32, {"embed_dim": 32, "num_blocks": 2}),
    "gmlp_ti16_224": (32, {"embed_dim": 32, "num_blocks": 2}),
    "hiera_tiny_224": (64, {"embed_dim": 16, "num_heads": 1, "stages": ONES}),
    "inception_next_atto": (32, {"depths": ONES, "dims": NARROW}),
    "lcnet_035": (32, {}),
    "legacy_seresnet18": (32, {"layers": ONES}),
    "levit_128s": (
        64,
        {
            "img_size": 64,
            "embed_dim": (32, 48, 64),
            "num_heads": (2, 2, 2),
            "key_dim": 8,
            "depth": (1, 1, 1),
        },
    ),
    "mixer_s16_224": (32, {"embed_dim": 32, "num_blocks": 2}),
    "mnasnet_small": (32, {}),
    "mobilenetv3_small_050": (32, {}),
    "mobilenetv4_conv_small_035": (32, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "naflexvit_base_patch16_gap": (32, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "nest_tiny": (64, {"embed_dims": (16,) * 3, "num_heads": (2,) * 3, "depths": (1,) * 3}),
    "nextvit_small": (32, {"depths": (1, 1, 5, 1)}),
    "pit_ti_224": (32, {"base_dims": (16, 16, 16), "depth": (1, 1, 1), "heads": (1, 2, 2)}),
    "poolformerv2_s12": (32, {"depths": ONES, "dims": NARROW}),
    "pvt_v2_b0": (32, {"depths": ONES, "embed_dims": (8, 16, 40, 64)}),
    "rdnet_tiny": (
        32,
        {"growth_rates": (16, 16, 16, 16, 16, 16, 16), "num_blocks_list": (1,) * 7},
    ),
    "regnetx_002": (32, {}),
    "regnety_002": (32, {}),
    "repghostnet_050": (32, {}),
    "repvit_m0_9": (32, {"embed_dim": NARROW, "depth": ONES}),
    "res2net50_14w_8s": (32, {"layers": ONES}),
    "resmlp_12_224": (32, {"embed_dim": 32, "num_blocks": 2}),
    "resnest14d": (32, {}),
    "resnet26t": (32, {"layers": ONES}),
    "resnetv2_50": (32, {"layers": ONES, "channels": (16, 16, 32, 32)}),
    "rexnet_100": (32, {"width_mult": 0.5}),
    "samvit_base_patch16_224": (32, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "seresnextaa101d_32x8d": (32, {"layers": ONES, "base_width": 2}),
    "sequencer2d_s": (
        32,
        {"layers": ONES, "embed_dims": (16, 16, 16, 16), "hidden_sizes": (4,) * 4},
    ),
    "shvit_s1": (64, {}),
    "skresnet18": (32, {"layers": ONES}),
    "starnet_s050": (32, {}),
    "swiftformer_xs": (32, {"layers": ONES, "embed_dims": NARROW}),
    "swin_tiny_patch4_window7_224": (
        32,
        {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4},
    ),
    "swinv2_cr_tiny_224": (64, {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)}),
    "swinv2_tiny_window8_256": (
        32,
        {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4},
    ),
    "test_byobnet": (32, {}),
    "test_coatnet": (160, {}),
    "test_convnext": (32, {}),
    "test_efficientnet": (32, {}),
    "test_efficientnet_evos": (32, {}),
    "test_efficientnet_gn": (32, {}),
    "test_mambaout": (32, {}),
    "test_maxvit": (160, {}),
    "test_nfnet": (32, {}),
    "test_resnet": (32, {}),
    "test_vit": (32, {}),
    "test_vit4": (32, {}),
    "test_vit_relpos": (32, {}),
    "tiny_vit_5m_224": (64, {"embed_dims": NARROW, "depths": ONES, "num_heads": (1, 1, 2, 2)}),
    "tnt_s_patch16_224": (32, {"embed_dim": 32, "inner_dim": 8, "depth": 2, "num_heads_outer": 4}),
    "twins_pcpvt_small": (32, {"embed_dims": NARROW, "depths": ONES, "num_heads": (1, 1, 2, 2)}),
    "twins_svt_small": (
        64,
        {"embed_dims": NARROW, "depths": (2, 2, 2, 2), "num_heads": (1, 1, 2, 2)},
    ),
    "visformer_tiny": (32, {"embed_dim": 48, "depth": (1, 1, 1), "init_channels": 8}),
    "vit_pe_core_tiny_patch16_384": (32, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "vit_tiny_r_s16_p8_224": (64, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
    "volo_d1_224": (
        64,
        {"layers": (1, 1, 1, 1), "embed_dims": (32, 32, 32, 32), "num_heads": (2, 2, 2, 2)},
    ),
    "ese_vovnet19b_slim_dw": (32, {}),
    "xcit_nano_12_p16_224": (32, {"embed_dim": 32, "depth": 2, "num_heads": 2}),
}


def listed() -> list[tuple[str, str, str]]:
    """Returns (family, name, class) of all models."""
    return [("timm", name, "") for name in MODELS]


def build(name: str, _: str, rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the tiny form of a model, which returns its loss, and a batch."""
    import timm

    size, fields = MODELS[name]
    functions = sys.modules[timm.model_entrypoint(name).__module__]
    known = functions.build_model_with_cfg

    def smaller(model: Any, variant: str, pretrained: bool = False, **given: Any) -> Any:
        """Builds a model of these sizes, whatever sizes are given."""
        if "img_size" in inspect.signature(model).parameters:  # convolutions take any
            given["img_size"] = size
        return known(model, variant, pretrained, **(given | fields))

    with mock.patch.object(functions, "build_model_with_cfg", smaller):
        model = timm.create_model(name, num_classes=CLASSES)
    return images.Classified(model.train()), images.classes(rows, size, CLASSES)
