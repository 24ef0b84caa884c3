"""The spelling of the package annalog: a Transformer with learned positions, in PyTorch classes of its own.

Its checkpoint has no config: one beside it names this model_type (docs/decisions/008-references-of-others.md).
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lineage.config import Entry, Only, Size, inert
from lineage.rules import Dialect, Reference, Rule, Tap

from .common import COMMON, without

SIDES = (("encoder.", "encoder."), ("decoder.", ""))
LAYERS = tuple((f"{theirs}layers.{{i}}.", f"{ours}blocks.{{i}}.") for theirs, ours in SIDES)
BRANCHES = (  # an attention: its layer's names, its own, its norm's
    *((*layer, "self_attention", "attention", "self_attn_layer_norm") for layer in LAYERS),
    (*LAYERS[1], "encoder_attention", "cross", "enc_attn_layer_norm"),
)
MLP = "positionwise_feedforward"
SHORT = (("enc", ""), ("dec", "decoder_"))
SIZES = (("layers", "layers", 3, 4096), ("heads", "heads", 8, 10**6), ("pf_dim", "mlp_width", 512, 10**6))


def built(package: Any, said: Mapping[str, Any]) -> Any:
    """The package's own model, called as transformers' are: for its masks, padding is a token that is nowhere else."""
    keys = {entry.key: entry.default for entry in CONFIG if isinstance(entry, Size)} | dict(said)

    def stack(kind: Any, short: str, vocab: str) -> Any:
        sizes = (keys[f"{short}_{key}"] for key, *_ in SIZES)
        return kind(keys[vocab], keys["hid_dim"], *sizes, 0.0, "cpu", keys["max_length"])

    encoder, decoder = stack(package.Encoder, "enc", "input_dim"), stack(package.Decoder, "dec", "output_dim")
    model = package.Seq2Seq(encoder, decoder, None, None, "cpu")
    forward = model.forward
    # roots of widths, which it keeps in single precision
    roots = {part: part.scale.double().square().round().sqrt() for part in model.modules() if hasattr(part, "scale")}

    def padded(ids: Any, mask: Any) -> tuple[Any, int]:
        used = set((ids if mask is None else ids[mask.bool()]).flatten().tolist())
        spare = min(set(range(len(used) + 1)) - used)
        return ids if mask is None else ids.masked_fill(mask == 0, spare), spare

    def called(
        input_ids: Any, decoder_input_ids: Any, attention_mask: Any = None, decoder_attention_mask: Any = None
    ) -> Any:
        source, model.src_pad_idx = padded(input_ids, attention_mask)
        target, model.trg_pad_idx = padded(decoder_input_ids, decoder_attention_mask)
        for part in model.modules():  # what they keep as plain values follows no cast and no move
            part.device = input_ids.device
            if part in roots:
                part.scale = roots[part].to(decoder.fc_out.bias)
        return SimpleNamespace(logits=forward(source, target)[0])

    model.forward = called
    return model


CONFIG: tuple[Entry, ...] = (
    *(Size("input_dim", "vocab", 59), Size("output_dim", "target_vocab", 59)),
    *(Size("hid_dim", "width", 256), Size("max_length", "context", 102)),
    *(Size(f"{a}_{key}", b + size, usual, most=most) for a, b in SHORT for key, size, usual, most in SIZES),
    *inert("padding is told by the attention mask", "src_pad_idx", "trg_pad_idx", "pad_token_id"),
    *inert("how generation is called", "decoder_start_token_id"),
    *inert("training only", "enc_dropout", "dec_dropout"),
    *(*without(COMMON, "is_encoder_decoder", "max_length"), Only("is_encoder_decoder", True)),
)
PARTS = (  # a part of a layer in the file, and in the model
    *((f"{a}{name}.fc_{x}", f"{b}{role}.body.{x}") for a, b, name, role, _ in BRANCHES for x in "qkvo"),
    *((f"{a}{norm}", f"{b}{role}.norm_sum") for a, b, _, role, norm in BRANCHES),
    *((f"{a}{MLP}.fc_{n}", f"{b}mlp.body.{x}") for a, b in LAYERS for n, x in ((1, "up"), (2, "down"))),
    *((f"{a}ff_layer_norm", f"{b}mlp.norm_sum") for a, b in LAYERS),
)
SEEN = tuple(
    (a + name, f"{b}{role}.body", tuple(f"{b}{role}.body.{x}" for x in "qkv")) for a, b, name, role, _ in BRANCHES
)
HOME = "annalog.model_files.seq2seq_attention"
ANNALOG = Dialect(
    spec="transformer",
    model_types=("annalog",),
    config=CONFIG,
    fixed={"eps": 1e-5, "bias": True, "shared": False, "tied": False, "table": True},
    tensors=(
        *(Rule(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in (*PARTS, ("decoder.fc_out", "head"))),
        *(Rule(f"{a}tok_embedding.weight", f"{b}embed.tokens.weight") for a, b in SIDES),
        *(Rule(f"{a}pos_embedding.weight", f"{b}embed.positions.weight") for a, b in SIDES),
    ),
    taps=(
        *(Tap(f"{theirs}.fc_o", f"{ours}.product", at="input", feeds=feeds) for theirs, ours, feeds in SEEN),
        *(Tap(theirs, ours, at="first") for theirs, ours, _ in SEEN),
        *(Tap(f"{a}{MLP}.fc_2", f"{b}mlp.body.act", at="input", feeds=(f"{b}mlp.body.up",)) for a, b in LAYERS),
        *(Tap(a + MLP, f"{b}mlp.body") for a, b in LAYERS),
        *(Tap(a[:-1], b[:-1], at="first") for a, b in LAYERS),
        *(Tap(f"{a}layers.0", f"{b}embed", at="input", entry=a[:-1]) for a, b in SIDES),
        Tap("encoder", "encoder"),
    ),
    references=(Reference("Seq2Seq", ("head",), {"logits": "logits"}, module=HOME, build=built),),
)
