"""What bugs are planted in: tiny models of every family, and in which of them each bug."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from lineage import catalog, graph
from lineage import components as c
from lineage.modules.model import build
from lineage.parity.activations import Pair, pairs
from lineage.parity.tiny import tiny
from lineage.plan import expected
from tests.parity.bugs import Bug
from tests.published import JUDGED

LENGTH = 64  # of the longest probe that is replayed
SPELLINGS = 4


@cache
def spec(kind: str, **arguments: object) -> c.Model:
    _, dialect, chosen = tiny(kind, **arguments)
    return catalog.families()[dialect.spec].function(**chosen)


def small(kind: str) -> dict[str, object]:
    """Arguments of a model that runs in little time: few layers, and no long probe (see `_one_reference`)."""
    known = catalog.defaults(catalog.families()[catalog.dialects()[kind].spec])
    few = {"layers": 2} | ({"decoder_layers": 2} if "decoder_layers" in known else {})
    sparse = {"dense": (0,)} if known.get("dense", ()) is None else {}  # experts in the layer where bugs are planted
    return few | sparse | ({"context": LENGTH} if isinstance(spec(kind).embed.positions, c.LearnedPositions) else {})


def kinds() -> list[str]:
    """Model types; of those with the same tensors under the same names, the first."""
    every = ((kind, catalog.dialects()[kind]) for kind in reversed(catalog.dialects()) if kind in JUDGED)
    told = {repr((dialect.tensors, dialect.taps, graph.tensors(spec(kind)))): kind for kind, dialect in every}
    return sorted(told.values())


KINDS = kinds()
LONG = c.LongRope(short=(1.0, 1.5, 2.0, 3.0), long=(2.0, 4.0, 6.0, 8.0), length=40, long_attention=1.2)
MORE = {  # what the plain ones lack
    "bert pretraining": ("bert", {"pooler": True, "next_sentence": True}),
    "roberta encoder": ("roberta", {"head": False, "pooler": True}),
    "gpt2 untied": ("gpt2", {"tied": False}),
    "mistral window": ("mistral", {"window": 7}),
    "llama scaled": ("llama", {"scaling": c.Banded(factor=4.0, low=1.0, high=4.0, length=32), "tied": True}),
    "llama with biases": ("llama", {"bias": True, "mlp_bias": True}),
    "gpt_neox serial": ("gpt_neox", {"parallel": False}),
    "bloom normed": ("bloom", {"normed": True}),
    "falcon slopes": ("falcon", {"alibi": True, "parallel": False, "multi_query": False, "heads": 12}),
    "stablelm parallel": ("stablelm", {"parallel": True, "head_norms": True}),
    "cohere with norms": ("cohere", {"head_norms": True}),
    "llama4 plain": ("llama4_text", {"turned": ("rotary", "plain")}),
    "opt narrow": ("opt", {"embed_width": 16, "pre_norm": False}),
    "albert groups": ("albert", {"groups": 2}),
    "phi3 long": ("phi3", {"width": 48, "scaling": LONG}),
}
CASES: dict[str, tuple[str, dict]] = {kind: (kind, {}) for kind in KINDS} | MORE


@cache
def model_of(case: str) -> c.Model:
    kind, arguments = CASES[case]
    return spec(kind, **small(kind) | arguments)


@cache
def profile(case: str) -> frozenset[str]:
    """What a case spells in its own way: rules and taps of the layers, and the values of their components."""
    dialect, layers = catalog.dialects()[CASES[case][0]], model_of(case).blocks[1]
    rules = [repr((rule.sources, rule.operations)) for rule in (*dialect.tensors, *dialect.memory)]
    parts = [repr(node.component) for node in graph.walk(layers)]
    return frozenset([*rules, *(tap.target for tap in dialect.taps), *parts])


def planned(bugs: Iterable[Bug]) -> Iterator[tuple[Bug, str]]:
    """Every bug with the cases that it is planted in."""
    used: Counter[str] = Counter()
    for bug in bugs:
        left = [case for case in CASES if len(model_of(case).blocks) > 1 and bug.fits(model_of(case))]
        chosen: list[str] = []
        while left and len(chosen) < SPELLINGS:
            apart = {case: min((distance(case, other) for other in chosen), default=0.0) for case in left}
            chosen.append(max(left, key=lambda case: (apart[case], -used[case])))
            left.remove(chosen[-1])
        used.update(chosen)
        yield from ((bug, case) for case in chosen)


def distance(one: str, other: str) -> float:
    a, b = profile(one), profile(other)
    return round(1 - len(a & b) / len(a | b), 1)


@cache
def pairs_of(case: str) -> dict[str, Pair]:
    """What has a module of its own in the reference, by our paths."""
    dialect, model = catalog.dialects()[CASES[case][0]], model_of(case)
    memory = replace(dialect, tensors=(*dialect.memory, *dialect.tensors))
    paths = [path for path, _ in build(model).named_modules() if path]
    found = pairs(dialect, expected(memory, model, dialect.prefixes[0]), dialect.prefixes[0], paths)
    return {pair.ours: pair for pair in found}
