"""GPT-Neo (Black et al., 2021): GPT-2 with a window in every other layer, scores not divided, no bias on q, k and v."""

from dataclasses import replace

from lineage.components import Attention, Block, Causal, Model, each

from .gpt2 import gpt2

YEAR, PARENT = 2021, "gpt2"
PAPER = "Black et al. 2021, GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-TensorFlow"


def gpt_neo(
    *,
    vocab: int = 50257,
    context: int = 2048,
    width: int = 2048,
    layers: int = 24,
    heads: int = 16,
    mlp_width: int | None = None,
    activation: str = "gelu_new",
    eps: float = 1e-5,
    window: int = 256,
    pattern: tuple[str, ...] = ("full", "window"),
    tied: bool = True,
) -> Model:
    """pattern: "full" or "window" for each layer, repeated as often as need be."""
    base = gpt2(
        vocab=vocab, context=context, width=width, layers=layers, heads=heads, mlp_width=mlp_width,
        activation=activation, eps=eps, tied=tied,
    )  # fmt: skip

    def block(old: Block, kind: str) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        mask = Causal(window=window if kind == "window" else None)
        body = replace(body, mask=mask, bias=False, scale=1.0, exact=True)
        return replace(old, attention=replace(old.attention, body=body))

    kinds = [pattern[i % len(pattern)] for i in range(layers)]
    return replace(base, blocks=each(block, base.blocks, kinds))


TINY = {"vocab": 101, "context": 160, "width": 24, "layers": 4, "heads": 3, "window": 7}
PUBLISHED = {
    "gpt_neo": {},
    "gpt-neo-125m": {"width": 768, "layers": 12, "heads": 12},
    "gpt-neo-2.7b": {"width": 2560, "layers": 32, "heads": 20},
}
