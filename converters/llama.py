"""Hugging Face's spelling of Llama, and what those share that have its names."""

from lineage.config import Choice, Entry, Flag, Index, Inert, Number, Only, RotaryKeys, Size, inert
from lineage.rules import Copy, Dialect, Drop, Reference, Rule, Tap

from .common import ACTIVATIONS, COMMON

LAYER, BLOCK = "{base}layers.{i}.", "blocks.{i}."
SIZES: tuple[Entry, ...] = (
    Size("hidden_size", "width", 4096),
    Size("num_hidden_layers", "layers", 32, most=4096),
    Size("num_attention_heads", "heads", 32),
    Inert("max_position_embeddings", "a length for people, and for rotary scalings that need one"),
    *inert("training only", "attention_dropout"),
)
ATTENTION = (*(Rule(LAYER + f"self_attn.{x}_proj.{{p}}", BLOCK + f"attention.body.{x}.{{p}}") for x in "qkvo"),)
MLP = tuple(Rule(LAYER + f"mlp.{x}_proj.{{p}}", BLOCK + f"mlp.body.{x}.{{p}}") for x in ("gate", "up", "down"))
ENDS = (
    Rule("{base}embed_tokens.weight", "embed.tokens.weight"),
    Rule("{base}norm.{p}", "norm.{p}"),
    Rule("lm_head.weight", "head.weight"),
)
NORMS = (
    Rule(LAYER + "input_layernorm.{p}", BLOCK + "attention.norm_input.{p}"),
    Rule(LAYER + "post_attention_layernorm.{p}", BLOCK + "mlp.norm_input.{p}"),
)


def product(*feeds: str) -> Tap:
    """The attention product, which no module of the reference is: told by what enters the output projection."""
    paths = tuple(BLOCK + f"attention.body.{feed}" for feed in feeds)
    return Tap(LAYER + "self_attn.o_proj", BLOCK + "attention.body.product", at="input", feeds=paths)


TAPS = (
    product("q", "k", "v"),
    Tap(LAYER + "self_attn", BLOCK + "attention.body"),
    Tap(LAYER + "mlp.act_fn", BLOCK + "mlp.body.act"),
    Tap(LAYER + "mlp", BLOCK + "mlp.body"),
    Tap(LAYER[:-1], BLOCK[:-1]),
)
TIED = Copy("lm_head.weight", of="{base}embed_tokens.weight", argument="tied")
FREQUENCIES = Drop(LAYER + "self_attn.rotary_emb.inv_freq", "rotary frequencies, as a buffer", None)


def spelled(
    model_type: str,
    reference: str,
    *config: Entry,
    spec: str = "llama",
    rules: tuple[Rule, ...] = (*ATTENTION, *MLP, *NORMS),
    taps: tuple[Tap, ...] = TAPS,
    fixed: dict[str, object] | None = None,
    memory: tuple[Rule, ...] = (),
) -> Dialect:
    """A model type that has Llama's names. config: its keys; fixed: arguments that no key says."""
    return Dialect(
        spec=spec,
        model_types=(model_type,),
        prefixes=("model.", ""),
        config=(*COMMON, *config),
        fixed=fixed or {},
        memory=memory,
        tensors=(ENDS[0], *rules, *ENDS[1:]),
        copies=(TIED,),
        drops=(FREQUENCIES,),
        taps=taps,
        references=(Reference(reference, ("head",), {"logits": "logits"}),),
    )


def keys(
    vocab: int,
    mlp_width: int,
    eps: float,
    *,
    kv_heads: int | None = 32,
    head: int | None = None,
    theta: float = 10000.0,
    tied: bool = False,
    act: str | None = "hidden_act",
    mlp: str = "intermediate_size",
    padding: int | None = None,
) -> tuple[Entry, ...]:
    """The keys that differ in their defaults alone."""
    return (
        *SIZES,
        *((Choice(act, "activation", "silu", names=ACTIVATIONS),) if act else ()),
        Size("vocab_size", "vocab", vocab),
        Size(mlp, "mlp_width", mlp_width),
        Size("num_key_value_heads", "kv_heads", kv_heads, nullable=True),
        Size("head_dim", "head_size", head, nullable=True),
        Number("rms_norm_eps", "eps", eps),
        Index("pad_token_id", "padding", padding, nullable=True),
        Flag("tie_word_embeddings", "tied", tied),
        RotaryKeys("rope_parameters", theta=theta),
    )


HUGGINGFACE = spelled(
    "llama",
    "LlamaForCausalLM",
    *keys(32000, 11008, 1e-6, kv_heads=None),
    Flag("attention_bias", "bias", False),
    Flag("mlp_bias", "mlp_bias", False),
    Only("pretraining_tp", 1),
)
