"""Switch Transformer (Fedus et al., 2021): T5 with a mixture of experts in some layers, one expert for each token."""

from dataclasses import replace
from typing import Any

from lineage.components import Block, Experts, Model, Residual, Router, each

from .t5 import t5

YEAR, PARENT = 2021, "t5"
PAPER = "Fedus et al. 2021, Switch Transformers: Scaling to Trillion Parameter Models"


def switch(
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int = 2048,
    activation: str = "relu",
    experts: int = 8,
    capacity: int = 64,
    step: int = 2,
    decoder_step: int = 2,
    router_bias: bool = False,
    **arguments: Any,
) -> Model:
    """step: how many layers apart those with experts are, the second first; decoder_step: the decoder's.

    capacity: how many tokens of a row an expert takes.
    """
    sizes: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "mlp_width": mlp_width}
    model = t5(activation=activation, **sizes, **arguments)
    exact: dict[str, Any] = {"rounded": True, "exact": True, "normalise": "none", "bias": router_bias}
    router = Router(experts=experts, top_k=1, capacity=capacity, **exact)
    mixture = Experts(router=router, width=mlp_width, activation=activation, gated=False)

    def block(old: Block, sparse: bool) -> Block:
        return replace(old, mlp=Residual(body=mixture, norm_input=old.mlp.norm_input)) if sparse else old

    def stack(blocks: tuple[Block, ...], apart: int) -> tuple[Block, ...]:
        return each(block, blocks, [apart == 1 or place % apart == 1 for place in range(len(blocks))])

    assert model.encoder
    encoder = replace(model.encoder, blocks=stack(model.encoder.blocks, step))
    return replace(model, encoder=encoder, blocks=stack(model.blocks, decoder_step))


TINY = {"vocab": 97, "width": 24, "layers": 4, "heads": 3, "head_size": 10, "mlp_width": 40, "decoder_layers": 3}
TINY |= {"buckets": 12, "distance": 50, "experts": 5, "capacity": 9, "step": 2, "decoder_step": 1}
PUBLISHED: dict[str, dict[str, object]] = {
    "switch-base-8": {"decoder_layers": 12},
    "switch-base-128": {"decoder_layers": 12, "experts": 128},
}
