"""Generation: one token after another, chosen greedily or drawn. B batch, T tokens, V vocabulary."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lineage import components as c
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
    are, what the target begins with, [B, 1]. Ends after `tokens` or when every row has stopped. Raises UsageError if
    the model has no head, sees later tokens, or has no places for so many.
    """
    check_generates(model.spec)
    choice = choice or Choice()
    generator = None
    if choice.seed is not None:
        generator = torch.Generator(input_ids.device).manual_seed(choice.seed)
    ids_BT, mask_BT = (input_ids, attention_mask) if start is None else (start, None)
    if model.spec.encoder is not None and start is None:
        raise UsageError("the model has an encoder: say what the target begins with (start)")
    rows, length = ids_BT.shape
    cache = Cache(model.spec, length + tokens)
    given = {} if start is None else {"input_ids": input_ids, "attention_mask": attention_mask}
    new_BT, going_B = ids_BT, torch.ones(rows, dtype=torch.bool, device=ids_BT.device)
    for made in range(tokens):
        called = {"input_ids": new_BT, "attention_mask": mask_BT}
        if mask_BT is not None and not counts_itself(model.spec):
            called["position_ids"] = (mask_BT.cumsum(1) - 1).clamp(min=0)[:, -new_BT.shape[1] :]
        if start is not None:
            called = {f"decoder_{name}": value for name, value in called.items()} | given
        logits_BV = model(**called, cache=cache, last=1).logits[:, -1]
        if constraints != NONE:
            logits_BV = constraints.scores(logits_BV, ids_BT, length, tokens - made)
        scores_BV = choice.scores(logits_BV, ids_BT, mask_BT)
        if choice.temperature is None:
            next_B = scores_BV.argmax(-1)
        else:
            next_B = torch.multinomial(scores_BV.softmax(-1), 1, generator=generator)[:, 0]
        next_B = torch.where(going_B, next_B, fill)
        yield next_B
        for token in stop:
            going_B = going_B & (next_B != token)
        if not bool(going_B.any()):
            return
        new_BT = next_B[:, None]
        ids_BT = torch.cat([ids_BT, new_BT], 1)
        mask_BT = None if mask_BT is None else torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], 1)


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
