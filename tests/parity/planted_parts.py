"""Bugs of the parts that came after Llama's: see `planted`."""

from collections.abc import Iterator
from dataclasses import replace

from lineage import components as c
from tests.parity import bugs as b
from tests.parity import fits as f
from tests.parity import rows, wrong
from tests.parity import wrong_parts as parts
from tests.parity.bugs import ATTENTION, BEHAVES, MLP, PRODUCT, ROUTER, SEEN, WEIGHTS, Bug, Fits


def attention() -> Iterator[Bug]:
    def one(name: str, kind: type, fits: Fits, claims: tuple[str, ...] = SEEN) -> Bug:
        return Bug(name, b.turn(PRODUCT, kind), fits, claims)

    alibi = f.attention(lambda a: a.position_bias)
    slopes = f"{ATTENTION}.position_bias"
    yield Bug("slopes of the wrong heads", b.blamed(PRODUCT, b.turn(slopes, wrong.SlopesBackwards)), alibi)
    yield Bug("slopes of the wrong sign", b.blamed(PRODUCT, b.turn(slopes, wrong.SlopesDown)), alibi)
    uneven = f.attention(lambda a: a.position_bias and a.heads & (a.heads - 1))
    powers = b.blamed(PRODUCT, b.turn(slopes, wrong.SlopesOfAnyNumber))
    yield Bug("slopes as if heads were a power of two", powers, uneven)
    scaled = f.attention(lambda a: a.position_bias and a.position_bias.scale != 1)
    yield Bug("slopes not scaled", b.blamed(PRODUCT, b.respec(slopes, scale=1.0)), scaled)
    exact = f.attention(lambda a: a.position_bias and a.position_bias.rounded)
    yield Bug("slopes not rounded", b.blamed(PRODUCT, b.respec(slopes, rounded=False)), exact)
    learned = lambda spec: spec.position_bias  # noqa: E731
    yield Bug("distances backwards", rows.distances(b.turn("position_bias", wrong.DistancesBackwards)), learned)
    yield Bug("learned bias of distances lost", rows.distances(b.turn("position_bias", wrong.NoDistances)), learned)
    one_way = b.respec("position_bias", both_ways=lambda old: not old)
    yield Bug("distances one way for both, or the reverse", rows.distances(one_way), learned)
    reach = f.attention(lambda a: isinstance(a.mask, c.Bidirectional) and a.mask.reach)
    yield Bug("reach lost", b.respec(PRODUCT, mask=c.Bidirectional()), reach)
    further = b.respec(PRODUCT, mask=lambda old: c.Bidirectional(reach=old.reach + 1))
    yield Bug("reach one further", further, reach)
    sunk = f.attention(lambda a: a.sinks)
    yield one("sinks forgotten", wrong.ForgetsSinks, sunk)
    yield one("one sink for all heads", wrong.OneSinkForAll, sunk)
    clipped = f.attention(lambda a: a.clip)
    yield Bug("clip lost", b.respec(PRODUCT, clip=None), clipped)
    yield one("values not clipped", wrong.ClipsNoValues, clipped)
    yield Bug("clip before the norm", rows.clips_before_norms, f.attention(lambda a: a.clip and f.normed(a)))
    joined = f.attention(lambda a: a.joined and isinstance(a.query_norm, c.RMSNorm))
    yield Bug("each head normed by itself", rows.norms_each_head, joined)
    norm = b.turn(f"{ATTENTION}.query_norm", parts.FirstTableForAll)
    yield Bug("one head's norm for all", norm, f.attention(f.tabled))
    chunks = f.attention(f.chunked)
    yield one("chunks counted from padding", wrong.ChunksFromTheStart, chunks, BEHAVES)
    as_window = b.respec(PRODUCT, mask=lambda old: c.Causal(window=old.length))
    yield Bug("chunks taken for a window", as_window, chunks)
    longer = b.respec(PRODUCT, mask=lambda old: c.Chunked(length=old.length + 1))
    yield Bug("chunks one longer", longer, chunks)
    hot = f.attention(lambda a: a.temperature)
    yield Bug("temperature lost", b.respec(PRODUCT, temperature=None), hot)
    yield one("temperature off by one", wrong.HeatsOneLater, hot)
    yield one("keys heated too", wrong.HeatsKeysToo, hot)
    long = f.attention(lambda a: a.rotary and isinstance(a.rotary.scaling, c.LongRope))
    yield Bug("factors of short texts for long ones", rows.short_for_long, long)
    heated = f.attention(lambda a: a.rotary and getattr(a.rotary.scaling, "attention", 1.0) != 1.0)
    yield Bug("the stretched rotation's own scale lost", rows.attention_factor_lost, heated)
    yield Bug(
        "turned where the layer is plain", rows.turned_anyway, f.attention(lambda a: not a.rotary and a.temperature)
    )


def latent() -> Iterator[Bug]:
    def one(name: str, kind: type) -> Bug:
        return Bug(name, b.turn(PRODUCT, kind), f.latent())

    yield one("latent key not turned", wrong.LatentKeyNotTurned)
    yield one("a query's turned channels first", wrong.LatentTurnedFirst)
    yield one("values before keys in a head's share", wrong.LatentValuesFirst)
    yield one("all keys, then all values", wrong.LatentKeysThenValues)
    yield Bug("interleaved channels taken for halves", rows.rotary(pairing="halves"), f.latent(f.paired))
    yield Bug("latent's norm left out", b.gone(f"{ATTENTION}.latent_norm"), f.latent())
    queries = f.latent(lambda a: a.query_latent)
    yield Bug("latent queries' norm left out", b.gone(f"{ATTENTION}.query_norm"), queries)
    yield Bug("scale by the plain channels alone", rows.scaled_by_plain, f.latent())
    for x in ("q_down", "q_up", "kv_down", "kv_up"):
        fits = queries if x.startswith("q") else f.latent()
        yield Bug(f"one weight of {x} nudged", b.nudged(f"{ATTENTION}.{x}.weight"), fits)


def experts() -> Iterator[Bug]:
    shared, gate = f.experts(lambda one: one.shared), f.experts(lambda one: one.shared_gate)
    yield Bug("shared expert lost", b.changed(MLP, "shared", None), shared)
    yield Bug("shared expert's gate lost", b.changed(MLP, "shared_gate", None), gate)
    yield Bug("shared expert's gate without its sigmoid", b.turn(MLP, parts.GateWithoutSigmoid), gate)
    corrected = f.router(lambda one: one.correction)
    yield Bug("correction forgotten", b.blamed(WEIGHTS, b.changed(ROUTER, "correction", None)), corrected)
    yield Bug("correction used in weights", b.blamed(WEIGHTS, b.turn(ROUTER, parts.WeighsCorrected)), corrected)
    grouped = f.router(lambda one: one.groups and one.groups.keep < one.groups.count)
    yield Bug("groups ignored", b.blamed(WEIGHTS, b.respec(ROUTER, groups=None)), grouped)
    judged = b.respec(ROUTER, groups=lambda old: c.Groups(count=old.count, keep=old.keep, pair=not old.pair))
    best = "groups judged by their best for their two best, or the reverse"
    yield Bug(best, b.blamed(WEIGHTS, judged), grouped)
    scaled = f.router(lambda one: one.scale != 1)
    yield Bug("experts' scale lost", b.blamed(WEIGHTS, b.respec(ROUTER, scale=1.0)), scaled)
    mixer = f.router(lambda one: one.jitter is not None)
    yield Bug("the mixer's experts weighed among all", b.blamed(WEIGHTS, b.turn(ROUTER, parts.WeighsAmongAll)), mixer)
    yield Bug("the mixer as a softmax", b.blamed(WEIGHTS, b.respec(ROUTER, score="softmax", jitter=None)), mixer)
    yield Bug("router's bias lost", b.changed(ROUTER, "bias", None), f.router(lambda one: one.bias))
    endless = b.respec(MLP, router=lambda old: replace(old, capacity=None))
    yield Bug("experts without end", endless, f.router(lambda one: one.capacity))
    early = f.experts(lambda one: one.early)
    yield Bug("experts' results weighed for their inputs", b.turn(MLP, parts.WeighsLate), early)
    clamped = f.experts(lambda one: one.clamp)
    yield Bug("clamped gate times up alone", b.turn(MLP, parts.UpWithoutOne), clamped)
    slope = b.respec(MLP, clamp=lambda old: c.Clamp(limit=old.limit, slope=1.0))
    yield Bug("the clamped gate's slope lost", slope, clamped)
    open_ = b.respec(MLP, clamp=lambda old: c.Clamp(limit=1e9, slope=old.slope))
    yield Bug("clamp lost", open_, clamped)
    for x in ("gate", "up", "down"):
        lost = b.altered(f"{MLP}.{x}_bias", lambda bias: bias * 0)
        yield Bug(f"biases of the experts' {x} lost", lost, f.experts(lambda one: one.bias))


def blocks() -> Iterator[Bug]:
    one = f.block(lambda block: block.norm_input)
    yield Bug("one shared norm applied twice", b.turn("blocks.1", parts.SharedNormTwice), one)
    yield Bug("one shared norm read by attention alone", b.turn("blocks.1", parts.MlpWithoutNorm), one)
    for x in ("attention", "mlp"):
        scaled = f.block(lambda block, x=x: getattr(block, x).scale)
        yield Bug(f"{x}'s residual scale lost", b.changed(f"blocks.1.{x}", "scale", None), scaled)
        normed = f.block(lambda block, x=x: getattr(block, x).normed)
        yield Bug(f"{x} added to the stream and not to its norm", b.changed(f"blocks.1.{x}", "normed", False), normed)
    cross = "blocks.1.cross"
    yield Bug("the encoder not listened to", b.turn("blocks.1", parts.NoCross), f.crossed)
    yield Bug("the encoder listened to first", b.turn("blocks.1", parts.CrossFirst), f.crossed)
    yield Bug("keys and values of the encoder swapped", b.swapped(f"{cross}.body.k", f"{cross}.body.v"), f.crossed)
    padding = b.turn(f"{cross}.body.product", wrong.ForgetsPadding)
    yield Bug("the source's padding seen", padding, f.crossed, BEHAVES)
    ahead = b.respec("encoder.blocks.1.attention.body.product", mask=c.Causal())
    yield Bug("an encoder that looks back alone", ahead, f.crossed)
