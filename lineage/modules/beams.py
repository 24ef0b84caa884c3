"""Beam search: the likeliest texts, several at once (Graves 2012; Sutskever et al. 2014, §3.2).

B rows of the batch, K beams, T tokens, V vocabulary.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lineage.errors import UsageError
from lineage.modules.cache import Cache
from lineage.modules.constraints import NONE, Constraints
from lineage.modules.generation import check_generates
from lineage.modules.model import Model

NEVER = -1e9


@dataclass
class Search:
    """One row's search. live: texts that go on, with the sum of their log probabilities, the best first; ended: texts
    that are whole, with that sum over a power of their length. open: whether a better one may still be found.
    """

    live: list[tuple[float, list[int]]]
    ended: list[tuple[float, list[int]]] = field(default_factory=list)
    open: bool = True

    def step(
        self, found: list[tuple[float, int, int]], stop: Collection[int], full: bool, penalty: float, early: bool
    ) -> list[int]:
        """Go on with what was found: score, beam and token, the best first. Returns the beams that live on.

        full: this is the last token that there is room for. early: as many ended texts as beams are enough.
        """
        beams, texts = len(self.live), [(score, [*self.live[beam][1], token]) for score, beam, token in found]
        over = [full or token in stop for _, _, token in found]
        length = len(texts[0][1])
        enough = early and len(self.ended) == beams
        if self.open and not enough:
            whole = [
                (score / length**penalty, text)
                for (score, text), done in zip(texts[:beams], over, strict=False)
                if done
            ]
            self.ended = sorted([*self.ended, *whole], key=lambda one: -one[0])[:beams]
        ranked = sorted(range(len(found)), key=lambda at: -(texts[at][0] + NEVER * over[at]))[:beams]
        self.live = [(texts[at][0] + NEVER * over[at], texts[at][1]) for at in ranked]
        worst = self.ended[-1][0] if len(self.ended) == beams else NEVER
        best = self.live[0][0] / length**penalty
        self.open = self.open and best > worst and not (early and len(self.ended) == beams)
        return [found[at][1] for at in ranked]


@torch.no_grad()
def beam_search(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    beams: int,
    tokens: int,
    start: Tensor | None = None,
    stop: Collection[int] = (),
    fill: int = 0,
    penalty: float = 1.0,
    early: bool = False,
    constraints: Constraints = NONE,
) -> Tensor:
    """The best text of each row, [B, T], with what it began with; shorter ones end in `fill`.

    input_ids, attention_mask: [B, S], with an encoder of the source; start: [B, 1], what a target begins with. penalty:
    the power of the length that scores are divided by (Wu et al. 2016, §7, simplified). Raises UsageError as `stream`.
    """
    check_generates(model.spec)
    if beams < 1:
        raise UsageError(f"{beams} beams")
    if (model.spec.encoder is None) != (start is None):
        raise UsageError("start is what a target begins with: given with an encoder, and only with one")
    begun_BT = input_ids if start is None else start
    rows, begun = begun_BT.shape
    ids_xT, source = begun_BT.repeat_interleave(beams, 0), {}
    mask_xT = None if attention_mask is None else attention_mask.repeat_interleave(beams, 0)
    if start is not None:
        source, mask_xT = {"input_ids": input_ids.repeat_interleave(beams, 0), "attention_mask": mask_xT}, None
    cache, new_xT = Cache(model.spec, begun + tokens), ids_xT
    searches = [Search([(0.0 if beam == 0 else NEVER, []) for beam in range(beams)]) for _ in range(rows)]
    wide = max(2, 1 + len(stop)) * beams
    for made in range(tokens):
        called = {"input_ids": new_xT, "attention_mask": mask_xT}
        if mask_xT is not None:
            called["position_ids"] = (mask_xT.cumsum(1) - 1).clamp(min=0)[:, -new_xT.shape[1] :]
        called = {f"decoder_{name}": value for name, value in called.items()} | source if source else called
        logits_xV = model(**called, cache=cache, last=1).logits[:, -1]
        scores_xV = constraints.scores(logits_xV.float().log_softmax(-1), ids_xT, begun, tokens - made)
        before = torch.tensor([[score for score, _ in search.live] for search in searches])
        whole = (scores_xV.view(rows, beams, -1) + before[..., None].to(scores_xV)).flatten(1)
        best, place = whole.topk(wide)
        beam, token = place // scores_xV.shape[1], place % scores_xV.shape[1]
        kept = []
        for row, search in enumerate(searches):
            found = list(zip(best[row].tolist(), beam[row].tolist(), token[row].tolist(), strict=True))
            kept += [row * beams + one for one in search.step(found, stop, made + 1 == tokens, penalty, early)]
        if not any(search.open for search in searches):
            break
        order = torch.tensor(kept, device=ids_xT.device)
        cache.reorder(order)
        new_xT = torch.tensor([[text[-1]] for search in searches for _, text in search.live], device=ids_xT.device)
        ids_xT = torch.cat([ids_xT[order], new_xT], 1)
        mask_xT = None if mask_xT is None else torch.cat([mask_xT[order], torch.ones_like(mask_xT[:, :1])], 1)
    texts = [(search.ended or search.live)[0][1] for search in searches]
    longest = max(map(len, texts))
    made_BT = torch.tensor([text + [fill] * (longest - len(text)) for text in texts], device=begun_BT.device)
    return torch.cat([begun_BT, made_BT], 1)
