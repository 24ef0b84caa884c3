"""Ask a converted model sums it was never trained on.

    python examples/addition/check.py MODEL_DIR

MODEL_DIR is what ``lineage`` made of ``model/``: not the Hugging Face directory itself. Prints how many of
1000 held-out sums it gets right, and three of its answers. Exits 0 at 95 % or more, 3 below.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from task import count_right, draw, greedy_answers, question
from transformers import AutoTokenizer

import lineage

SUMS = 1000
SEED = 0
EXAMPLES = 3
PASS_SHARE = 0.95
TOO_FEW_RIGHT = 3


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a converted model held-out sums.")
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR", help="a directory written by lineage")
    directory = parser.parse_args().model_dir
    torch.set_num_threads(1)
    model = lineage.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory / "source")
    pairs = draw(random.Random(SEED), SUMS, held_out=True)
    written = greedy_answers(model, tokenizer, pairs)
    right = count_right(pairs, written)
    print(f"{right} of {len(pairs)} held-out sums right ({100 * right / len(pairs):.1f} %)")
    for pair, text in list(zip(pairs, written, strict=True))[:EXAMPLES]:
        print(f"  {question(pair)}{text}")
    return 0 if right >= PASS_SHARE * len(pairs) else TOO_FEW_RIGHT


if __name__ == "__main__":
    sys.exit(main())
