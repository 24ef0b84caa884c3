"""The modules' speed on a CPU against transformers and others: one process, all sides in turns, ratios round by round.

    .venv/bin/python benchmarks/run.py [--small] [--kinds gpt2 llama mixtral] [--threads 1 2] [--json FILE]

Other work on the machine moves every time that is measured; a ratio of two times from one round it moves little. So
what counts is the median of the rounds' ratios. The bound of decoding is reading every weight once a token: `share` is
that figure's part of what a matrix times a vector reads here in the same minute.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import checkpoint
from sides import sides

BASE = "sdpa"
SIDES = ["lineage", "fused", "eager", "lean", "litgpt"]
PREFILLS = {"prefill 1×512": (1, 512), "prefill 4×128": (4, 128)}
GROWTH = (64, 256, 1024, 4096)
Call = Callable[..., object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["gpt2", "llama", "mixtral"])
    parser.add_argument("--sides", nargs="+", default=SIDES, help="also: compiled")
    parser.add_argument("--cases", nargs="+", default=["whole", "prefill", "decode", "growth", "load"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="tiny models: to see that everything runs")
    parser.add_argument("--models", type=Path, default=Path("build/models"), help="where checkpoints are kept")
    parser.add_argument("--lean", type=Path, help="a hand-written model to measure beside")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")  # of the reference, about its own arguments
    rows: list[dict[str, Any]] = []
    for kind in asked.kinds:
        directory = checkpoint(kind, asked.models, asked.small)
        if "load" in asked.cases:
            rows += loading(kind, directory)
        if set(asked.cases) - {"load"}:
            with torch.inference_mode():
                rows += speeds(kind, directory, asked)
        gc.collect()
        show([row for row in rows if row["kind"] == kind])
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


def speeds(kind: str, directory: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    found, rows = sides(kind, directory, asked.lean, asked.sides), []
    config = found[BASE].model.config
    limit, steps = getattr(config, "n_positions", config.max_position_embeddings), 3 if asked.small else 8
    draw = torch.Generator().manual_seed(1)
    for threads in asked.threads:
        torch.set_num_threads(threads)
        shapes = {name: (rows_, min(length, limit // 2)) for name, (rows_, length) in PREFILLS.items()}
        for name, shape in shapes.items():
            ids = torch.randint(5, config.vocab_size, shape, generator=draw)
            check(found, ids)
            if "whole" in asked.cases:
                calls = {side: (lambda one=one, ids=ids: one.whole(ids)) for side, one in found.items()}
                rows += measured(kind, name.replace("prefill", "all logits"), threads, calls, asked.rounds, ids.numel())
            if "prefill" in asked.cases:
                calls = {side: (lambda one=one, ids=ids: one.prefill(ids, ids.shape[1])) for side, one in found.items()}
                rows += measured(kind, name, threads, calls, asked.rounds, ids.numel())
        if "decode" in asked.cases:
            ids, room = torch.randint(5, config.vocab_size, (1, 64), generator=draw), 64 + steps * (asked.rounds + 1)
            going = {side: one.prefill(ids, room)[1] for side, one in found.items()}
            bound = read_rate() / active_bytes(found["lineage"].model)
            calls = {side: partial(several, step, ids[:, -1:], steps) for side, step in going.items()}
            for row in measured(kind, "decode", threads, calls, asked.rounds, steps):
                rows.append(row | {"share": row["tokens_s"] / bound})
        if "growth" in asked.cases:
            able = {side: one for side, one in found.items() if side in (BASE, "lineage")}
            for length in [length for length in GROWTH if length + steps * (asked.rounds + 1) <= limit]:
                going = {side: one.filled(length, length + steps * (asked.rounds + 1)) for side, one in able.items()}
                calls = {side: partial(several, step, torch.tensor([[7]]), steps) for side, step in going.items()}
                rows += measured(kind, f"decode at {length}", threads, calls, asked.rounds, steps)
    return rows


def several(step: Call, new: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        step(new)


def check(found: dict[str, Any], ids: torch.Tensor) -> None:
    """What is not the same computation is not worth timing."""
    want = found[BASE].prefill(ids, ids.shape[1])[0]
    for name, one in found.items():
        gap = (one.prefill(ids, ids.shape[1])[0] - want).abs().max() / want.abs().max()
        assert gap < 1e-4, f"{name} computes something else: {gap:.1e}"


def measured(
    kind: str, case: str, threads: int, calls: dict[str, Call], rounds: int, tokens: int
) -> list[dict[str, Any]]:
    """Each side once a round, in turns that change; a first round is not counted."""
    times: dict[str, list[float]] = {side: [] for side in calls}
    for turn in range(rounds + 1):
        for side in list(calls)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            calls[side]()
            times[side].append(time.perf_counter() - began)
    rows = []
    for side, each in times.items():
        ratios = [base / own for base, own in zip(times[BASE][1:], each[1:], strict=True)]
        spread = [round(ratio, 3) for ratio in sorted(ratios)]
        rows.append(
            {"kind": kind, "case": case, "threads": threads, "side": side, "seconds": statistics.median(each[1:]),
             "tokens_s": tokens / statistics.median(each[1:]), "ratio": statistics.median(ratios), "ratios": spread}
        )  # fmt: skip
    return rows


def read_rate() -> float:
    """Bytes a second that a matrix times a vector reads here and now, the best of several tries."""
    matrix, vector, best = torch.randn(8192, 8192), torch.randn(8192), 0.0
    for _ in range(8):
        began = time.perf_counter()
        torch.mv(matrix, vector)
        best = max(best, matrix.numel() * 4 / (time.perf_counter() - began))
    return best


def active_bytes(model: Any) -> float:
    """Bytes of the weights that one token reads."""
    from lineage import count

    active = count.figures(model.spec)["active"]
    table = 0 if model.spec.head.tied else model.spec.embed.vocab * model.spec.embed.width
    return 4.0 * (active - table)


LOADS = {
    "sdpa": "from transformers import AutoModelForCausalLM as A\nfrom transformers.utils import logging\n"
    "logging.disable_progress_bar()\nload = lambda: A.from_pretrained({d!r}, dtype='auto')",
    "lineage": "import lineage\nlineage.from_pretrained\nload = lambda: lineage.from_pretrained({d!r})",
    "converted": "import lineage\nlineage.from_pretrained\nload = lambda: lineage.from_pretrained({c!r})",
}
MEASURE = """
import torch, time, json, resource, sys
def status(*names):
    told = dict(line.split(':') for line in open('/proc/self/status'))
    return [int(told[name].split()[0]) for name in names]
before = status('RssAnon', 'VmHWM')
began = time.perf_counter()
model = load()
took = time.perf_counter() - began
loaded = status('RssAnon', 'VmHWM')
with torch.inference_mode():
    model(torch.arange(5, 21)[None])
ran = status('RssAnon', 'VmHWM')
print(json.dumps([took, before, loaded, ran]))
"""


def loading(kind: str, directory: Path, rounds: int = 3) -> list[dict[str, Any]]:
    """Seconds of the call that loads, and of memory the most that was held; each time in a process of its own."""
    import lineage

    converted = directory.with_name(directory.name + "-lineage")
    if not converted.exists():
        lineage.convert(str(directory), converted, verify=False)
    found: dict[str, list[list[Any]]] = {side: [] for side in LOADS}
    for turn in range(rounds):
        for side in list(LOADS)[:: 1 if turn % 2 else -1]:
            code = LOADS[side].format(d=str(directory), c=str(converted)) + MEASURE
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    rows, base = [], found[BASE]
    for side, each in found.items():
        ratios = [theirs[0] / own[0] for theirs, own in zip(base, each, strict=True)]
        peaks = [statistics.median(one[place][1] for one in each) / 1e3 for place in (1, 2, 3)]
        anonymous = statistics.median(one[3][0] for one in each) / 1e3
        rows.append(
            {"kind": kind, "case": "load", "threads": 1, "side": side, "seconds": statistics.median(o[0] for o in each),
             "ratio": statistics.median(ratios), "ratios": ratios, "before_mb": peaks[0], "peak_mb": peaks[1],
             "ran_mb": peaks[2], "anonymous_mb": anonymous, "file_mb": size(directory) / 1e6}
        )  # fmt: skip
    return rows


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def machine() -> dict[str, Any]:
    import transformers

    return {
        "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg(),
        "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version(),
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        text = f"{row['kind']:8} {row['case']:18} {row['threads']} {row['side']:10} {row['seconds'] * 1e3:9.1f} ms"
        text += f"  {row['ratio']:5.2f} ×  [{row['ratios'][0]:.2f} … {row['ratios'][-1]:.2f}]"
        text += f"  {row['share']:.0%} of reading" if "share" in row else ""
        if "peak_mb" in row:
            text += f"  peak {row['peak_mb']:.0f} MB, after a call {row['ran_mb']:.0f}, own {row['anonymous_mb']:.0f}"
        print(text, flush=True)


if __name__ == "__main__":
    main()
