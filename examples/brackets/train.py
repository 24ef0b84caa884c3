"""Train a tiny BERT to fill gaps in balanced brackets, and save it in the Hugging Face layout.

    python examples/brackets/train.py

Writes ``model/`` beside this script. ``task.py`` says what a text is and which are held out. Training masks 15 % of
the brackets, at least one, and the loss counts these alone; the marking masks one at a time.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from task import BRACKETS, LONGEST, MASK, count_right, draw, filled, gaps
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

WIDTH = 64
LAYERS = 4
HEADS = 4
MLP_WIDTH = 256
POSITIONS = LONGEST + 2
MASKED = 0.15
BEGIN, END, PAD = "<cls>", "<sep>", "<pad>"
MARKED = 2000


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each bracket, between a token that begins and one that ends. Another character is an error."""
    known = {token: index for index, token in enumerate([PAD, BEGIN, END, MASK, *BRACKETS])}
    tokenizer = Tokenizer(WordLevel(known))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    ends = [(token, known[token]) for token in (BEGIN, END)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=ends)
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=BEGIN,
        sep_token=END,
        pad_token=PAD,
        mask_token=MASK,
        model_max_length=POSITIONS,
    )


def build_model(tokenizer: Any) -> BertForMaskedLM:
    """A model with fresh weights, small enough to train on one CPU core."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=MLP_WIDTH,
        max_position_embeddings=POSITIONS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForMaskedLM(config)


def batch_loss(model: BertForMaskedLM, tokenizer: Any, rng: random.Random, size: int) -> torch.Tensor:
    """The loss of a fresh batch of training texts, of which some brackets are masked."""
    texts = draw(rng, size, held_out=False)
    read = tokenizer(texts, padding=True, return_tensors="pt")
    ids, labels = read["input_ids"], torch.full_like(read["input_ids"], -100)
    for row, text in enumerate(texts):
        chosen = [at for at in range(len(text)) if rng.random() < MASKED] or [rng.randrange(len(text))]
        places = torch.tensor(chosen) + 1  # behind the token that begins
        labels[row, places] = ids[row, places]
        ids[row, places] = tokenizer.mask_token_id
    return model(input_ids=ids, attention_mask=read["attention_mask"], labels=labels).loss


def train(model: BertForMaskedLM, tokenizer: Any, args: argparse.Namespace) -> None:
    """Run the training steps, saying now and then how it goes."""
    rng, probe = random.Random(args.seed), gaps(draw(random.Random(args.seed + 1), 100, held_out=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
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
            right = count_right(probe, filled(model, tokenizer, [text for text, _ in probe]))
            minutes = (time.perf_counter() - started) / 60
            print(
                f"step {step:5d}  loss {loss.item():.4f}  {right} of {len(probe)} right  {minutes:.1f} min", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny BERT to fill gaps in balanced brackets.")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--report", type=int, default=250)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    train(model, tokenizer, args)
    model.eval()
    asked = gaps(draw(random.Random(args.seed + 2), MARKED, held_out=True))
    right = count_right(asked, filled(model, tokenizer, [text for text, _ in asked]))
    print(f"{right} of {len(asked)} gaps in {MARKED} held-out texts right ({100 * right / len(asked):.2f} %)")
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    (args.output / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
