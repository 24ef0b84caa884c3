"""Attention, its masks and what is added to its scores, as components."""

from collections.abc import Mapping

from lineage.fields import Component, Shape, check_positive, choice, contradiction, dense, size
from lineage.norms import Norm, check_tables
from lineage.rotary import Rotary


class Causal(Component):
    """A token attends to itself and to those before it; with a window, to the nearest `window` of these."""

    window: int | None = size(default=None)


class Bidirectional(Component):
    """A token attends to all tokens; with a reach, to those at most that far on either side."""

    reach: int | None = size(default=None)


class Chunked(Component):
    """A token attends to itself and to those before it in its chunk of `length` tokens (Llama 4).

    Chunks are counted from a row's first token that is no padding.
    """

    length: int = size()


Mask = Causal | Bidirectional | Chunked


class RelativeBias(Component):
    """To each score is added a learned number for its head and the bucket of its distance (Raffel et al. 2020, §2.1).

    Half of the buckets hold one distance each, the rest growing ranges up to `distance`, beyond which all is one.
    both_ways: keys before and after the query have buckets of their own; else those after are at distance 0.
    """

    buckets: int = size()
    distance: int = size()
    heads: int = size()
    both_ways: bool = choice()

    def check(self) -> None:
        single = self.buckets // (4 if self.both_ways else 2)
        if not 1 <= single < self.distance:
            raise contradiction(f"{self.buckets} buckets for distances to {self.distance}", "buckets", "distance")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.buckets, self.heads)}


class Distances(Component):
    """A vector for each distance between two tokens, `span` to either side, which every block's attention reads.

    (He et al. 2020, §3.1.) reach: where given, distances from span / 2 on share vectors by growing ranges, the last of
    which ends there (He et al. 2021, DeBERTaV3); beyond the outermost all are one.
    """

    span: int = size()
    reach: int | None = size(default=None)
    norm: Norm | None = choice(default=None)

    def check(self) -> None:
        if self.reach is not None and not 1 <= self.span // 2 < self.reach - 1:
            raise contradiction(f"vectors for {self.span} distances that reach to {self.reach}", "span", "reach")
        check_tables(self)

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (2 * self.span, width)}


class Disentangled(Component):
    """To q kᵀ is added what tokens' queries are to distances' keys, and tokens' keys to distances' queries.

    (He et al. 2020, eq. 4.) keys, queries: which of the two. All is divided by √(head_width · (1 + how many)). shared:
    distances are mapped as tokens are, and not by maps of their own.
    """

    keys: bool = choice(default=True)
    queries: bool = choice(default=True)
    shared: bool = choice(default=True)

    def check(self) -> None:
        if not (self.keys or self.queries):
            raise contradiction("distances have neither keys nor queries: nothing reads them", "keys", "queries")


class Alibi(Component):
    """To each score is added scale · slope of the head · place of the key (Press et al. 2022, §3).

    Places count what the attention mask keeps. rounded: slopes and products are rounded to bfloat16. exact: what is
    added is in single precision, and so are the scores from there on.
    """

    scale: float = choice(default=1.0)
    rounded: bool = choice(default=False)
    exact: bool = choice(default=False)

    def check(self) -> None:
        check_positive(self, "scale")


class Temperature(Component):
    """Queries are multiplied by 1 + scale · ln(1 + ⌊(place + 1) / length⌋) (Llama 4; after Nakanishi 2025, eq. 2)."""

    scale: float = choice()
    length: float = choice()

    def check(self) -> None:
        check_positive(self, "scale", "length")


class Attention(Component):
    """Multi-head attention, softmax(q kᵀ · scale + mask) v (Vaswani et al. 2017, eq. 1).

    scale: None is 1/√head_width; early: queries are multiplied by it, and not scores. bias: of q, k and v; output_bias:
    of o. query_norm, key_norm: over each head's channels; joined: over those of all heads at once. clip: then q, k and
    v are kept within ±clip. rotary: then queries and keys are turned; then temperature. position_bias: what is added to
    the scores. softcap: scores are bent to c · tanh(scores / c). sinks: a learned score for each head joins the
    softmax, and its share goes nowhere (Xiao et al. 2023, §3.3). exact: scores are in single precision. cross: keys and
    values come from the encoder's result, and mask is over its tokens. disentangled: scores know distances too.
    """

    heads: int = size()
    kv_heads: int = size()
    head_width: int = size()
    mask: Mask = choice()
    bias: bool = choice()
    output_bias: bool = choice()
    scale: float | None = choice(default=None)
    early: bool = choice(default=False)
    rotary: Rotary | None = choice(default=None)
    query_norm: Norm | None = choice(default=None)
    key_norm: Norm | None = choice(default=None)
    joined: bool = choice(default=False)
    clip: float | None = choice(default=None)
    temperature: Temperature | None = choice(default=None)
    position_bias: Alibi | None = choice(default=None)
    softcap: float | None = choice(default=None)
    sinks: bool = choice(default=False)
    exact: bool = choice(default=False)
    cross: bool = choice(default=False)
    disentangled: Disentangled | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "softcap", "clip", "scale")
        other = self.scale or self.rotary or self.position_bias or self.cross or self.kv_heads != self.heads
        if self.disentangled and other:
            raise contradiction("disentangled scores have a scale of their own, and every head its keys", "scale")
        if self.rotary and self.rotary.width > self.head_width:
            raise contradiction(f"no {self.rotary.width} of {self.head_width} channels turn", "rotary", "head_width")
        if self.heads % self.kv_heads:
            raise contradiction(f"kv_heads {self.kv_heads} does not divide heads {self.heads}", "kv_heads", "heads")
        if self.joined and not (self.query_norm or self.key_norm):
            raise contradiction("joined is of norms of queries and keys, and there are none", "joined")
        check_tables(self, **({} if self.joined else {"query_norm": self.heads, "key_norm": self.kv_heads}))
        if self.cross and (self.rotary or self.position_bias or self.temperature or self.mask != Bidirectional()):
            raise contradiction("cross attention sees all of the encoder's tokens, without places", "cross")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        apart = self.disentangled if self.disentangled and not self.disentangled.shared else None
        return (
            dense("q", queries, width, self.bias)
            | dense("k", keys, width, self.bias)
            | dense("v", keys, width, self.bias)
            | dense("o", width, queries, self.output_bias)
            | ({"sinks": (self.heads,)} if self.sinks else {})
            | (dense("distance_key", keys, width, self.bias) if apart and apart.keys else {})
            | (dense("distance_query", queries, width, self.bias) if apart and apart.queries else {})
        )

    @property
    def kept(self) -> tuple[tuple[int, int], ...]:
        """What is kept of each token for later ones: heads and width of keys, and of values."""
        return ((self.kv_heads, self.head_width),) * 2

    def child_width(self, child: str, width: int) -> int:
        if child == "position_bias":
            return self.heads
        count = self.heads if child == "query_norm" else self.kv_heads
        return self.head_width * (count if self.joined else 1)


class LatentAttention(Component):
    """Attention whose keys and values come from one small vector a token (MLA; DeepSeek-V2, §2.1, eq. 9 to 19).

    x → kv_down → latent (normed) → kv_up → for each head a key of `plain` channels and a value of value_width; one more
    key of rotary.width channels is shared by all heads and turned. Queries likewise from a vector of query_latent, or
    straight from x if that is None. bias: of the maps from x and of o.
    """

    heads: int = size()
    query_latent: int | None = size()
    latent: int = size()
    plain: int = size()
    value_width: int = size()
    rotary: Rotary = choice()
    mask: Mask = choice()
    query_norm: Norm | None = choice()
    latent_norm: Norm = choice()
    bias: bool = choice(default=False)
    scale: float | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "scale")
        if (self.query_latent is None) != (self.query_norm is None):
            raise contradiction("LatentAttention: query_norm is of query_latent", "query_norm", "query_latent")
        check_tables(self)

    @property
    def head_width(self) -> int:
        """Channels of a query or key."""
        return self.plain + self.rotary.width

    def tensors(self, width: int) -> Mapping[str, Shape]:
        queries, values = self.heads * self.head_width, self.heads * self.value_width
        whole = dense("q", queries, width, False)
        if self.query_latent is not None:
            whole = dense("q_down", self.query_latent, width, self.bias) | dense(
                "q_up", queries, self.query_latent, False
            )
        return (
            whole
            | dense("kv_down", self.latent + self.rotary.width, width, self.bias)
            | dense("kv_up", self.heads * self.plain + values, self.latent, False)
            | dense("o", width, values, self.bias)
        )

    @property
    def kept(self) -> tuple[tuple[int, int], ...]:
        """What is kept of each token: the latent, and the key that all heads share."""
        return ((1, self.latent + self.rotary.width),)

    def child_width(self, child: str, width: int) -> int:
        return self.latent if child == "latent_norm" else self.query_latent or 0
