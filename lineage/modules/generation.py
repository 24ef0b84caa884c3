"""Generation: one token after another, chosen greedily or drawn. B batch, T tokens, V vocabulary."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lineage import components as c
from lineage.count import places
from lineage.errors import UsageError
from lineage.modules.cache import Cache
from lineage.modules.constraints import NONE, Constraints
from lineage.modules.model import Model


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen from its logits.

    temperature: None takes the likeliest; else one is drawn, of the top_k likeliest and of the fewest whose
    probabilities reach top_p (Holtzman et al. 2020, §3.1). repetition: a positive logit of a token that was there is
    divided by it, a negative multiplied (Keskar et al. 2019, §4.1). seed: of the draws; None: torch's own state.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        positive = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "repetition": self.repetition,
        }
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}, not above 0")
        if self.top_p is not None and self.top_p > 1:
            raise UsageError(f"top_p is {self.top_p}, a share of all and not above 1")
        if self.temperature is None and (self.top_k or self.top_p or self.seed is not None):
            raise UsageError(
                "top_k, top_p and seed are of draws: give a temperature", hint="temperature 1 changes nothing"
            )

    def scores(self, logits_BV: Tensor, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """The logits that tokens are chosen by; -∞ for those that are out. mask_BT: padding was not there."""
        scores_BV = logits_BV.float() if logits_BV.dtype != torch.float64 else logits_BV
        if self.repetition != 1.0:
            ids_BT = ids_BT if mask_BT is None else torch.where(mask_BT.bool(), ids_BT, ids_BT[:, -1:])
            there_BT = scores_BV.gather(1, ids_BT)
            there_BT = torch.where(there_BT < 0, there_BT * self.repetition, there_BT / self.repetition)
            scores_BV = scores_BV.scatter(1, ids_BT, there_BT)
        if self.temperature is None:
            return scores_BV
        scores_BV = scores_BV / self.temperature
        if self.top_k is not None:
            least_B1 = scores_BV.topk(min(self.top_k, scores_BV.shape[1])).values[:, -1:]
            scores_BV = scores_BV.masked_fill(scores_BV < least_B1, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            rising_BV, order_BV = scores_BV.sort(descending=False)
            out_BV = rising_BV.softmax(-1).cumsum(-1) <= 1 - self.top_p
            out_BV[:, -1] = False
            scores_BV = scores_BV.masked_fill(out_BV.scatter(1, order_BV, out_BV), -torch.inf)
        return scores_BV


class Going:
    """Texts that a model goes on with: all tokens so far, and what it keeps of them.

    ids_BT: with an encoder the target's, else the given ones. copies: how many texts each given row becomes. tokens:
    how many are to come, no more than the model has places for. Raises UsageError if the model has no head, sees later
    tokens, start is not given exactly where there is an encoder, or padding stands where tokens are to be added.
    """

    def __init__(
        self,
        model: Model,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        start: Tensor | None,
        tokens: int,
        copies: int = 1,
    ) -> None:
        check_generates(model.spec)
        if (model.spec.encoder is None) != (start is None):
            raise UsageError("start is what a target begins with: to be given with an encoder, and only with one")
        if attention_mask is not None and start is None and not bool(attention_mask[:, -1].all()):
            raise UsageError("a row ends in padding, and tokens are added there", hint="pad on the left")
        ids_xT = input_ids.repeat_interleave(copies, 0)
        mask_xT = None if attention_mask is None else attention_mask.repeat_interleave(copies, 0)
        self.model, self.source = model, None if start is None else {"input_ids": ids_xT, "attention_mask": mask_xT}
        self.mask_BT = mask_xT if start is None else None
        self.ids_BT = ids_xT if start is None else start.repeat_interleave(copies, 0)
        self.begun = self.ids_BT.shape[1]
        limit = places(model.spec)
        self.tokens = tokens if limit is None else max(min(tokens, limit - self.begun + 1), 1)
        self.new_BT, self.cache = self.ids_BT, Cache(model.spec, self.begun + self.tokens)

    def logits(self) -> Tensor:
        """Of the next token of each text, [B, V]."""
        called = {"input_ids": self.new_BT, "attention_mask": self.mask_BT}
        if self.mask_BT is not None and not counts_itself(self.model.spec):
            called["position_ids"] = (self.mask_BT.cumsum(1) - 1).clamp(min=0)[:, -self.new_BT.shape[1] :]
        if self.source is not None:
            called = {f"decoder_{name}": value for name, value in called.items()} | self.source
        logits_BV: Tensor = self.model(**called, cache=self.cache, last=1).logits[:, -1]
        return logits_BV

    def add(self, next_B: Tensor, rows: Tensor | None = None) -> None:
        """A token to each text. rows: which texts are gone on with, in this order; None: all."""
        if rows is not None:
            self.cache.reorder(rows)
            self.ids_BT = self.ids_BT[rows]
            self.mask_BT = None if self.mask_BT is None else self.mask_BT[rows]
        self.new_BT = next_B[:, None]
        self.ids_BT = torch.cat([self.ids_BT, self.new_BT], 1)
        if self.mask_BT is not None:
            self.mask_BT = torch.cat([self.mask_BT, torch.ones_like(self.mask_BT[:, :1])], 1)


@torch.no_grad()
def stream(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    tokens: int,
    choice: Choice | None = None,
    stop: Collection[int] = (),
    fill: int = 0,
    start: Tensor | None = None,
    constraints: Constraints = NONE,
) -> Iterator[Tensor]:
    """The next tokens [B] of each row, as they come; a row that has had a stop token goes on with `fill`.

    input_ids: [B, T], padded on the left where attention_mask is 0. start: with an encoder, whose tokens input_ids
    are, what the target begins with, [B, 1]. Ends after `tokens`, when every row has stopped, or where the model has
    no more places. Raises UsageError as `Going`, and if there are none for what is given.
    """
    choice = choice or Choice()
    generator = None
    if choice.seed is not None:
        generator = torch.Generator(input_ids.device).manual_seed(choice.seed)
    going = Going(model, input_ids, attention_mask, start, tokens)
    alive_B = torch.ones(len(going.ids_BT), dtype=torch.bool, device=input_ids.device)
    for made in range(going.tokens):
        logits_BV = going.logits()
        if constraints != NONE:
            logits_BV = constraints.scores(logits_BV, going.ids_BT, going.begun, going.tokens - made)
        scores_BV = choice.scores(logits_BV, going.ids_BT, going.mask_BT)
        if choice.temperature is None:
            next_B = scores_BV.argmax(-1)
        else:
            next_B = torch.multinomial(scores_BV.softmax(-1), 1, generator=generator)[:, 0]
        next_B = torch.where(alive_B, next_B, fill)
        yield next_B
        for token in stop:
            alive_B = alive_B & (next_B != token)
        if not bool(alive_B.any()):
            return
        going.add(next_B)


def generate(model: Model, input_ids: Tensor, attention_mask: Tensor | None = None, **options: object) -> Tensor:
    """The given tokens (with an encoder: the target's beginning) and all that `stream` gives, [B, T]."""
    begun = options.get("start")
    before = begun if isinstance(begun, Tensor) else input_ids
    return torch.cat([before, *(new_B[:, None] for new_B in stream(model, input_ids, attention_mask, **options))], 1)  # type: ignore[arg-type]


def counts_itself(spec: c.Model) -> bool:
    """Whether the model's own positions skip padding, so that none need to be told."""
    places = spec.embed.positions
    return places is not None and not isinstance(places.ids, c.Consecutive)


def check_generates(spec: c.Model) -> None:
    """Raises UsageError for a model that cannot go on by itself."""
    seen = [getattr(block.attention.body, "mask", None) for block in spec.blocks]
    if spec.head is None or any(isinstance(mask, c.Bidirectional) for mask in seen):
        raise UsageError("the model does not generate: it has no head over the vocabulary, or sees later tokens")
