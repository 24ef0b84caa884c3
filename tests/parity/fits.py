"""What a model must have for a bug to be a bug of it: questions to its spec."""

from collections.abc import Callable

from lineage import components as c
from lineage import graph
from tests.parity.bugs import Fits, stream_norms


def always(spec: c.Model) -> bool:
    return True


def has(*names: str) -> Fits:
    """Tensors, by full name or by a module's path."""
    return lambda spec: all(any(f"{t}.".startswith(f"{name}.") for t in shapes(spec)) for name in names)


def square(path: str) -> Fits:
    return lambda spec: len(set(shapes(spec).get(f"{path}.weight", (1, 2)))) == 1


def shapes(spec: c.Model) -> dict[str, c.Shape]:
    """The spec's tensors; asked often, so kept with it."""
    if id(spec) not in KEPT:
        KEPT[id(spec)] = spec, graph.tensors(spec)
    return KEPT[id(spec)][1]


KEPT: dict[int, tuple[c.Model, dict[str, c.Shape]]] = {}


def every(*tests: Fits) -> Fits:
    return lambda spec: all(test(spec) for test in tests)


def either(*tests: Fits) -> Fits:
    return lambda spec: any(test(spec) for test in tests)


def lacks(test: Fits) -> Fits:
    return lambda spec: not test(spec)


# Attention


def attention(test: Callable[[c.Attention], object]) -> Fits:
    return of(lambda spec: spec.blocks[1].attention.body, c.Attention, test)


def latent(test: Callable[[c.LatentAttention], object] = always) -> Fits:
    return of(lambda spec: spec.blocks[1].attention.body, c.LatentAttention, test)


def of(part: Callable[[c.Model], c.Component], kind: type[c.Component], test: Callable) -> Fits:
    return lambda spec: isinstance(part(spec), kind) and test(part(spec))


plain = attention(lambda one: not one.disentangled)


def causal(spec: c.Model) -> bool:
    return isinstance(spec.blocks[1].attention.body.mask, c.Causal)


def both_ways(spec: c.Model) -> bool:
    return isinstance(spec.blocks[1].attention.body.mask, c.Bidirectional)


def windowed(one: c.Attention) -> object:
    return isinstance(one.mask, c.Causal) and (one.mask.window or 999) < 60  # one that the probes are longer than


def chunked(one: c.Attention) -> object:
    return isinstance(one.mask, c.Chunked)


def mixed_windows(spec: c.Model) -> bool:
    masks = [block.attention.body.mask for block in spec.blocks[:2]]
    return masks[0] != masks[1] and all(isinstance(mask, c.Causal) for mask in masks)


def grouped(one: c.Attention) -> bool:
    return 1 < one.kv_heads < one.heads


def alike(one: c.Attention) -> bool:
    return one.kv_heads == one.heads


def turned(one: c.Attention) -> object:
    return one.rotary


def paired(one: c.Attention | c.LatentAttention) -> object:
    """Whose channels turn in neighbours, as rows of the matrices stand or not."""
    return one.rotary and one.rotary.pairing == "neighbours"


def partly(one: c.Attention) -> object:
    return one.rotary and one.rotary.width < one.head_width


def stretched(one: c.Attention) -> object:
    return one.rotary and one.rotary.scaling


def normed(one: c.Attention) -> object:
    return one.query_norm and one.key_norm and one.query_norm.weight and one.key_norm.weight


def tabled(one: c.Attention) -> object:
    return isinstance(one.query_norm, c.LayerNorm) and one.query_norm.tables


def halvable(one: c.Attention) -> bool:
    """Nothing but its width hangs on how many heads there are."""
    turning = not one.rotary or (one.rotary.width % 4 == 0 and not one.rotary.scaling)
    return one.head_width % 4 == 0 and turning and not (one.sinks or one.position_bias or tabled(one))


# Feed-forward networks


def mlp(test: Callable[[c.Component], object]) -> Fits:
    return lambda spec: test(spec.blocks[1].mlp.body)


def dense(one: c.Component) -> bool:
    return isinstance(one, c.FeedForward)


def gated(one: c.Component) -> bool:
    return dense(one) and one.gated


def gelu(spec: c.Model) -> bool:
    return spec.blocks[1].mlp.body.activation.startswith("gelu")


def mixture(one: c.Component) -> bool:
    return isinstance(one, c.Experts)


def experts(test: Callable[[c.Experts], object]) -> Fits:
    return of(lambda spec: spec.blocks[1].mlp.body, c.Experts, test)


def router(test: Callable[[c.Router], object]) -> Fits:
    return experts(lambda one: test(one.router))


# Norms and blocks


def stream_norm(kind: type[c.Component]) -> Fits:
    """The first norm of the stream that has a weight is of this kind."""

    def test(spec: c.Model) -> bool:
        paths = stream_norms(spec)
        return bool(paths) and isinstance(component(spec, paths[0]), kind)

    return test


def component(spec: c.Model, path: str) -> c.Component:
    return next(node.component for node in graph.walk(spec) if node.path == path)


def several_norms(spec: c.Model) -> bool:
    return len(stream_norms(spec)) > 1


def real_eps(spec: c.Model) -> bool:
    """Not so small that it is lost in any variance."""
    return all(component(spec, path).eps >= 1e-6 for path in stream_norms(spec))


def slot(branch: str, at: str, to: str) -> Fits:
    def test(spec: c.Model) -> bool:
        residual = getattr(spec.blocks[1], branch)
        return getattr(residual, at) is not None and getattr(residual, to) is None

    return test


def alike_layers(spec: c.Model) -> bool:
    first, second = (graph.tensors(block, spec.embed.stream) for block in spec.blocks[:2])
    return first == second


def serial(spec: c.Model) -> bool:
    return not spec.blocks[1].parallel


def crossed(spec: c.Model) -> bool:
    return spec.encoder is not None


def block(test: Callable[[c.Block], object]) -> Fits:
    return lambda spec: test(spec.blocks[1])


# Both ends


def own_table(spec: c.Model) -> bool:
    return not spec.embed.tied


def positions(*kinds: type[c.Component]) -> Fits:
    return lambda spec: isinstance(spec.embed.positions, kinds)


def ids(kind: type[c.Component]) -> Fits:
    return every(positions(c.LearnedPositions), lambda spec: isinstance(spec.embed.positions.ids, kind))


def segmented(spec: c.Model) -> bool:
    return spec.embed.segments is not None and spec.embed.segments.count > 1


def normed_sum(spec: c.Model) -> bool:
    """The embedding's norm follows a sum."""
    return spec.embed.norm is not None and (spec.embed.positions or spec.embed.segments) is not None


def head(test: Callable[[c.Head], object]) -> Fits:
    return lambda spec: spec.head is not None and test(spec.head)


transforms = head(lambda one: one.transform)
