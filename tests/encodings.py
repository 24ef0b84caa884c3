"""Checkpoints stored encoded, made here: block fp8 and mxfp4 by torch, GGUF by its own package."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from torch import Tensor

from lineage.parity.tiny import write_tiny

PLAIN = ("norm", "embed", "lm_head", "router", "mlp.gate.weight")
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fp8(
    kind: str, directory: Path, block: tuple[int, int] = (8, 8), scales: torch.dtype = torch.float32, **sizes: Any
) -> Path:
    """A tiny checkpoint in bfloat16 whose matrices are e4m3 with a scale for each block."""
    file = write_tiny(kind, directory, **sizes) / "model.safetensors"
    made: dict[str, Tensor] = {}
    for name, weight in load_file(file).items():
        if weight.dim() == 2 and not any(part in name for part in PLAIN):
            made |= dict(zip((name, f"{name}_scale_inv"), quantised(weight, block, scales), strict=True))
        else:
            made[name] = weight.bfloat16()
    save_file(made, file, metadata={"format": "pt"})
    return configured(directory, dtype="bfloat16", quantization_config=FP8 | {"weight_block_size": list(block)})


def quantised(weight: Tensor, block: tuple[int, int], scales: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes of the weight's shape, and the scale of each block, the last ones cut where it ends."""
    (high, wide), (rows, columns) = block, weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    found = torch.empty(-(-rows // high), -(-columns // wide), dtype=scales)
    for i, j in ((i, j) for i in range(found.shape[0]) for j in range(found.shape[1])):
        place = slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide)
        found[i, j] = weight[place].abs().max() / 448
        codes[place] = (weight[place] / found[i, j].float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, found


def mxfp4(weight_EIO: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [E, out, in/32, 16] and scales [E, out, in/32] of a stack of matrices [E, in, out]."""
    grouped = weight_EIO.transpose(1, 2).unflatten(-1, (-1, 32))
    powers = grouped.abs().amax(-1).clamp(min=1e-30).log2().floor() - 2
    scaled = grouped / powers.exp2()[..., None]
    nibbles = (scaled.abs()[..., None] - LEVELS).abs().argmin(-1) + 8 * (scaled < 0)
    low, high = nibbles.unflatten(-1, (16, 2)).unbind(-1)
    return (low + 16 * high).to(torch.uint8), (powers + 127).to(torch.uint8)


def gpt_oss(directory: Path, **sizes: Any) -> Path:
    """A tiny gpt-oss in bfloat16 whose experts are mxfp4, as published."""
    file = write_tiny("gpt_oss", directory, width=64, mlp_width=96, **sizes) / "model.safetensors"
    made: dict[str, Tensor] = {}
    for name, weight in load_file(file).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            made |= dict(zip((f"{name}_blocks", f"{name}_scales"), mxfp4(weight), strict=True))
        else:
            made[name] = weight.bfloat16()
    save_file(made, file, metadata={"format": "pt"})
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return configured(
        directory, dtype="bfloat16", quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": plain}
    )


def configured(directory: Path, **keys: Any) -> Path:
    """The checkpoint with other keys in its config."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return directory


KEYS = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "rope.dimension_count": "head_dim", "vocab_size": "vocab_size",
}  # fmt: skip
PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf(directory: Path, *types: str, keys: Mapping[str, Any] | None = None, **sizes: Any) -> Path:
    """A tiny Llama as llama.cpp would write it. types: of its matrices, in turn; keys: to add, None to leave out."""
    directory.mkdir()
    settings, tensors = llama(directory / "plain", **sizes)
    path = directory / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    said: dict[str, Any] = {f"llama.{key}": settings[name] for key, name in KEYS.items()}
    said |= {"llama.attention.layer_norm_rms_epsilon": settings["rms_norm_eps"], "llama.rope.freq_base": 20000.0}
    said |= {"general.name": "tiny", "tokenizer.ggml.tokens": [f"<{i}>" for i in range(settings["vocab_size"])]}
    for key, value in (said | dict(keys or {})).items():
        add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, str: writer.add_string}
        if value is not None:
            add.get(type(value), writer.add_array)(key, value)
    matrices = 0
    for name, tensor in tensors.items():
        given = tensor.numpy()
        if given.ndim == 2:
            kind = GGMLQuantizationType[types[matrices % len(types)]]
            writer.add_tensor(name, packed(given, kind, matrices), raw_dtype=kind)
            matrices += 1
        else:
            writer.add_tensor(name, given)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama(directory: Path, **sizes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A tiny Llama's config, and its tensors under llama.cpp's names, turned as it turns them."""
    file = write_tiny("llama", directory, theta=20000.0, **sizes) / "model.safetensors"
    settings = json.loads((directory / "config.json").read_text())
    found = {}
    for name, tensor in load_file(file).items():
        for heads, part in (("num_attention_heads", "q_proj"), ("num_key_value_heads", "k_proj")):
            if part in name:  # permute() of convert_hf_to_gguf.py
                tensor = tensor.reshape(settings[heads], 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        for theirs, its in PARTS.items():
            name = name.replace(theirs, its)
        found[name] = tensor.contiguous()
    return settings, found


def packed(given: np.ndarray, kind: GGMLQuantizationType, seed: int) -> np.ndarray:
    """A matrix in a type of ggml's; what its package cannot make is noise of about that size."""
    try:
        return quantize(given, kind)
    except NotImplementedError:
        return noise(kind, given.shape[0], given.shape[1], seed, 1 / 400 / given.shape[1] ** 0.5)


HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
          "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}  # fmt: skip
"""Where the scales in half precision stand in a block."""


def noise(kind: GGMLQuantizationType, rows: int, columns: int, seed: int, size: float = 1.0) -> np.ndarray:
    """Any bits, under scales of a size."""
    numbers, width = GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * columns // numbers, width), dtype=np.uint8)
    for place in HALVES[kind.name]:
        scales = (generator.standard_normal((len(blocks), 1)) * size).astype("<f2")
        blocks[:, place : place + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)
