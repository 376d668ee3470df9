"""Models of diffusers, made tiny: denoisers and autoencoders, trained by the mean squared error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH, _TOKENS, _SIZE = 32, 6, 8
_UNET: dict[str, Any] = {
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "attention_head_dim": 8,
}
_CONDITIONED: dict[str, Any] = {
    **_UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": _WIDTH,
}
_HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
_CODER: dict[str, Any] = {"block_out_channels": (16, 32), "norm_num_groups": 8}

# The shapes after the rows of the inputs. "steps" and "classes" are integers.
_STEPS = ("steps",)
_LATENT = (4, _SIZE, _SIZE)
_TEXT = (_TOKENS, _WIDTH)
_DENOISED: dict[str, Any] = {"hidden_states": _LATENT, "timestep": _STEPS}
_PROMPTED: dict[str, Any] = {**_DENOISED, "encoder_hidden_states": _TEXT}

# By name, or "name: difference": fields of the constructor, and arguments of forward.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UNet2DModel": (
        {
            **_UNET,
            "sample_size": _SIZE,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        {"sample": (3, _SIZE, _SIZE), "timestep": _STEPS},
    ),
    "UNet2DModel: classes, shifts and scales by time": (
        {
            **_UNET,
            "sample_size": _SIZE,
            "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "ResnetUpsampleBlock2D"),
            "resnet_time_scale_shift": "scale_shift",
            "num_class_embeds": 10,
        },
        {"sample": (3, _SIZE, _SIZE), "timestep": _STEPS, "class_labels": ("classes",)},
    ),
    "UNet2DConditionModel": (
        {
            **_CONDITIONED,
            "sample_size": _SIZE,
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        {"sample": _LATENT, "timestep": _STEPS, "encoder_hidden_states": _TEXT},
    ),
    "UNet2DConditionModel: linear projections": (
        {
            **_CONDITIONED,
            "sample_size": _SIZE,
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "use_linear_projection": True,
            "transformer_layers_per_block": 2,
        },
        {"sample": _LATENT, "timestep": _STEPS, "encoder_hidden_states": _TEXT},
    ),
    "UNet3DConditionModel": (
        {
            **_UNET,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": _WIDTH,
        },
        {"sample": (4, 2, _SIZE, _SIZE), "timestep": _STEPS, "encoder_hidden_states": _TEXT},
    ),
    "ControlNetModel": (
        {**_CONDITIONED, "conditioning_embedding_out_channels": (8, 16)},
        {
            "sample": _LATENT,
            "timestep": _STEPS,
            "encoder_hidden_states": _TEXT,
            "controlnet_cond": (3, 2 * _SIZE, 2 * _SIZE),
        },
    ),
    "DiTTransformer2DModel": (
        {**_HEADS, "sample_size": _SIZE, "num_embeds_ada_norm": 10},
        {**_DENOISED, "class_labels": ("classes",)},
    ),
    "Transformer2DModel": (
        {**_HEADS, "in_channels": 16, "norm_num_groups": 8, "cross_attention_dim": _WIDTH},
        {"hidden_states": (16, _SIZE, _SIZE), "encoder_hidden_states": _TEXT},
    ),
    "PixArtTransformer2DModel": (
        {
            **_HEADS,
            "sample_size": _SIZE,
            "cross_attention_dim": _WIDTH,
            "caption_channels": _WIDTH,
            "use_additional_conditions": False,
        },
        {
            **_PROMPTED,
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    ),
    "SD3Transformer2DModel": (
        {
            **_HEADS,
            "sample_size": _SIZE,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": _WIDTH,
            "caption_projection_dim": _WIDTH,
            "pooled_projection_dim": _WIDTH,
            "pos_embed_max_size": 8,
            "qk_norm": "rms_norm",
        },
        {**_PROMPTED, "pooled_projections": (_WIDTH,)},
    ),
    "FluxTransformer2DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "num_single_layers": 2,
            "joint_attention_dim": _WIDTH,
            "pooled_projection_dim": _WIDTH,
            "axes_dims_rope": (4, 4, 8),
        },
        {
            "hidden_states": (16, 4),
            "encoder_hidden_states": _TEXT,
            "pooled_projections": (_WIDTH,),
            "timestep": _STEPS,
            "img_ids": "positions",
            "txt_ids": "no positions",
        },
    ),
    "ChromaTransformer2DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "num_single_layers": 2,
            "joint_attention_dim": _WIDTH,
            "axes_dims_rope": (4, 4, 8),
            "approximator_num_channels": 16,
            "approximator_hidden_dim": _WIDTH,
            "approximator_layers": 2,
        },
        {
            "hidden_states": (16, 4),
            "encoder_hidden_states": _TEXT,
            "timestep": _STEPS,
            "img_ids": "positions",
            "txt_ids": "no positions",
        },
    ),
    "AuraFlowTransformer2DModel": (
        {
            "sample_size": _SIZE,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": _WIDTH,
            "caption_projection_dim": _WIDTH,
            "pos_embed_max_size": 16,
        },
        _PROMPTED,
    ),
    "SanaTransformer2DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": _WIDTH,
            "caption_channels": _WIDTH,
            "sample_size": _SIZE,
        },
        _PROMPTED,
    ),
    "Lumina2Transformer2DModel": (
        {
            "sample_size": _SIZE,
            "in_channels": 4,
            "hidden_size": _WIDTH,
            "num_layers": 1,
            "num_refiner_layers": 1,
            "num_attention_heads": 2,
            "num_kv_heads": 1,
            "multiple_of": 16,
            "axes_dim_rope": (4, 4, 8),
            "axes_lens": (32, 32, 32),
            "cap_feat_dim": _WIDTH,
        },
        {**_PROMPTED, "encoder_attention_mask": "mask"},
    ),
    "WanTransformer3DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "text_dim": _WIDTH, "ffn_dim": 48},
        {
            "hidden_states": (4, 2, _SIZE, _SIZE),
            "timestep": _STEPS,
            "encoder_hidden_states": _TEXT,
        },
    ),
    "LTXVideoTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "cross_attention_dim": _WIDTH,
            "caption_channels": _WIDTH,
        },
        {
            "hidden_states": (32, 4),
            "encoder_hidden_states": _TEXT,
            "timestep": _STEPS,
            "encoder_attention_mask": "mask",
            "num_frames": 2,
            "height": 4,
            "width": 4,
        },
    ),
    "CogVideoXTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 16,
            "text_embed_dim": _WIDTH,
            "sample_width": _SIZE,
            "sample_height": _SIZE,
            "sample_frames": 5,
            "max_text_seq_length": _TOKENS,
        },
        {
            "hidden_states": (2, 4, _SIZE, _SIZE),
            "encoder_hidden_states": _TEXT,
            "timestep": _STEPS,
        },
    ),
    "LatteTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "cross_attention_dim": _WIDTH,
            "caption_channels": _WIDTH,
            "sample_size": _SIZE,
            "patch_size": 2,
            "video_length": 2,
            "norm_type": "ada_norm_single",
            "num_embeds_ada_norm": 100,
            "norm_elementwise_affine": False,
        },
        {
            "hidden_states": (4, 2, _SIZE, _SIZE),
            "timestep": _STEPS,
            "encoder_hidden_states": _TEXT,
        },
    ),
    "PriorTransformer": (
        {**_HEADS, "embedding_dim": _WIDTH, "num_embeddings": _TOKENS},
        {
            "hidden_states": (_WIDTH,),
            "timestep": _STEPS,
            "proj_embedding": (_WIDTH,),
            "encoder_hidden_states": _TEXT,
        },
    ),
    "AutoencoderKL": (
        {
            **_CODER,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        {"sample": (3, 16, 16)},
    ),
    "AutoencoderKL: sampled": (
        {
            **_CODER,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        {"sample": (3, 16, 16), "sample_posterior": True},
    ),
    "AutoencoderTiny": (
        {
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        {"sample": (3, 16, 16)},
    ),
    "VQModel": (
        {
            **_CODER,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "num_vq_embeddings": 16,
        },
        {"sample": (3, 16, 16)},
    ),
}


class Denoiser(nn.Module):
    """A model of diffusers with the mean squared error of its output."""

    def __init__(self, model: nn.Module, fixed: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.fixed = fixed

    def predicted(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the output of the model for a batch."""
        found = self.model(**inputs, **self.fixed, return_dict=False)[0]
        parts = found if isinstance(found, (list, tuple)) else [found]
        return torch.cat([part.flatten(1) for part in parts], 1)

    def forward(self, target: Tensor, **inputs: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.mse_loss(self.predicted(inputs), target)


def _positions(count: int) -> Tensor:
    side = int(count**0.5)
    places = torch.arange(count)
    return torch.stack([torch.zeros_like(places), places // side, places % side], 1).float()


def _value(of: Any, rows: int) -> Tensor:
    if of == "mask":
        return torch.ones(rows, _TOKENS, dtype=torch.long)
    if of[0] == "steps":
        return torch.randint(0, 100, (rows,))
    if of[0] == "classes":
        return torch.randint(0, 10, (rows,))
    return torch.randn(rows, *of)


def listed() -> list[tuple[str, str, str]]:
    """Returns (family, name, class) of all models."""
    return [("diffusers", name, "") for name in MODELS]


def build(name: str, _: str, rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the tiny form of a model, which returns its loss, and a batch."""
    import diffusers

    fields, inputs = MODELS[name]
    model = getattr(diffusers, name.split(":")[0])(**fields).train()
    batch: dict[str, Tensor] = {}
    fixed: dict[str, Any] = {}
    for field, of in inputs.items():
        if of == "positions":
            fixed[field] = _positions(inputs["hidden_states"][0])
        elif of == "no positions":
            fixed[field] = torch.zeros(_TOKENS, 3)
        elif of == "mask" or isinstance(of, tuple):
            batch[field] = _value(of, rows)
        else:
            fixed[field] = of
    trained = Denoiser(model, fixed)
    with torch.no_grad():
        batch["target"] = torch.randn_like(trained.predicted(batch))
    return trained, batch
