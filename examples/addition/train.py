"""Train a tiny GPT-2, Llama or Mixtral to add two numbers, and save it in the Hugging Face layout.

    python examples/addition/train.py [--family llama]

Writes ``model/``, ``model-llama/`` or ``model-mixtral/`` beside this script.
``task.py`` says how a sum is written and which sums are held out.
The loss counts the answer only: the question holds nothing to predict.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from task import ALPHABET, END, all_held_out, answer, count_right, draw, greedy_answers, question
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch.nn.functional import cross_entropy
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

POSITIONS = 16
WIDTH = 80
LAYERS = 3
HEADS = 4
KV_HEADS = 2
BALANCE = 0.01  # weight of the loss that spreads tokens over experts


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character of the task, the full stop being the end token.

    There is no unknown token: a character outside the task's alphabet is an error.
    """
    tokenizer = Tokenizer(WordLevel({char: index for index, char in enumerate(ALPHABET)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        model_max_length=POSITIONS,
    )


def build_model(family: str, tokenizer: Any) -> PreTrainedModel:
    """A model with fresh weights, small enough to train on one CPU core."""
    ends = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if family == "gpt2":
        sizes = {"n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **dropout, **ends))
    sizes = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": POSITIONS,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
    }
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=240, **ends))
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 80}
    return MixtralForCausalLM(
        MixtralConfig(**sizes, **experts, router_aux_loss_coef=BALANCE, sliding_window=None, **ends)
    )


def build_optimizer(model: PreTrainedModel, rate: float) -> torch.optim.AdamW:
    """AdamW that decays the matrices and leaves biases and layer-norm gains alone."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))


def schedule(step: int, steps: int, warm_up: int) -> float:
    """The share of the full learning rate at a step: up over the warm-up, then straight down to nothing."""
    if step < warm_up:
        return (step + 1) / warm_up
    return (steps - step) / max(1, steps - warm_up)


def batch_loss(model: PreTrainedModel, tokenizer: Any, rng: random.Random, size: int) -> torch.Tensor:
    """The mean loss over the answers of a fresh batch of training sums; of experts, with the one that balances them."""
    pairs = draw(rng, size, held_out=False)
    texts = [question(pair) + answer(pair) + END for pair in pairs]
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    asked = len(question(pairs[0]))
    routed = {"output_router_logits": True} if hasattr(model.config, "router_aux_loss_coef") else {}
    output = model(ids[:, :-1], **routed)
    loss = cross_entropy(output.logits[:, asked - 1 :].flatten(0, 1), ids[:, asked:].flatten())
    return loss + BALANCE * output.aux_loss if routed else loss


def train(model: PreTrainedModel, tokenizer: Any, args: argparse.Namespace) -> None:
    """Run the training steps, saying now and then how it goes."""
    training_rng = random.Random(args.seed)
    probe = draw(random.Random(args.seed + 1), 500, held_out=True)
    optimizer = build_optimizer(model, args.rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, args.steps, args.warm_up))
    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        model.train()
        loss = batch_loss(model, tokenizer, training_rng, args.batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % args.report == 0 or step == args.steps:
            model.eval()
            right = count_right(probe, greedy_answers(model, tokenizer, probe))
            minutes = (time.perf_counter() - started) / 60
            print(f"step {step:5d}  loss {loss.item():.4f}  {right} of {len(probe)} right  {minutes:.1f} min")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tiny model to add two numbers.")
    parser.add_argument("--family", choices=["gpt2", "llama", "mixtral"], default="gpt2")
    parser.add_argument("--output", type=Path, help="default: model/ for gpt2, model-FAMILY/ else")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--report", type=int, default=250)
    args = parser.parse_args()
    name = "model" if args.family == "gpt2" else f"model-{args.family}"
    args.output = args.output or Path(__file__).resolve().parent / name
    return args


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(args.family, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    train(model, tokenizer, args)
    model.eval()
    pairs = all_held_out()
    right = count_right(pairs, greedy_answers(model, tokenizer, pairs))
    print(f"{right} of all {len(pairs)} held-out sums right ({100 * right / len(pairs):.2f} %)")
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    (args.output / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
