"""On a CUDA device: parity in bf16, then tokens a second against transformers and against what the memory allows.

    .venv/bin/python benchmarks/gpu.py [--json gpu.json]     # below eight minutes on one card
    .venv/bin/python benchmarks/gpu.py --small               # tiny models, on the CPU where there is no card

Parity is that of `lineage verify` (levels fp32, behaviour, bf16) on models of the same shapes that are small enough for
double precision. The bound of decoding one text is bytes read a token (the weights that a token uses, and the cache)
over the rate at which the card copies memory, measured first.
"""

import argparse
import gc
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from models import checkpoint
from torch import Tensor

import lineage
from lineage import count
from lineage.modules.cache import Cache

PROMPT, NEW, ROUNDS, BUDGET = 512, 32, 3, 480  # tokens, tokens, times, seconds


class Ours:
    """Compiled: with a cache of fixed shapes, of which one graph is recorded for prompts and one for tokens."""

    def __init__(self, directory: Path, device: str, compiled: bool) -> None:
        self.model = lineage.from_pretrained(directory, dtype="bf16", device=device, fused=True)
        self.compiled = compiled
        self.call = torch.compile(self.model, mode="reduce-overhead", fullgraph=True) if compiled else self.model

    def start(self, room: int) -> None:
        self.cache = Cache(self.model.spec, room, fixed=self.compiled)
        if self.compiled:
            self.cache.reserve(1, self.model.table)

    def step(self, ids: Tensor) -> Tensor:
        return self.call(ids, cache=self.cache, last=1).logits


class Theirs:
    """transformers, sdpa; compiled: its static cache, as its own documentation says."""

    def __init__(self, directory: Path, device: str, compiled: bool) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        loaded: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, attn_implementation="sdpa")
        self.model, self.compiled = loaded.to(device).eval(), compiled
        self.call = torch.compile(self.model, mode="reduce-overhead") if compiled else self.model

    def start(self, room: int) -> None:
        from transformers import DynamicCache, StaticCache

        config = self.model.config
        self.cache = StaticCache(config=config, max_cache_len=room) if self.compiled else DynamicCache(config=config)

    def step(self, ids: Tensor) -> Tensor:
        return self.call(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(one: Ours | Theirs, ids: Tensor, device: str) -> tuple[float, float]:
    """Seconds of the prompt, and of each token after it."""
    one.start(ids.shape[1] + NEW + 1)
    wait(device)
    began = time.perf_counter()
    new = one.step(ids)[:, -1:].argmax(-1)
    wait(device)
    prompt = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(NEW):
        new = one.step(new.clone())[:, -1:].argmax(-1)
    wait(device)
    return prompt, (time.perf_counter() - began) / NEW


def copy_rate(device: str, size: int) -> float:
    """Bytes a second that the device reads and writes when it copies, the best of several tries."""
    whole, best = torch.empty(size, dtype=torch.uint8, device=device), 0.0
    target = torch.empty_like(whole)
    for _ in range(6):
        wait(device)
        began = time.perf_counter()
        target.copy_(whole)
        wait(device)
        best = max(best, 2 * size / (time.perf_counter() - began))
    return best


def parity(kind: str, root: Path, device: str) -> dict[str, Any]:
    report = lineage.verify(checkpoint(kind, root, small=True), only=["fp32", "behaviour", "bf16"], device=device)
    return {"kind": kind, "passed": report.passed, "lines": list(report.lines())}


def speeds(kind: str, directory: Path, device: str, rate: float, until: float, compiled: tuple[bool, ...]) -> Any:
    """A row for each side; those for which no time is left are left out, and named."""
    ids, rows = torch.randint(5, 500, (1, PROMPT if device == "cuda" else 32), device=device), []
    for side in (Theirs, Ours):
        for through in compiled:
            if time.perf_counter() > until:
                rows.append({"kind": kind, "side": side.__name__, "compiled": through, "left_out": "no time"})
                continue
            one = side(directory, device, through)
            for _ in range(2):
                timed(one, ids, device)
            each = [timed(one, ids, device) for _ in range(ROUNDS)]
            prompt, token = (statistics.median(seconds) for seconds in zip(*each, strict=True))
            rows.append(
                {"kind": kind, "side": side.__name__, "compiled": through, "prefill": ids.numel() / prompt,
                 "decode": 1 / token}
            )  # fmt: skip
            if isinstance(one, Ours):
                read = 2 * count.figures(one.model.spec)["active"] + count.kept(one.model.spec, ids.numel() + NEW // 2)
                rows[-1] |= {"bound": rate / read, "share": read / token / rate}
            del one
            gc.collect()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--uncompiled", action="store_true", help="leave the compiler out")
    parser.add_argument("--models", type=Path, default=Path("build/models"), help="where checkpoints are kept")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not asked.small:
        parser.error("no CUDA device: --small tries the script on the CPU")
    warnings.filterwarnings("ignore")  # of others, about themselves
    until, kinds = time.perf_counter() + BUDGET * 0.85, ("gpt2", "llama", "mixtral")
    compiled = (False,) if asked.uncompiled else (False, True)
    rate = copy_rate(device, 1 << (24 if asked.small else 30))
    found = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "copy": rate,
        "torch": torch.__version__,
    }
    found |= {"parity": [parity(kind, asked.models, device) for kind in kinds], "speeds": []}
    for row in found["parity"]:
        print(
            f"{row['kind']:8} parity on {device}: {'holds' if row['passed'] else 'FAILED'}", *row["lines"], sep="\n  "
        )
    print(f"{found['device']}: copies {rate / 1e9:.1f} GB/s")
    with torch.inference_mode():
        for kind in kinds:
            directory = checkpoint(kind, asked.models, asked.small)
            for row in speeds(kind, directory, device, rate, until, compiled):
                found["speeds"].append(row)
                told = f"{row['kind']:8} {row['side']:7} {'compiled' if row['compiled'] else 'as it is':9}"
                if "left_out" not in row:
                    told += f"prefill {row['prefill']:9.0f} tokens/s   decode {row['decode']:7.1f} tokens/s"
                told += f"   {row['share']:.0%} of the bound {row['bound']:.0f}" if "share" in row else ""
                print(told + row.get("left_out", ""), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
