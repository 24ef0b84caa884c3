"""The addition task: how a sum is written, which sums are held out, and how a model is marked.

A sum of two numbers from 0 to 999 is written at a fixed width, every character one token::

    037+058=0095.

Both numbers have three digits and the answer four, padded with zeros on the left; the answer reads the
usual way round, highest digit first. The full stop is the end-of-sequence token. The question is the part
up to and including the equals sign; the model writes the rest.

About one sum in ten is held out, chosen by a hash of the two numbers in ascending order, so ``37+58`` and
``58+37`` always land on the same side of the split.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

DIGITS = 3
ANSWER_DIGITS = DIGITS + 1
LARGEST = 10**DIGITS - 1
END = "."
ALPHABET = "0123456789+=" + END
HELD_OUT_ONE_IN = 10

Pair = tuple[int, int]


def question(pair: Pair) -> str:
    """What the model is given, such as ``037+058=``."""
    return f"{pair[0]:0{DIGITS}d}+{pair[1]:0{DIGITS}d}="


def answer(pair: Pair) -> str:
    """What the model should write after the question, without the closing full stop."""
    return f"{pair[0] + pair[1]:0{ANSWER_DIGITS}d}"


def is_held_out(pair: Pair) -> bool:
    """Whether this sum is kept out of training."""
    key = f"{min(pair)}+{max(pair)}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def draw(rng: random.Random, count: int, *, held_out: bool) -> list[Pair]:
    """Draw sums at random, with repeats possible, from one side of the split."""
    pairs: list[Pair] = []
    while len(pairs) < count:
        pair = (rng.randint(0, LARGEST), rng.randint(0, LARGEST))
        if is_held_out(pair) == held_out:
            pairs.append(pair)
    return pairs


def all_held_out() -> list[Pair]:
    """Every held-out sum, in order."""
    numbers = range(LARGEST + 1)
    return [(a, b) for a in numbers for b in numbers if is_held_out((a, b))]


@torch.no_grad()
def greedy_answers(
    model: Callable[[torch.Tensor], Any], tokenizer: Any, pairs: Sequence[Pair], batch_size: int = 500
) -> list[str]:
    """Let the model answer each question, taking the likeliest token at every step.

    The model is anything that maps token ids ``[B, T]`` to an object with ``logits`` ``[B, T, vocabulary]``.
    Nothing is cached: each step runs the whole sequence. The strings returned include the end token.
    """
    written: list[str] = []
    for start in range(0, len(pairs), batch_size):
        questions = [question(pair) for pair in pairs[start : start + batch_size]]
        ids = torch.tensor(tokenizer(questions)["input_ids"], dtype=torch.long)
        asked = ids.shape[1]
        for _ in range(ANSWER_DIGITS + len(END)):
            following = model(ids).logits[:, -1].argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, following], dim=1)
        written += ["".join(tokenizer.convert_ids_to_tokens(row)) for row in ids[:, asked:].tolist()]
    return written


def count_right(pairs: Sequence[Pair], written: Sequence[str]) -> int:
    """How many answers are right to the last character, end token included."""
    return sum(text == answer(pair) + END for pair, text in zip(pairs, written, strict=True))
