"""GPT-2 written by hand: plain PyTorch, nothing of lineage or transformers, names of its own.

`load(directory, bug)` fills it with a Hugging Face checkpoint. bug plants one of three mistakes that shapes, a short
prompt and a cosine do not show: "gelu" (the exact GELU for the tanh formula), "scale" (scores over √width where it is
√head width), "mask" (each token also sees the next). B batch, T tokens, D width, H heads, W width of a head.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

BUGS = ("gelu", "scale", "mask")
NAMES = {
    "before_attention": "ln_1", "attention.fused": "attn.c_attn", "attention.merge": "attn.c_proj",
    "before_mlp": "ln_2", "widen": "mlp.c_fc", "narrow": "mlp.c_proj",
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bug: str | None) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(width if bug == "scale" else width // heads)
        self.ahead = 1 if bug == "mask" else 0
        self.queries, self.keys, self.values, self.merge = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x_BTD: Tensor) -> Tensor:
        split = (self.queries(x_BTD), self.keys(x_BTD), self.values(x_BTD))
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in split)  # [B, H, T, W]
        scores_BHTT = q @ k.transpose(2, 3) * self.scale
        hidden = torch.ones(scores_BHTT.shape[-2:], dtype=torch.bool).triu(1 + self.ahead)
        weights_BHTT = scores_BHTT.masked_fill(hidden, -math.inf).softmax(-1)
        return self.merge((weights_BHTT @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, bug: str | None) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, bug)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bend = nn.GELU(approximate="none" if bug == "gelu" else "tanh")

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.before_attention(x_BTD))
        return x_BTD + self.narrow(self.bend(self.widen(self.before_mlp(x_BTD))))


class GPT2(nn.Module):
    def __init__(self, vocab: int, context: int, width: int, layers: int, heads: int, bug: str | None = None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads, bug if i == 1 else None) for i in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.words(ids_BT) + self.places(torch.arange(ids_BT.shape[1]))
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return F.linear(self.last(x_BTD), self.words.weight)


def load(directory: Path, bug: str | None = None) -> GPT2:
    """The model of a checkpoint, with a mistake in its second layer if one is asked for."""
    config = json.loads((directory / "config.json").read_text())
    sizes = (config[key] for key in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"))
    model = GPT2(*sizes, bug=bug)
    model.load_state_dict(renamed(load_file(directory / "model.safetensors"), config["n_layer"]))
    return model.eval()


def renamed(file: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The file's tensors under our names: its matrices are [in, out], its q, k and v are one."""
    pairs = {"words": "wte", "places": "wpe", "last": "ln_f"}
    for i in range(layers):
        pairs |= {f"layers.{i}.{mine}": f"h.{i}.{theirs}" for mine, theirs in NAMES.items()}
    ours = {}
    for mine, theirs in pairs.items():
        for kind in ("weight", "bias"):
            if (tensor := file.get(f"transformer.{theirs}.{kind}")) is not None:
                ours[f"{mine}.{kind}"] = tensor.T if ".c_" in theirs and kind == "weight" else tensor
    for i in range(layers):
        for kind in ("weight", "bias"):
            parts = ours.pop(f"layers.{i}.attention.fused.{kind}").chunk(3)
            for name, part in zip(("queries", "keys", "values"), parts, strict=True):
                ours[f"layers.{i}.attention.{name}.{kind}"] = part
    return ours
