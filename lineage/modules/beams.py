"""Beam search: the likeliest texts, several at once (Graves 2012; Sutskever et al. 2014, §3.2).

B rows of the batch, K beams, T tokens, V vocabulary.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lineage.errors import UsageError
from lineage.modules.constraints import NONE, Constraints
from lineage.modules.generation import Going
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
    if beams < 1:
        raise UsageError(f"{beams} beams")
    going = Going(model, input_ids, attention_mask, start, tokens, copies=beams)
    begun_BT = input_ids if start is None else start
    searches = [Search([(0.0 if beam == 0 else NEVER, []) for beam in range(beams)]) for _ in begun_BT]
    wide = max(2, 1 + len(stop)) * beams
    for made in range(going.tokens):
        scores_xV = going.logits().float().log_softmax(-1)
        scores_xV = constraints.scores(scores_xV, going.ids_BT, going.begun, going.tokens - made)
        before = torch.tensor([[score for score, _ in search.live] for search in searches])
        whole = (scores_xV.view(len(searches), beams, -1) + before[..., None].to(scores_xV)).flatten(1)
        best, place = whole.topk(wide)
        beam, token = place // scores_xV.shape[1], place % scores_xV.shape[1]
        kept = []
        for row, search in enumerate(searches):
            found = list(zip(best[row].tolist(), beam[row].tolist(), token[row].tolist(), strict=True))
            kept += [row * beams + one for one in search.step(found, stop, made + 1 == going.tokens, penalty, early)]
        if not any(search.open for search in searches):
            break
        next_x = torch.tensor([text[-1] for search in searches for _, text in search.live], device=input_ids.device)
        going.add(next_x, torch.tensor(kept, device=input_ids.device))
    texts = [(search.ended or search.live)[0][1] for search in searches]
    longest = max(map(len, texts))
    made_BT = torch.tensor([text + [fill] * (longest - len(text)) for text in texts], device=begun_BT.device)
    return torch.cat([begun_BT, made_BT], 1)
