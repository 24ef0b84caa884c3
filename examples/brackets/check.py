"""Ask a converted model to fill gaps in texts it was never trained on.

    python examples/brackets/check.py MODEL_DIR

MODEL_DIR is what ``lineage`` made of ``model/``: not the Hugging Face directory itself. Masks each bracket of 300
held-out texts in turn, prints how many of these gaps it fills rightly, and three of them. Exits 0 at 98 % or more, 3
below.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from task import count_right, draw, filled, gaps
from transformers import AutoTokenizer

import lineage

TEXTS = 300
SEED = 0
EXAMPLES = 3
PASS_SHARE = 0.98
TOO_FEW_RIGHT = 3


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a converted model to fill gaps in held-out texts.")
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR", help="a directory written by lineage")
    directory = parser.parse_args().model_dir
    torch.set_num_threads(1)
    model = lineage.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory / "source")
    asked = gaps(draw(random.Random(SEED), TEXTS, held_out=True))
    found = filled(model, tokenizer, [text for text, _ in asked])
    right = count_right(asked, found)
    print(f"{right} of {len(asked)} gaps in held-out texts right ({100 * right / len(asked):.1f} %)")
    for (text, _), put in list(zip(asked, found, strict=True))[:: len(asked) // EXAMPLES][:EXAMPLES]:
        print(f"  {text}  {put}")
    return 0 if right >= PASS_SHARE * len(asked) else TOO_FEW_RIGHT


if __name__ == "__main__":
    sys.exit(main())
