"""What cannot be is refused, and the refusal names whose values contradict each other: every refusal there is."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from lineage import attention as attentions
from lineage import catalog, components, embedding, feed_forward, heads, norms, rotary
from lineage import components as c
from lineage.errors import ArchitectureError
from tests.specimens import LAYER, RMS, ROTARY, SPECIMENS, attention, block, dense, experts, model

TABLES = c.LayerNorm(eps=0.1, bias=False, tables=2)
LATENT = SPECIMENS["latent"].blocks[0].attention.body
PAIR = SPECIMENS["encoded"]
CROSS = PAIR.blocks[0].cross
EMBED = c.Embed(vocab=5, width=4)
NARROW = c.Projection(width=2, bias=False)
SCALINGS = [
    c.Linear(factor=2.0),
    c.Dynamic(factor=2.0, length=40),
    c.Banded(factor=8.0, low=1.0, high=4.0, length=40),
    c.Yarn(factor=4.0, length=40),
]
LONG = c.LongRope(short=(1.0, 2.0), long=(1.0, 2.0), length=4)
GROUPS = c.Groups(count=4, keep=2)


def router(**values: Any) -> c.Router:
    return c.Router(**({"experts": 8, "top_k": 2} | values))


def mixer(**values: Any) -> c.Router:
    return router(score="mixer", jitter=0.1, **values)


Case = tuple[Callable[[], Any], list[str]]
NORMS: list[Case] = [
    (lambda: c.LayerNorm(eps=-1e-5), ["eps"]),
    (lambda: c.LayerNorm(eps=0.1, weight=False), ["bias"]),
    (lambda: c.LayerNorm(eps=0.1, tables=2), ["bias"]),
    (lambda: replace(TABLES, weight=False), ["tables", "weight"]),
    (lambda: c.RMSNorm(eps=-1e-5), ["eps"]),
    (lambda: c.RMSNorm(eps=0.1, weight=False, plus_one=True), ["weight"]),
    (lambda: c.RMSNorm(eps=0.1, weight=False, late=True), ["weight"]),
    *(
        (lambda slot=slot: c.Residual(body=dense(), **{slot: TABLES}), [slot])
        for slot in ("norm_input", "norm_branch", "norm_sum")
    ),
    (lambda: block(parallel=True, norm_input=TABLES), ["norm_input"]),
    (lambda: c.Transform(activation="gelu", norm=TABLES), ["norm"]),
    (lambda: model(block(), norm=TABLES), ["norm"]),
    (lambda: replace(EMBED, norm=TABLES), ["norm"]),
    (lambda: replace(LATENT, latent_norm=TABLES), ["latent_norm"]),
    (lambda: attention(query_norm=TABLES), ["query_norm"]),
    (lambda: attention(key_norm=replace(TABLES, tables=4)), ["key_norm"]),
    (lambda: attention(key_norm=TABLES, joined=True), ["key_norm"]),
]
POSITIONS: list[Case] = [
    *((lambda one=one: replace(one, factor=0.0), ["factor"]) for one in SCALINGS),
    (lambda: replace(SCALINGS[2], low=0.0), ["low"]),
    (lambda: replace(SCALINGS[2], high=-1.0), ["high"]),
    (lambda: replace(SCALINGS[3], fast=0.0), ["fast"]),
    (lambda: replace(SCALINGS[3], slow=0.0), ["slow"]),
    (lambda: replace(SCALINGS[3], attention=0.0), ["attention"]),
    (lambda: replace(LONG, attention=0.0), ["attention"]),
    (lambda: replace(LONG, long_attention=-1.0), ["long_attention"]),
    (lambda: replace(LONG, short=(1.0,)), ["scaling"]),
    (lambda: replace(LONG, long=(1.0, 0.0)), ["scaling"]),
    (lambda: c.Rotary(theta=0.0, width=4), ["theta"]),
    (lambda: c.Rotary(theta=1e4, width=5), ["head_size", "share"]),
    (lambda: c.Rotary(theta=1e4, width=4, pairing="thirds"), ["pairing"]),
    (lambda: c.Rotary(theta=1e4, width=4, rounded="up"), ["rounded"]),
    (lambda: c.Rotary(theta=1e4, width=6, scaling=LONG), ["scaling"]),
    (lambda: c.Rotary(theta=1e4, width=2, scaling=SCALINGS[1]), ["scaling", "theta"]),
    (lambda: c.Rotary(theta=1.0, width=4, scaling=SCALINGS[3]), ["scaling", "theta"]),
    (lambda: c.Consecutive(offset=-1), ["offset"]),
    (lambda: c.SkipPadding(pad=-1), ["pad"]),
    (lambda: c.SkipMasked(offset=0), ["offset"]),
    (lambda: c.LearnedPositions(length=2, ids=c.SkipPadding(pad=1)), ["pad", "context"]),
    (lambda: c.LearnedPositions(length=2, ids=c.SkipMasked(offset=2)), ["pad", "context"]),
    (lambda: c.Sinusoids(length=2, ids=c.SkipPadding(pad=1)), ["pad", "context"]),
    (lambda: c.RelativeBias(buckets=3, distance=9, heads=1, both_ways=True), ["buckets", "distance"]),
    (lambda: c.RelativeBias(buckets=8, distance=4, heads=1, both_ways=False), ["buckets", "distance"]),
    (lambda: c.Alibi(scale=0.0), ["scale"]),
    (lambda: c.Temperature(scale=0.0, length=8.0), ["scale"]),
    (lambda: c.Temperature(scale=1.0, length=0.0), ["length"]),
]
ATTENTION: list[Case] = [
    *((lambda name=name: attention(**{name: 0.0}), [name]) for name in ("softcap", "clip", "scale")),
    (lambda: attention(rotary=c.Rotary(theta=1e4, width=4096)), ["rotary", "head_width"]),
    (lambda: attention(heads=6, kv_heads=4), ["kv_heads", "heads"]),
    (lambda: attention(joined=True), ["joined"]),
    (lambda: replace(CROSS.body, rotary=ROTARY), ["cross"]),
    (lambda: replace(CROSS.body, position_bias=c.Alibi()), ["cross"]),
    (lambda: replace(CROSS.body, temperature=c.Temperature(scale=1.0, length=8.0)), ["cross"]),
    (lambda: replace(CROSS.body, mask=c.Causal()), ["cross"]),
    (lambda: replace(CROSS.body, mask=c.Bidirectional(reach=2)), ["cross"]),
    (lambda: replace(LATENT, scale=0.0), ["scale"]),
    (lambda: replace(LATENT, query_latent=None), ["query_norm", "query_latent"]),
    (lambda: replace(LATENT, query_norm=None), ["query_norm", "query_latent"]),
]
EXPERTS: list[Case] = [
    (lambda: dense(activation="loud"), ["activation"]),
    (lambda: experts({}, activation="loud"), ["activation"]),
    (lambda: c.Clamp(limit=0.0, slope=1.0), ["limit"]),
    (lambda: c.Clamp(limit=1.0, slope=0.0), ["slope"]),
    (lambda: router(scale=0.0), ["scale"]),
    (lambda: router(eps=-0.1), ["eps", "jitter"]),
    (lambda: router(score="mixer", jitter=-0.1), ["eps", "jitter"]),
    (lambda: router(top_k=9), ["top_k", "experts"]),
    (lambda: router(score="loud"), ["score", "normalise"]),
    (lambda: router(normalise="loud"), ["score", "normalise"]),
    (lambda: router(score="mixer"), ["jitter", "score"]),
    (lambda: router(jitter=0.1), ["jitter", "score"]),
    (lambda: mixer(correction=True), ["score"]),
    (lambda: mixer(groups=GROUPS), ["score"]),
    (lambda: mixer(rounded=True), ["score"]),
    (lambda: router(capacity=3), ["capacity", "top_k"]),
    (lambda: router(groups=c.Groups(count=3, keep=2)), ["groups", "experts"]),
    (lambda: router(groups=c.Groups(count=4, keep=5)), ["groups", "experts"]),
    (lambda: router(top_k=5, groups=GROUPS), ["groups", "top_k"]),
    (lambda: router(groups=c.Groups(count=8, keep=2, pair=True)), ["groups", "experts"]),
    (lambda: experts({}, shared_gate=True), ["shared_gate", "shared"]),
    (lambda: experts({}, gated=False, clamp=c.Clamp(limit=1.0, slope=1.0)), ["clamp", "gated"]),
    (lambda: experts({}, activation="gelu", clamp=c.Clamp(limit=1.0, slope=1.0)), ["clamp", "activation"]),
]
BLOCKS: list[Case] = [
    (lambda: block(mlp={"scale": 0.0}), ["scale"]),
    (lambda: block(mlp={"normed": True, "norm_input": None}), ["normed"]),
    (lambda: block(mlp={"norm_sum": LAYER}, parallel=True), ["parallel"]),
    (lambda: block(attention={"normed": True}, parallel=True), ["parallel"]),
    (lambda: block(cross=CROSS, parallel=True), ["cross", "parallel"]),
    (lambda: block(cross=c.Residual(body=attention())), ["cross", "parallel"]),
    (lambda: block(CROSS.body), ["cross", "parallel"]),
    (lambda: block(None, CROSS.body), ["cross", "parallel"]),
    (lambda: block(norm_input=RMS), ["norm_input", "parallel"]),
    (lambda: block(stream_first=True), ["norm_input", "parallel"]),
]
ENDS: list[Case] = [
    (lambda: replace(EMBED, scale=0.0), ["scale"]),
    (lambda: replace(EMBED, padding=5), ["padding", "vocab"]),
    (lambda: replace(EMBED, early=True), ["early", "projection"]),
    (lambda: replace(EMBED, rounded=False), ["rounded", "scale"]),
    (lambda: replace(EMBED, width=3, positions=c.Sinusoids(closed=True)), ["width", "closed"]),
    (lambda: c.Transform(activation="", norm=RMS), ["activation"]),
    (lambda: c.Head(vocab=5, tied=True, softcap=-1.0), ["softcap"]),
    (lambda: c.Head(vocab=5, tied=True, scale=0.0), ["scale"]),
    (lambda: c.Head(vocab=5, tied=True, late=True), ["late", "bias"]),
    (lambda: c.Head(vocab=5, tied=True, early=True), ["early", "scale"]),
    (
        lambda: c.Head(vocab=5, tied=True, transform=c.Transform(activation="gelu", norm=RMS), projection=NARROW),
        ["transform", "projection"],
    ),
]
MODELS: list[Case] = [
    (lambda: model(), ["layers"]),
    (lambda: model(block(), order=(0, 1)), ["order", "layers"]),
    (lambda: model(block(), block(), order=(0, 0)), ["order", "layers"]),
    (lambda: model(block(), order=()), ["order", "layers"]),
    (lambda: replace(PAIR, encoder=None), ["cross"]),
    (lambda: replace(PAIR, blocks=(block(),)), ["cross"]),
    (lambda: replace(PAIR, encoder=replace(PAIR.encoder, head=c.Head(vocab=29, tied=True))), ["head"]),
    (lambda: replace(PAIR, encoder=replace(PAIR.encoder, pooler=c.Pooler())), ["head"]),
    (lambda: model(block(), embed=replace(EMBED, tied=True)), ["tied"]),
    (lambda: replace(PAIR, head=None, embed=replace(PAIR.embed, vocab=30)), ["tied"]),
    (
        lambda: replace(
            PAIR, head=None, embed=replace(PAIR.embed, width=6, projection=c.Projection(width=12, bias=False))
        ),
        ["tied"],
    ),
    (lambda: replace(PAIR, head=None, embed=c.Embed(vocab=29, width=13)), ["width"]),
    (lambda: model(block(), head=c.Head(vocab=7, tied=True)), []),
    (lambda: model(block(), head=c.Head(vocab=29, tied=True, projection=NARROW)), ["tied", "width"]),
    (
        lambda: model(
            block(),
            embed=c.Embed(vocab=29, width=6, projection=c.Projection(width=12, bias=True)),
            head=c.Head(vocab=29, tied=True),
        ),
        ["tied", "width"],
    ),
    (lambda: model(block(), next_sentence=c.Classifier(classes=2)), []),
    (lambda: model(block(), classifier=c.Classifier(classes=2)), []),
    (lambda: model(block(), next_sentence=c.Classifier(classes=2, reads="first")), []),
    (lambda: c.Classifier(classes=2, task="rank", reads="first"), ["task", "reads"]),
    (lambda: c.Disentangled(keys=False, queries=False), ["keys", "queries"]),
    (lambda: c.Distances(span=8, reach=5), ["span", "reach"]),
    (lambda: c.Distances(span=1, reach=5), ["span", "reach"]),
    (lambda: c.Convolution(kernel=4, activation="gelu", norm=c.LayerNorm(eps=0.1)), ["kernel"]),
    (lambda: model(block(), distances=c.Distances(span=4)), ["relative"]),
    (
        lambda: replace(SPECIMENS["entangled"], convolution=replace(SPECIMENS["entangled"].convolution, groups=5)),
        ["conv_groups", "width"],
    ),
    (lambda: replace(attention(), kv_heads=attention().heads, scale=0.3, disentangled=c.Disentangled()), ["scale"]),
    (lambda: c.Classifier(classes=2, reads="last"), ["task", "reads"]),
    (lambda: c.Classifier(classes=2, task="tokens", reads="first"), ["task", "reads"]),
    (lambda: c.Classifier(classes=2, reads="each"), ["task", "reads"]),
    (lambda: c.Classifier(classes=3, task="span", reads="each"), ["classes", "task"]),
    (lambda: c.Classifier(classes=2, task="choice"), ["classes", "task"]),
    (lambda: replace(PAIR, position_bias=replace(PAIR.position_bias, heads=2)), ["position_bias"]),
    (lambda: model(block(LATENT), position_bias=PAIR.position_bias), ["position_bias"]),
    (lambda: model(block(attention(position_bias=c.Alibi())), position_bias=PAIR.position_bias), ["position_bias"]),
]
FAMILIES: list[Case] = [
    (lambda: c.head_width(768, 5), ["heads", "width"]),
    (lambda: c.head_width(768, 0), ["heads", "width"]),
    (lambda: c.head_width("768", 12), ["heads", "width"]),
    (lambda: c.layer_names(["a"], ["a", "a"], "a"), ["pattern", "layers"]),
    (lambda: c.layer_names(["a", "b"], ["a", "a"], "a"), ["pattern"]),
    (lambda: replace(catalog.spec("gpt").blocks[0], parallel=True), ["parallel"]),
    (lambda: catalog.spec("gpt2", layers=-2), ["layers"]),
    (lambda: catalog.spec("gpt2", mlp_width=0), ["width"]),
    (lambda: catalog.spec("bert", segments=0), ["count"]),
    (lambda: catalog.spec("bert", head_activation=""), ["activation"]),
]
CASES = [*NORMS, *POSITIONS, *ATTENTION, *EXPERTS, *BLOCKS, *ENDS, *MODELS, *FAMILIES]


@pytest.mark.parametrize(("call", "arguments"), CASES)
def test_contradiction_names_the_arguments(call: Callable[[], Any], arguments: list[str]) -> None:
    with pytest.raises(ArchitectureError) as caught:
        call()
    assert caught.value.context["arguments"] == arguments
    assert len(caught.value.message) < 200


def refusals(module: ModuleType) -> set[tuple[str, int]]:
    """Where a module refuses something: its file and the first line of each `raise`."""
    source, path = inspect.getsource(module), str(module.__file__)
    return {(path, node.lineno) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)}


def test_every_refusal_of_the_vocabulary_is_tried() -> None:
    tried = set()
    for call, _ in CASES:
        with pytest.raises(ArchitectureError) as caught:
            call()
        tried |= {(str(entry.path), entry.lineno + 1) for entry in caught.traceback}
    wanted = set().union(*map(refusals, (components, attentions, embedding, feed_forward, heads, norms, rotary)))
    assert wanted - tried == set()
    assert len(wanted) > 40
