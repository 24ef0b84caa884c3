"""Train a tiny Marian, a Transformer of 2017, to reverse words, and save it in the Hugging Face layout.

    python examples/reversal/train.py

Writes ``model/`` beside this script. ``task.py`` says what a word is and which are held out. The loss is that of
2017: cross-entropy against labels smoothed by 0.1.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from task import END, LETTERS, PAD, answer, count_right, decoded, draw, sources
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch.nn.functional import cross_entropy
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

WIDTH = 64
LAYERS = 2
HEADS = 4
MLP_WIDTH = 256
POSITIONS = 32
SMOOTHING = 0.1
MARKED = 20_000


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter, the end-of-sequence token behind each text. Another character is an error."""
    known = {END: 0, **{letter: index for index, letter in enumerate(LETTERS, start=1)}}
    known[PAD] = len(known)
    tokenizer = Tokenizer(WordLevel(known))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, known[END])])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=POSITIONS)


def build_model(tokenizer: Any) -> MarianMTModel:
    """A model with fresh weights, small enough to train on one CPU core."""
    both = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": MLP_WIDTH}
    stacks = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()}
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        max_position_embeddings=POSITIONS,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=tokenizer.eos_token_id,
        **stacks,
    )
    model = MarianMTModel(config)
    model.generation_config.max_length = POSITIONS
    return model


def batch_loss(model: MarianMTModel, tokenizer: Any, rng: random.Random, size: int) -> torch.Tensor:
    """The smoothed loss of a fresh batch of training words; padding does not count."""
    words = draw(rng, size, held_out=False)
    read, read_mask = sources(tokenizer, words)
    labels, labels_mask = sources(tokenizer, [answer(word) for word in words])
    start = torch.full((size, 1), model.config.decoder_start_token_id)
    logits = model(
        input_ids=read, attention_mask=read_mask, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)
    ).logits
    labels = labels.masked_fill(labels_mask == 0, -100)
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)


@torch.no_grad()
def mark(model: MarianMTModel, tokenizer: Any, words: list[str], batch: int = 500) -> int:
    """How many of these words it reverses rightly, taking the likeliest token at every step."""
    right = 0
    for start in range(0, len(words), batch):
        asked = words[start : start + batch]
        read, mask = sources(tokenizer, asked)
        written = model.generate(input_ids=read, attention_mask=mask, num_beams=1)
        right += count_right(asked, decoded(tokenizer, written))
    return right


def train(model: MarianMTModel, tokenizer: Any, args: argparse.Namespace) -> None:
    """Run the training steps, saying now and then how it goes."""
    rng, probe = random.Random(args.seed), draw(random.Random(args.seed + 1), 500, held_out=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.rate, total_steps=args.steps, pct_start=0.1, anneal_strategy="linear", cycle_momentum=False
    )
    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        model.train()
        loss = batch_loss(model, tokenizer, rng, args.batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % args.report == 0 or step == args.steps:
            model.eval()
            right = mark(model, tokenizer, probe)
            minutes = (time.perf_counter() - started) / 60
            print(
                f"step {step:5d}  loss {loss.item():.4f}  {right} of {len(probe)} right  {minutes:.1f} min", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny Marian to reverse words.")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--report", type=int, default=250)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters() if p.requires_grad)} parameters")
    train(model, tokenizer, args)
    model.eval()
    words = draw(random.Random(args.seed + 2), MARKED, held_out=True)
    right = mark(model, tokenizer, words)
    print(f"{right} of {len(words)} held-out words right ({100 * right / len(words):.2f} %)")
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    (args.output / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
