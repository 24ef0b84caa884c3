"""What a model is run on. B batch, T tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lineage import components as c
from lineage import graph
from lineage.count import places
from lineage.errors import UsageError
from lineage.values import Value

UNLIMITED = 256  # tokens of the longest probe where no table limits it
ENDLESS = 4096  # tokens that are taken to be usable where nothing limits them


class Probe(Value):
    """One call. keep_BT: true for real tokens, None if all are; segments_BT: None if the model has none.

    source_BS: the encoder's tokens, with those of them that are real; None if the model has no encoder.
    """

    name: str
    ids_BT: Tensor
    keep_BT: Tensor | None = None
    segments_BT: Tensor | None = None
    source_BS: Tensor | None = None
    source_keep_BS: Tensor | None = None

    def arguments(self, device: str | torch.device = "cpu") -> dict[str, Tensor]:
        """The call's arguments, by the names that ours and the reference share."""
        mask_BT, source_mask_BS = (
            None if keep is None else keep.long() for keep in (self.keep_BT, self.source_keep_BS)
        )
        given = {"input_ids": self.ids_BT, "attention_mask": mask_BT, "token_type_ids": self.segments_BT}
        if self.source_BS is not None:
            given = {f"decoder_{name}": value for name, value in given.items()}
            given |= {"input_ids": self.source_BS, "attention_mask": source_mask_BS}
        return {name: value.to(device) for name, value in given.items() if value is not None}

    @property
    def tokens(self) -> int:
        """How many positions are compared."""
        return int(self.keep_BT.sum()) if self.keep_BT is not None else self.ids_BT.numel()


def usable_length(spec: c.Model) -> int:
    """How many tokens the model can take; ENDLESS where nothing limits it."""
    found = [places(one) for one in (spec, spec.encoder) if one]
    return min((length for length in found if length is not None), default=ENDLESS)


def steady_length(spec: c.Model) -> int:
    """How many tokens it can take before angles hang on how long the call is, so that no prefix is like the whole."""
    scalings = [node.component for node in graph.walk(spec) if isinstance(node.component, c.Dynamic | c.LongRope)]
    return min((usable_length(spec), *(scaling.length for scaling in scalings)))


def default_probes(spec: c.Model, seed: int = 0) -> list[Probe]:
    """Short, long (128), padded on both sides, and the full context: random tokens, the same for one spec and seed."""
    longest = usable_length(spec)
    generator = torch.Generator().manual_seed(seed)
    full = longest if longest < ENDLESS else UNLIMITED
    lengths = {"short": min(5, longest), "long": min(128, longest), "full": full}
    probes = {length: _probe(spec, name, 1, length, generator) for name, length in lengths.items()}
    padded = _padded(spec, min(24, longest), generator)
    return [*probes.values(), *([padded] if padded else [])]


def given_probes(spec: c.Model, sequences: Sequence[Sequence[int]]) -> list[Probe]:
    """A user's own token ids, one call for each sequence. Raises UsageError for ids or lengths beyond the model."""
    for number, ids in enumerate(sequences):
        if max(ids, default=spec.embed.vocab) >= spec.embed.vocab or len(ids) > usable_length(spec):
            takes = f"the model takes {usable_length(spec)} tokens, of {spec.embed.vocab}"
            raise UsageError(f"prompt {number}: {len(ids)} tokens, up to {max(ids, default=0)}; {takes}")
    probes = []
    for number, ids in enumerate(sequences):
        ids_BT = torch.tensor([list(ids)])
        source_BS = ids_BT if spec.encoder else None  # of an encoder and decoder, the prompt is given to both
        probes.append(Probe(f"prompt {number}", ids_BT, None, _segments(spec, 1, len(ids)), source_BS))
    return probes


def reads_padding(spec: c.Model) -> bool:
    """Whether padding on the left is read as a text's first token, though what padding sees is nowhere laid down."""
    parts = [node.component for node in graph.walk(spec)]
    blind = any(isinstance(one, c.Disentangled) or (isinstance(one, c.Bidirectional) and one.reach) for one in parts)
    return blind and spec.classifier is not None and spec.classifier.reads == "first"


def pad_token(spec: c.Model) -> int | None:
    """The token that positions skip, where there is such."""
    ids = spec.embed.positions.ids if spec.embed.positions else None
    return ids.pad if isinstance(ids, c.SkipPadding) else None


def tokens(spec: c.Model, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """[rows, length] random tokens, none of them padding."""
    ids_BT = torch.randint(0, spec.embed.vocab, (rows, length), generator=generator)
    pad = pad_token(spec)
    if pad is not None and spec.embed.vocab > 1:
        ids_BT = torch.where(ids_BT == pad, (pad + 1) % spec.embed.vocab, ids_BT)
    return ids_BT


def _segments(spec: c.Model, rows: int, length: int) -> Tensor | None:
    if spec.embed.segments is None:
        return None
    return (torch.arange(length) * spec.embed.segments.count // length).expand(rows, length).contiguous()


def _probe(spec: c.Model, name: str, rows: int, length: int, generator: torch.Generator) -> Probe:
    ids_BT = tokens(spec, rows, length, generator)
    return Probe(name, ids_BT, None, _segments(spec, rows, length), sources(spec, rows, length, generator))


def sources(spec: c.Model, rows: int, length: int, generator: torch.Generator) -> Tensor | None:
    """Tokens for the encoder, [rows, S]: never as many as the decoder's, so that shapes tell them apart."""
    if spec.encoder is None:
        return None
    return tokens(spec.encoder, rows, length - 3 if length > 4 else length + 1, generator)


def _padded(spec: c.Model, length: int, generator: torch.Generator) -> Probe | None:
    """Three rows: padded on the right, on the left, and not."""
    if length < 4:
        return None
    ids_BT, keep_BT = _with_pads(spec, tokens(spec, 3, length, generator))
    source_BS, source_keep_BS = sources(spec, 3, length, generator), None
    if spec.encoder is not None and source_BS is not None:
        source_BS, source_keep_BS = _with_pads(spec.encoder, source_BS)
    return Probe("padded", ids_BT, keep_BT, _segments(spec, 3, length), source_BS, source_keep_BS)


def _with_pads(spec: c.Model, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens with padding at the end of the first row and the beginning of the second; and where they are real.

    Of a model that would answer from a token of padding, at the end of both.
    """
    length, keep_BT, pad = ids_BT.shape[1], torch.ones(ids_BT.shape, dtype=torch.bool), pad_token(spec)
    keep_BT[0, length - length // 4 :] = False
    keep_BT[1, slice(length - length // 3, None) if reads_padding(spec) else slice(length // 3)] = False
    return torch.where(keep_BT, ids_BT, 0 if pad is None else pad), keep_BT
