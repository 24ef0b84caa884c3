"""The reversal task: which words there are, which are held out, and how they become tokens.

A word has 1 to 12 letters from a to z, any of them, each a token. The model reads the word with the end-of-sequence
token behind it, and writes the letters in reverse, then that token::

    lineage</s>  ->  egaenil</s>

About one word in ten is held out, chosen by a hash of the word, so that nothing but the word decides.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Sequence
from typing import Any

import torch

LETTERS = string.ascii_lowercase
LONGEST = 12
END, PAD = "</s>", "<pad>"
HELD_OUT_ONE_IN = 10


def answer(word: str) -> str:
    """What the model should write, without the end-of-sequence token."""
    return word[::-1]


def is_held_out(word: str) -> bool:
    """Whether this word is kept out of training."""
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def draw(rng: random.Random, count: int, *, held_out: bool) -> list[str]:
    """Draw words at random, every length as likely, from one side of the split."""
    words: list[str] = []
    while len(words) < count:
        word = "".join(rng.choices(LETTERS, k=rng.randint(1, LONGEST)))
        if is_held_out(word) == held_out:
            words.append(word)
    return words


def sources(tokenizer: Any, words: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Words as the encoder reads them: token ids [B, S], and 0 where they are padding, [B, S]."""
    read = tokenizer(list(words), padding=True, return_tensors="pt")
    return read["input_ids"], read["attention_mask"]


def count_right(words: Sequence[str], written: Sequence[str]) -> int:
    """How many answers are right to the last letter. written: decoded, with all tokens that stand in them."""
    return sum(text == PAD + answer(word) + END for word, text in zip(words, written, strict=True))


def decoded(tokenizer: Any, targets: torch.Tensor) -> list[str]:
    """Targets [B, T] as text, up to the end-of-sequence token; the token that every target begins with is told too."""
    texts = ["".join(tokenizer.convert_ids_to_tokens(row)) for row in targets.tolist()]
    return [text[: text.find(END) + len(END)] if END in text else text for text in texts]
