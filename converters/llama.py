"""Hugging Face's spelling of Llama, and what those share that have its names."""

from lineage.config import Entry, Flag, Only
from lineage.rules import Copy, Dialect, Drop, Reference, Rule, Tap

from .common import CACHED, COMMON, keys

LAYER, BLOCK = "{base}layers.{i}.", "blocks.{i}."
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


def residuals(norm: str) -> tuple[Tap, Tap]:
    """Both branches with what they are added to. norm: the module that first reads the stream between them."""
    between = LAYER + norm
    return (
        Tap(between, BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=between),
    )


TAPS = (
    product("q", "k", "v"),
    Tap(LAYER + "self_attn", BLOCK + "attention.body"),
    Tap(LAYER + "mlp.act_fn", BLOCK + "mlp.body.act"),
    Tap(LAYER + "mlp", BLOCK + "mlp.body"),
    Tap(LAYER[:-1], BLOCK[:-1]),
    Tap("", "head", entry="lm_head"),  # soft caps come after that module
    *residuals("post_attention_layernorm"),
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
    drops: tuple[Drop, ...] = (),
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
        drops=(FREQUENCIES, *drops),
        taps=taps,
        references=(Reference(reference, ("head",), {"logits": "logits"}),),
    )


HUGGINGFACE = spelled(
    "llama",
    "LlamaForCausalLM",
    *keys(32000, 11008, 1e-6, kv_heads=None),
    *CACHED,
    Flag("attention_bias", "bias", False),
    Flag("mlp_bias", "mlp_bias", False),
    Only("pretraining_tp", 1),
)
