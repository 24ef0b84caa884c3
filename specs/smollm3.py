"""SmolLM3 (Bakouch et al., 2025): Llama with every fourth layer left without rotary positions."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Causal, Model, each, layer_names

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2025, "llama"
PAPER = "Bakouch et al. 2025, SmolLM3: smol, multilingual, long-context reasoner (after Yang et al. 2025, RoPE to NoPE)"


def smollm3(
    *,
    layers: int = 36,
    window: int | None = None,
    pattern: tuple[str, ...] | None = None,
    turned: tuple[str, ...] | None = None,
    period: int = 4,
    **arguments: Any,
) -> Model:
    """turned: "rotary" or "plain" for each layer; None is a plain one at the end of each period.

    A window, if there is one, is of the plain layers, unless the pattern gives it to others.
    """
    places = layer_names(
        turned[:layers] if turned else None,
        ["rotary" if (place + 1) % period else "plain" for place in range(layers)],
        ("rotary", "plain"),
        "turned",
    )
    usual = ["window" if window and place == "plain" else "full" for place in places]
    kinds = layer_names(pattern, usual, ("window", "full") if window else ("full",))
    base = llama(layers=layers, **arguments)

    def block(old: Block, place: str, kind: str) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        mask = Causal(window=window if kind == "window" else None)
        body = replace(body, mask=mask, rotary=body.rotary if place == "rotary" else None)
        return replace(old, attention=replace(old.attention, body=body))

    return replace(base, blocks=each(block, base.blocks, places, kinds))


TINY = LLAMA | {"layers": 4, "period": 2}
SIZE = {"vocab": 128256, "width": 2048, "heads": 16, "kv_heads": 4, "theta": 5e6, "tied": True}
PUBLISHED = {"smollm3": SIZE}
