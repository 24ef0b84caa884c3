"""Checkpoints stored encoded, made here: block fp8 and mxfp4 by torch, independent of what decodes them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lineage.parity.tiny import write_tiny

PLAIN = ("norm", "embed", "lm_head", "router", "mlp.gate.weight")
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fp8(kind: str, directory: Path, block: tuple[int, int] = (8, 8), scales: torch.dtype = torch.float32) -> Path:
    """A tiny checkpoint in bfloat16 whose matrices are e4m3 with a scale for each block."""
    file = write_tiny(kind, directory) / "model.safetensors"
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


def configured(directory: Path, **keys: Any) -> Path:
    """The checkpoint with other keys in its config."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return directory
