"""Ask a converted model words it was never trained on.

    python examples/reversal/check.py MODEL_DIR

MODEL_DIR is what ``lineage`` made of ``model/``: not the Hugging Face directory itself. Prints how many of 2000
held-out words it reverses rightly, taking the likeliest token at every step, and how many of 200 by four beams. Exits
0 at 98 % or more of both, 3 below.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from task import LONGEST, count_right, decoded, draw, sources
from transformers import AutoTokenizer

import lineage
from lineage.modules.beams import beam_search
from lineage.modules.generation import generate

WORDS = {1: 2000, 4: 200}  # of so many beams
SEED = 0
PASS_SHARE = 0.98
TOO_FEW_RIGHT = 3


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a converted model held-out words.")
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR", help="a directory written by lineage")
    directory = parser.parse_args().model_dir
    torch.set_num_threads(1)
    model = lineage.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory / "source")
    begin = json.loads((directory / "source" / "config.json").read_text())["decoder_start_token_id"]
    good = True
    for beams, count in WORDS.items():
        words = draw(random.Random(SEED), count, held_out=True)
        ids, mask = sources(tokenizer, words)
        start = torch.full((count, 1), begin)
        given = {"tokens": LONGEST + 2, "stop": [tokenizer.eos_token_id], "start": start}
        if beams == 1:
            targets = generate(model, ids, mask, **given)
        else:
            targets = beam_search(model, ids, mask, beams=beams, **given)
        written = decoded(tokenizer, targets)
        right = count_right(words, written)
        good = good and right >= PASS_SHARE * count
        print(f"{right} of {count} held-out words right ({100 * right / count:.1f} %), {beams} beam{'s' * (beams > 1)}")
    return 0 if good else TOO_FEW_RIGHT


if __name__ == "__main__":
    sys.exit(main())
