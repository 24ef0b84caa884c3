"""Hugging Face's spelling of DeBERTa 2 and 3: BERT's, with distances; two spellings of the masked-token head."""

from typing import Any

from lineage.config import Choice, Counted, Flag, Index, Inert, Number, Only, Parts, Same, Size, Spare, inert
from lineage.rules import Copy, Dialect, Drop, Find, Reference, Rule, Tap

from .bert import BODY, EMBED, LAYER, POSITION_IDS, QKV, SPELLINGS, TAPS
from .common import ACTIVATIONS
from .heads import CLASSES, deep, plain, task

BLOCK, LATE, EARLY = "blocks.{i}.", "lm_predictions.lm_head.", "cls.predictions."
KEPT = tuple(rule for rule in BODY if not any(part in rule.sources[0] for part in (".self.", "pooler.")))
MAPS = {"query_proj": "q", "key_proj": "k", "value_proj": "v",
        "pos_query_proj": "distance_query", "pos_key_proj": "distance_key"}  # fmt: skip
HEAD = {"dense": "transform.dense", "LayerNorm": "transform.norm"}
SPAN = {"c2p": "keys", "p2c": "queries"}
RULES, SUMMARY = deep("pooler.dense", "classifier", "text", "choice")


def late(model: Any) -> bool:
    """Whether the masked-token head is the later one, which adds its bias to logits that were rounded."""
    return model.head is not None and bool(model.head.late)


def early(model: Any) -> bool:
    return not late(model)


def apart(model: Any) -> bool:
    """Whether distances have maps of their own, so that those of tokens run once a call."""
    found = model.blocks[0].attention.body.disentangled
    return found is None or not found.shared


HUGGINGFACE = Dialect(
    spec="deberta_v2",
    model_types=("deberta-v2",),
    prefixes=("deberta.", ""),
    config=(
        *CLASSES,
        *(Size("hidden_size", "width", 1536), Size("num_hidden_layers", "layers", 24, most=4096)),
        *(Size("num_attention_heads", "heads", 24), Size("intermediate_size", "mlp_width", 6144)),
        *(Size("max_position_embeddings", "context", 512), Size("vocab_size", "vocab", 128100)),
        *(Choice("hidden_act", "activation", "gelu", names=ACTIVATIONS), Number("layer_norm_eps", "eps", 1e-7)),
        *(Counted("type_vocab_size", "segments", 0), Index("pad_token_id", "padding", 0, nullable=True)),
        *(Flag("tie_word_embeddings", "tied", True), Flag("position_biased_input", "absolute", True)),
        *(Flag("relative_attention", "relative", False), Flag("share_att_key", "shared", False, quiet=True)),
        *(Parts("pos_att_type", SPAN), Counted("max_relative_positions", "reach", -1)),
        *(Counted("position_buckets", "span", -1, quiet=True), Spare("attention_head_size", "head_size", None)),
        Choice("norm_rel_ebd", "table_norm", "none", names={"none": "none", "layer_norm": "layer_norm"}, quiet=True),
        *(Counted("conv_kernel_size", "kernel", 0, quiet=True), Size("conv_groups", "conv_groups", 1, quiet=True)),
        Choice("conv_act", "conv_activation", "tanh", names=ACTIVATIONS, quiet=True),
        Choice("pooler_hidden_act", "summary", "gelu", names=ACTIVATIONS),
        Same("pooler_hidden_size", of="hidden_size", argument="width", of_default=1536),
        *(Only("embedding_size", None), Only("is_causal", False)),
        Inert("legacy", "the file's tensors tell which of the two heads it has"),
        *inert("training only", "hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout"),
    ),
    finds=(Find((EARLY, LATE), "head"), Find(LATE, "late")),
    tensors=(
        *KEPT,
        *(Rule(f"{LAYER}attention.self.{x}.{{p}}", f"{BLOCK}attention.body.{y}.{{p}}") for x, y in MAPS.items()),
        Rule("{base}encoder.rel_embeddings.weight", "distances.weight"),
        Rule("{base}encoder.LayerNorm.{p}", "distances.norm.{p}"),
        Rule("{base}encoder.conv.conv.{p}", "convolution.{p}"),
        Rule("{base}encoder.conv.LayerNorm.{p}", "convolution.norm.{p}"),
        *(Rule(f"{LATE}{x}.{{p}}", f"head.{y}.{{p}}", where=late) for x, y in HEAD.items()),
        Rule(LATE + "bias", "head.bias", where=late),
        *(Rule(f"{EARLY}transform.{x}.{{p}}", f"head.{y}.{{p}}", where=early) for x, y in HEAD.items()),
        *(Rule(EARLY + x, f"head.{y}", where=early) for x, y in (("decoder.weight", "weight"), ("bias", "bias"))),
        *(*RULES, *plain(tokens="classifier", span="qa_outputs")),
    ),
    copies=(
        Copy(EARLY + "decoder.weight", of=EMBED + "word_embeddings.weight", argument="tied"),
        Copy(EARLY + "decoder.bias", of=EARLY + "bias"),
    ),
    drops=(
        POSITION_IDS,
        Drop(EMBED + "position_embeddings.weight", "places of tokens, which the config turns off", None),
        *(Drop(f"mask_predictions.{x}.{{p}}", "no class computes it", None) for x in (*HEAD, "classifier")),
    ),
    taps=(
        *(tap for tap in TAPS[:-1] if not tap.target.endswith("product")),
        Tap(LAYER + "attention.self", BLOCK + "attention.body.product", feeds=QKV, where=apart),
        Tap("{base}encoder.conv", "convolution", feeds=("embed", "blocks.0")),
        *SUMMARY,
    ),
    spellings=SPELLINGS,
    references=(
        *(
            Reference("DebertaV2ForMaskedLM", ("head",), {"logits": "logits"}, where=where, settings={"legacy": legacy})
            for legacy, where in ((True, early), (False, late))
        ),
        *(task("DebertaV2", name, "pooler.") for name in ("text", "choice")),
        *(task("DebertaV2", "tokens", "classifier."), task("DebertaV2", "span", "qa_outputs.")),
        Reference("DebertaV2Model", (), {"hidden": "last_hidden_state"}),
    ),
)
