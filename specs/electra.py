"""ELECTRA (Clark et al., 2020): BERT with a narrow token table; one head masks tokens, another tells replaced ones."""

from dataclasses import replace
from typing import Any

from lineage.components import Model, Projection, Transform, scorer

from .bert import TINY as BERT
from .bert import bert

YEAR, PARENT = 2020, "bert"
PAPER = "Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators"


def electra(
    *,
    width: int = 256,
    table_width: int = 128,
    heads: int = 4,
    mlp_width: int = 1024,
    activation: str = "gelu",
    head_activation: str | None = "gelu",
    task: str | None = None,
    **arguments: Any,
) -> Model:
    """table_width: of the token table and the head; a table of the stream's width needs no map."""
    given: dict[str, Any] = {"activation": activation, "head_activation": head_activation, "task": task}
    base = bert(width=width, heads=heads, mlp_width=mlp_width, **given, **arguments)
    if task == "replaced":
        base = replace(base, classifier=scorer(task, 1, "each", Transform(activation=activation)))
    return narrow(base, table_width, table_width != width)


def narrow(base: Model, table_width: int, mapped: bool) -> Model:
    """The same model with tables of another width, mapped to the stream's, and a head that maps back."""
    embed = replace(base.embed, width=table_width)
    if mapped:
        embed = replace(embed, projection=Projection(width=base.embed.width, bias=True))
    head = base.head
    if head and head.transform:
        head = replace(head, transform=replace(head.transform, width=table_width))
    return replace(base, embed=embed, head=head)


TINY = BERT | {"table_width": 16}
BASE = {"width": 768, "table_width": 768, "heads": 12, "mlp_width": 3072, "head": False, "task": "replaced"}
PUBLISHED = {
    "electra-small-generator": {},
    "electra-base-generator": {"table_width": 768},
    "electra-large-generator": {"table_width": 1024, "layers": 24},
    "electra-small": {"head": False, "task": "replaced"},
    "electra-base": BASE,
    "electra-large": BASE | {"width": 1024, "table_width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096},
}
