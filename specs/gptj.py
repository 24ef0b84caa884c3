"""GPT-J (Wang & Komatsuzaki, 2021): GPT-2 with rotary positions, and both branches side by side, on one norm."""

from dataclasses import replace

from lineage.components import Attention, Block, Embed, Head, Model, Rotary, each

from .gpt2 import gpt2

YEAR, PARENT = 2021, "gpt2"
PAPER = "Wang & Komatsuzaki 2021, GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model"


def gptj(
    *,
    vocab: int = 50400,
    context: int | None = 2048,
    width: int = 4096,
    layers: int = 28,
    heads: int = 16,
    mlp_width: int | None = None,
    activation: str = "gelu_new",
    eps: float = 1e-5,
    rotary_width: int = 64,
    exact: bool = True,
    tied: bool = False,
) -> Model:
    """context: places that have an angle. rotary_width: channels of each head that turn. exact: see Attention."""
    base = gpt2(
        vocab=vocab, width=width, layers=layers, heads=heads, mlp_width=mlp_width, activation=activation, eps=eps
    )
    rotary = Rotary(theta=10000.0, width=rotary_width, pairing="neighbours", length=context)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        body = replace(body, rotary=rotary, bias=False, output_bias=False, exact=exact)
        return side_by_side(replace(old, attention=replace(old.attention, body=body)))

    head = Head(vocab=vocab, tied=tied, bias=True)
    return replace(base, embed=Embed(vocab=vocab, width=width), blocks=each(block, base.blocks), head=head)


def side_by_side(old: Block) -> Block:
    """The same layer with both branches on the result of attention's norm, and one sum."""
    return Block(
        attention=replace(old.attention, norm_input=None),
        mlp=replace(old.mlp, norm_input=None),
        parallel=True,
        norm_input=old.attention.norm_input,
    )


TINY = {"vocab": 101, "context": 300, "width": 48, "layers": 3, "heads": 3, "rotary_width": 8, "mlp_width": 40}
PUBLISHED: dict[str, dict[str, int]] = {"gptj": {}}
