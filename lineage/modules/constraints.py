"""What a text must begin and end with and may not hold, whatever the model prefers. B rows, T tokens, V vocabulary."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lineage.errors import UsageError
from lineage.values import Value

# what generation configs may say that would change tokens here, with the values that say nothing
SILENT: Mapping[str, tuple[object, ...]] = {
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "diversity_penalty": (None, 0.0),
    "num_beam_groups": (None, 1),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0),
    "penalty_alpha": (None, 0.0),
    "constraints": (None,),
    "force_words_ids": (None,),
}


class Constraints(Value):
    """first, last: tokens that a text begins and ends with. never: tokens that do not occur; not_first: nor at its
    beginning. ngram: no run of so many tokens occurs twice (Paulus et al. 2018, §2.5).
    """

    first: int | None = None
    last: int | None = None
    never: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()
    ngram: int = 0

    def scores(self, scores_BV: Tensor, ids_BT: Tensor, begun: int, left: int) -> Tensor:
        """The scores of the next tokens; -∞ for those that are out.

        ids_BT: the text so far, of which the first `begun` tokens were given. left: tokens that may still come.
        """
        scores_BV = scores_BV.clone()
        for row, tokens in enumerate(ids_BT.tolist() if self.ngram else []):
            run = self.ngram - 1
            seen = [
                tokens[at + run]
                for at in range(len(tokens) - run)
                if tokens[at : at + run] == tokens[len(tokens) - run :]
            ]
            scores_BV[row, seen] = -torch.inf
        now = ids_BT.shape[1] - begun
        scores_BV[:, [*self.never, *(self.not_first if now == 0 else ())]] = -torch.inf
        forced = self.first if now == 0 and self.first is not None else self.last if left == 1 else None
        if forced is not None:
            scores_BV[:] = -torch.inf
            scores_BV[:, forced] = 0
        return scores_BV

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Constraints":
        """What a generation config says. Raises UsageError for what it says and is not understood here."""
        odd = {key: settings[key] for key, silent in SILENT.items() if settings.get(key) not in silent}
        bad = settings.get("bad_words_ids") or []
        if odd or not all(isinstance(word, list) and len(word) == 1 for word in bad):
            said = odd or {"bad_words_ids": bad}
            raise UsageError(f"the generation config asks for what is not understood: {str(said)[:200]}")
        never = (*(word[0] for word in bad), *(settings.get("suppress_tokens") or ()))
        return cls(
            first=settings.get("forced_bos_token_id"),
            last=settings.get("forced_eos_token_id"),
            never=never,
            not_first=tuple(settings.get("begin_suppress_tokens") or ()),
            ngram=settings.get("no_repeat_ngram_size") or 0,
        )


NONE = Constraints()
