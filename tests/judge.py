"""Judges mutants: the right model with its results, and whether a changed spec gives others.

A model comes from a converted case, from a family's tiny arguments (`Grown`), or from the vocabulary alone (the name
of a specimen); whoever it is, its weights are spread.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from lineage import catalog
from lineage import components as c
from lineage.errors import ArchitectureError, LineageError
from lineage.modules.model import Model, build
from lineage.parity.probes import default_probes, usable_length
from lineage.parity.tiny import spread
from tests.mutants import Mutant, places
from tests.specimens import LONGEST

VISIBLE = 1e-9  # relative; a thousand times the limit of the fp64 level
ROUNDING = {  # what shows in short types alone
    r".*: late (True|False) -> (True|False)": "the same product, rounded before or after the weight",
    r"(?!.*position_bias:).*: rounded \w+ -> \w+": "the same numbers, rounded before they are used or after",
    r".*(attention|cross)\.body: early (True|False) -> (True|False)": "the same product, scaled before or after",
    r".*: stream_first (True|False) -> (True|False)": "the same sum of three, in another order",
    r"(?!.*norm\w*:).*: exact (True|False) -> (True|False)": "the same, in single precision where it would be shorter",
}
EQUIVALENT = ROUNDING | {  # a mutant's text -> why it is no other model
    r".*norm\w*: exact (True|False) -> (True|False)": "the same, and most often so where a kernel rounds once anyway",
    r".*activation gelu_(new|tanh|fast|cut) -> gelu_(new|tanh|fast|cut)": "one function, rounded in its last places",
    r"classifier: task \w+ -> \w+": "the same scores, trained with another loss",
}
CONDITIONAL: dict[str, Callable[[Any], bool]] = {  # a mutant's text -> of which components that is no other model
    r".*: attention and mlp exchanged": lambda part: part.parallel,  # with their tensors: the same two summands
    r".*: early (True|False) -> (True|False)": lambda part: isinstance(part, c.Head) and not part.bias,  # one product
    r".*: groups None -> Groups": lambda part: part.top_k == 1,  # the best of all is in the best group
    r".*: eps 0 -> 1e-05": lambda part: isinstance(part, c.Router) and part.normalise != "sum",  # no sum to add it to
}
TRAINING = r"(encoder\.)?embed: padding .*"  # mutants that must move a gradient, and no result


@dataclass(frozen=True)
class Call:
    """One call of a specimen, as `Probe` is of a family. further: arguments that only some models take."""

    ids_BT: Tensor
    keep_BT: Tensor | None = None
    further: dict[str, Tensor] = field(default_factory=dict)

    def arguments(self) -> dict[str, Tensor]:
        mask = {} if self.keep_BT is None else {"attention_mask": self.keep_BT.long()}
        return {"input_ids": self.ids_BT, **mask, **self.further}


def calls(spec: c.Model) -> list[Call]:
    """Padded on both sides, as long as a length allows, one less, a few tokens; and one more than there are places."""
    generator = torch.Generator().manual_seed(0)
    lengths = [(length, length) for length in (LONGEST, LONGEST - 1, 5)]  # of the tokens, and of a decoder's
    if usable_length(spec) == LONGEST:
        lengths += [(LONGEST + 1, LONGEST), *([(LONGEST, LONGEST + 1)] if spec.encoder else [])]
    keep = torch.ones(3, LONGEST, dtype=torch.bool)
    keep[0, -6:] = keep[1, :8] = False

    def drawn(rows: int, length: int, vocab: int) -> Tensor:
        return torch.randint(3, vocab, (rows, length), generator=generator)

    def call(rows: int, length: int, target: int, keep: Tensor | None = None) -> Call:
        ids = drawn(rows, length, (spec.encoder or spec).embed.vocab)
        halves = (torch.arange(length) * 2 // length).expand(ids.shape).contiguous()
        further = {"token_type_ids": halves} if spec.embed.segments else {}
        further |= {"decoder_input_ids": drawn(rows, target, spec.embed.vocab)} if spec.encoder else {}
        return Call(ids if keep is None else torch.where(keep, ids, 2), keep, further)

    return [call(3, LONGEST, LONGEST, keep), *(call(1, *pair) for pair in lengths)]


def spread_model(spec: c.Model, dtype: torch.dtype = torch.float64) -> Model:
    model = build(spec)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in spread(spec).items()}, assign=True)
    return model.eval()


@dataclass(frozen=True)
class Grown:
    """A tiny model of a spec alone: its family's tiny arguments, some changed, two layers, spread weights."""

    name: str
    family: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.name

    def model(self, dtype: torch.dtype) -> Model:
        family = catalog.families()[self.family]
        return spread_model(family.function(**{**family.tiny, "layers": 2, **dict(self.arguments)}), dtype)


def grown(family: str, name: str = "", **arguments: Any) -> Grown:
    return Grown(f"{family}-{name or 'tiny'}", family, tuple(arguments.items()))


class Judge:
    """The right model with its results; `notices` says whether a mutant differs. probes: those that show most first."""

    def __init__(self, model: Model, outputs: tuple[str, ...] = ("logits",), probes: list[Any] | None = None) -> None:
        self.outputs, self.spec = outputs, model.spec
        self.state = model.state_dict()
        self.probes = probes or sorted(default_probes(self.spec), key=lambda probe: probe.keep_BT is None)
        self.results = [self.run(model, probe) for probe in self.probes]
        self.gradients = self.train(model)

    def notices(self, mutant: Mutant) -> bool:
        try:
            spec = mutant.make()
        except ArchitectureError:
            return True
        model = build(spec)
        state = {name: self.state.get(mutant.source(name)) for name in model.state_dict()}
        if not self.fits(model, state):
            taken = {name: tensor for name, tensor in state.items() if tensor is not None}
            rest = self.state.keys() - {mutant.source(name) for name in taken}
            with pytest.raises(RuntimeError, match="in loading state_dict"):
                model.load_state_dict(taken | {name: self.state[name] for name in rest}, strict=True, assign=True)
            return True
        model.load_state_dict(state, strict=True, assign=True)
        return self.trains_otherwise(model, mutant) if re.fullmatch(TRAINING, str(mutant)) else self.moves(model)

    def fits(self, model: Model, state: dict) -> bool:
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        have = {name: tensor.shape for name, tensor in state.items() if tensor is not None}
        return shapes == have and len(have) == len(self.state)

    def moves(self, model: Model) -> bool:
        """Whether some result is another one; a call that only one of the two refuses is."""
        for probe, right in zip(self.probes, self.results, strict=True):
            found = self.run(model, probe)
            if (found is None) != (right is None):
                return True
            if found and right and any(distance(found[name], right[name]) > VISIBLE for name in self.outputs):
                return True
        return False

    def run(self, model: Model, probe: Any) -> dict | None:
        """The results at the positions that count; None if the call is refused."""
        try:
            with torch.no_grad():
                out = model(**probe.arguments())
        except (IndexError, LineageError):
            return None
        found = {name: getattr(out, name) for name in self.outputs}
        keep = None if self.spec.encoder else probe.keep_BT
        return {n: v[keep] if keep is not None and v is not None and v.dim() == 3 else v for n, v in found.items()}

    def trains_otherwise(self, model: Model, mutant: Mutant) -> bool:
        """By the largest gradient of all: some are zero in truth, and noise by themselves."""
        largest = max(gradient.abs().max().item() for gradient in self.gradients.values())
        gaps = [(g - self.gradients[mutant.source(name)]).abs().max().item() for name, g in self.train(model).items()]
        return max(gaps) > VISIBLE * largest

    def train(self, model: Model) -> dict[str, Tensor]:
        """Gradients of the sum of the results' squares, on every token there is."""
        count = min((self.spec.encoder or self.spec).embed.vocab, usable_length(self.spec))
        if self.spec.encoder:
            count = min(count, self.spec.embed.vocab, usable_length(self.spec.encoder))
        ids = torch.arange(count)[None]
        model.requires_grad_(True).zero_grad()
        out = model(ids, **({"decoder_input_ids": ids} if self.spec.encoder else {}))
        sum((getattr(out, name) ** 2).sum() for name in self.outputs).backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.requires_grad_(False)
        return {name: gradient.clone() for name, gradient in found.items()}


def distance(ours: Tensor | None, theirs: Tensor) -> float:
    """Relative; infinite where a result is missing or not a number."""
    if ours is None:
        return float("inf")
    gap = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-300)).item()
    return gap if gap == gap else float("inf")


def known(mutant: Mutant, spec: c.Model) -> set[str]:
    """The entries of the lists above that say why a mutant is no other model."""
    text = str(mutant)
    part = next(part for path, part, _ in places(spec) if path == mutant.path)
    listed = {entry for entry in EQUIVALENT if re.fullmatch(entry, text)}
    return listed | {entry for entry, test in CONDITIONAL.items() if re.fullmatch(entry, text) and test(part)}
