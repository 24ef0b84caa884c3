"""GPT-BigCode (Li et al., 2023): GPT-2 with one key-value head for all queries (Shazeer 2019)."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Model, each

from .gpt2 import TINY as TINY
from .gpt2 import gpt2

YEAR, PARENT = 2023, "gpt2"
PAPER = "Li et al. 2023, StarCoder: May the Source Be with You!"


def gpt_bigcode(*, activation: str = "gelu_tanh", multi_query: bool = True, **arguments: Any) -> Model:
    base = gpt2(activation=activation, **arguments)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        body = replace(body, kv_heads=1 if multi_query else body.heads)
        return replace(old, attention=replace(old.attention, body=body))

    return replace(base, blocks=each(block, base.blocks))


STARCODER = {"vocab": 49152, "context": 8192}
PUBLISHED = {
    "gpt_bigcode": {},
    "santacoder": {"vocab": 49280, "context": 2048, "width": 2048, "layers": 24, "heads": 16},
    "starcoder": STARCODER | {"width": 6144, "layers": 40, "heads": 48},
    "starcoderbase-1b": STARCODER | {"width": 2048, "layers": 24, "heads": 16},
}
