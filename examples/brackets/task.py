"""The bracket task: which texts there are, which are held out, and the rule that fills a gap.

A text is balanced, of 2 to 24 brackets of three kinds, such as ``{[]()}[]``. One bracket of it is masked (``?``), and
the model, which sees both sides, says which it was. The others decide that alone: whether it opens or closes by their
number, its kind and place by what they leave open. One text in ten is held out, chosen by a hash of it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import torch

PAIRS = {"(": ")", "[": "]", "{": "}"}
BRACKETS = "".join(PAIRS) + "".join(PAIRS.values())
LONGEST = 24
MASK = "?"
HELD_OUT_ONE_IN = 10


def balanced(text: str) -> bool:
    """Whether every bracket is closed by its own kind, in order."""
    due: list[str] = []
    for bracket in text:
        if bracket in PAIRS:
            due.append(PAIRS[bracket])
        elif not due or due.pop() != bracket:
            return False
    return not due


def is_held_out(text: str) -> bool:
    """Whether this text is kept out of training."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def draw(rng: random.Random, count: int, *, held_out: bool) -> list[str]:
    """Draw balanced texts at random, every length as likely, from one side of the split."""
    texts: list[str] = []
    while len(texts) < count:
        text = _drawn(rng, 2 * rng.randint(1, LONGEST // 2))
        if is_held_out(text) == held_out:
            texts.append(text)
    return texts


def _drawn(rng: random.Random, length: int) -> str:
    text, due = "", []
    for left in range(length, 0, -1):
        if not due or (len(due) < left and rng.random() < 0.5):
            bracket = rng.choice(list(PAIRS))
            due.append(PAIRS[bracket])
            text += bracket
        else:
            text += due.pop()
    return text


def gaps(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Each text with each of its brackets masked in turn, and the bracket that was there."""
    return [(text[:at] + MASK + text[at + 1 :], text[at]) for text in texts for at in range(len(text))]


@torch.no_grad()
def filled(model: Any, tokenizer: Any, asked: Sequence[str], batch: int = 1000) -> list[str]:
    """What the model puts into the gap of each text: the likeliest token.

    The model is anything that maps ids and mask [B, T] to an object with ``logits`` [B, T, vocabulary].
    """
    found: list[str] = []
    for start in range(0, len(asked), batch):
        read = tokenizer(list(asked[start : start + batch]), padding=True, return_tensors="pt")
        logits = model(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).logits
        masked = read["input_ids"] == tokenizer.mask_token_id
        found += tokenizer.convert_ids_to_tokens(logits[masked].argmax(-1).tolist())
    return found


def count_right(asked: Sequence[tuple[str, str]], found: Sequence[str]) -> int:
    """How many gaps were filled with the bracket that was there, the only one that balances the text."""
    return sum(
        bracket == put and balanced(text.replace(MASK, put)) for (text, bracket), put in zip(asked, found, strict=True)
    )
