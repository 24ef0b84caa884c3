"""Converting against `cp` and others: all sides in turns, ratios round by round, peak memory of each process.

    .venv/bin/python benchmarks/convert.py [--rounds 5] [--kinds gpt2 llama mixtral growth] [--small] [--work DIR]

Makes its checkpoints in a new folder under --work (12 GB at most; it is removed) from seeded numbers. Other work on the
machine moves every time that is measured; a ratio of two times from one round it moves little, so what counts is the
median of the rounds' ratios. Before each run the disk is brought to rest, so that nobody pays for another's writing.
Peers that are not installed are left out; --peers DIR names a folder of packages (pip install --target DIR litgpt …).
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

GIGA = 1e9
print = partial(print, flush=True)
COPY, SYNCED = "cp", "cp, then sync"
PEERS = {
    "safetensors load + save": """
import sys, glob, os
from safetensors.torch import load_file, save_file
os.mkdir(sys.argv[2])
for path in glob.glob(sys.argv[1] + "/*.safetensors"):
    save_file({"x." + name: t for name, t in load_file(path).items()}, sys.argv[2] + "/" + os.path.basename(path))
""",
    "transformers load + save": """
import sys, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
model.save_pretrained(sys.argv[2])
""",
    "ctranslate2": """
import sys
from ctranslate2.converters import TransformersConverter
TransformersConverter(sys.argv[1]).convert(sys.argv[2])
""",
    "litgpt": """
import sys, os, shutil
from pathlib import Path
from litgpt.scripts.convert_hf_checkpoint import convert_hf_checkpoint
shutil.copytree(sys.argv[1], sys.argv[2], copy_function=os.symlink)
convert_hf_checkpoint(Path(sys.argv[2]), model_name=sys.argv[3], dtype=None)
""",
}
NEEDS = {"ctranslate2": ("gpt2",), "litgpt": ("llama", "mixtral")}  # the kinds that a peer takes without a tokenizer
NAMES = {"llama": "tiny-llama-1.1b", "mixtral": "Mixtral-8x7B-v0.1"}
MAKE = """
import json, sys
from pathlib import Path
import numpy as np
kind, directory, layers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
def gpt2(w=768, vocab=50257, context=1024):
    shapes = {"wte.weight": (vocab, w), "wpe.weight": (context, w)}
    for i in range(layers):
        p = f"h.{i}."
        shapes |= {p + f"{n}.{x}": (w,) for n in ("ln_1", "ln_2") for x in ("weight", "bias")}
        for name, a, b in (("attn.c_attn", w, 3 * w), ("attn.c_proj", w, w), ("mlp.c_fc", w, 4 * w),
                           ("mlp.c_proj", 4 * w, w)):
            shapes |= {p + name + ".weight": (a, b), p + name + ".bias": (b,)}
    return shapes | {"ln_f.weight": (w,), "ln_f.bias": (w,)}, {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers}, "F32", 1
def decoder(w, f, heads, experts, parts):
    shapes = {"model.embed_tokens.weight": (32000, w)}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (w,), p + "post_attention_layernorm.weight": (w,)}
        for n, rows in (("q", w), ("k", w // heads * 4), ("v", w // heads * 4), ("o", w)):
            shapes[p + f"self_attn.{n}_proj.weight"] = (rows, w)
        if experts:
            shapes[p + "block_sparse_moe.gate.weight"] = (experts, w)
            for e in range(experts):
                for n, shape in (("w1", (f, w)), ("w2", (w, f)), ("w3", (f, w))):
                    shapes[p + f"block_sparse_moe.experts.{e}.{n}.weight"] = shape
        else:
            shapes |= {p + f"mlp.{n}_proj.weight": shape for n, shape in
                       (("gate", (f, w)), ("up", (f, w)), ("down", (w, f)))}
    more = {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None} if experts else {}
    name = "mixtral" if experts else "llama"
    return shapes | {"model.norm.weight": (w,), "lm_head.weight": (32000, w)}, {
        "model_type": name, "architectures": [name.capitalize() + "ForCausalLM"], "vocab_size": 32000, "hidden_size": w,
        "intermediate_size": f, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 4,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "dtype": "bfloat16",
        **more}, "BF16", parts
shapes, config, dtype, parts = {
    "gpt2": gpt2, "llama": lambda: decoder(2048, 5632, 32, 0, 2 if layers > 2 else 1),
    "mixtral": lambda: decoder(1024, 3584, 16, 8, 2)}[kind]()
directory.mkdir(parents=True)
(directory / "config.json").write_text(json.dumps(config))
if kind == "gpt2":  # a tokenizer for those who ask for one
    (directory / "vocab.json").write_text(json.dumps({f"t{i}": i for i in range(50256)} | {"<|endoftext|>": 50256}))
    (directory / "merges.txt").write_text("#version: 0.2\\n")
numbers = np.random.default_rng(0).standard_normal(1 << 22).astype("<f4") * np.float32(0.02)
raw = memoryview(numbers if dtype == "F32" else (numbers.view("<u4") >> 16).astype("<u2")).cast("B")
width, names, places = 4 if dtype == "F32" else 2, list(shapes), {}
for part in range(parts):
    file = "model.safetensors" if parts == 1 else f"model-{part + 1:05}-of-{parts:05}.safetensors"
    held, header, end = names[part * len(names) // parts : (part + 1) * len(names) // parts], {}, 0
    for name in held:
        start, end = end, end + width * int(np.prod(shapes[name]))
        header[name] = {"dtype": dtype, "shape": list(shapes[name]), "data_offsets": [start, end]}
        places[name] = file
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        while end:
            out.write(raw[: min(end, len(raw))])
            end -= min(end, len(raw))
if parts > 1:
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=["gpt2", "llama", "mixtral", "growth"])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--peers", type=Path, help="a folder of more packages")
    parser.add_argument("--small", action="store_true", help="small models: to see that everything runs")
    asked = parser.parse_args()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIGA
    with tempfile.TemporaryDirectory(dir=asked.work, prefix="convert-") as folder:
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        environment["PYTHONPATH"] = str(asked.peers or "")
        bench = Bench(Path(folder), environment, asked.rounds)
        load = os.getloadavg()[0]
        when = time.strftime("%Y-%m-%d %H:%M")
        print(f"{when}, {os.cpu_count()} cores, {gigabytes:.0f} GB, load {load:.1f}, {asked.rounds} rounds, "
              f"warm; Linux {platform.release()}, Python {platform.python_version()}")  # fmt: skip
        for kind in [kind for kind in asked.kinds if kind != "growth"]:
            layers = {"gpt2": 12, "llama": 22, "mixtral": 10}[kind]
            bench.table(kind, 2 if asked.small else layers, peers(kind, asked.peers))
        if "growth" in asked.kinds:
            bench.growth([1, 2, 3] if asked.small else [1, 10, 44])


def peers(kind: str, folder: Path | None) -> dict[str, list[str]]:
    """The peers that are installed and take such a model, by name: what Python is told."""
    if folder:
        sys.path.insert(0, str(folder))
    found = {}
    for name, code in PEERS.items():
        if find_spec(name.split()[0]) is None:
            print(f"{name} is not installed: left out")
        elif kind in NEEDS.get(name, (kind,)):
            found[name] = [sys.executable, "-c", code, "{in}", "{out}", NAMES.get(kind, "")]
    return found


class Bench:
    """Runs commands in turns. {in} and {out} in a command are its source and an output that is new each time."""

    def __init__(self, folder: Path, environment: dict[str, str], rounds: int) -> None:
        self.folder, self.environment, self.rounds = folder, environment, rounds

    def table(self, kind: str, layers: int, others: dict[str, list[str]]) -> None:
        """One model, every side: seconds, ratios to `cp` of the same round, and peak memory."""
        source = self.made(kind, layers)
        size = sum(path.stat().st_size for path in source.iterdir())
        sides = {**self.copies(), **self.ours(), **others}
        found = self.turns(source, sides)
        print(f"\n{kind}, {size / GIGA:.2f} GB" + " " * 14 + "seconds   of cp   of cp and sync   peak MB")
        for name, runs in found.items():
            if not runs:
                print(f"{name:32} failed, left out")
                continue
            cells = [statistics.median(run[0] for run in runs)]
            for base in (COPY, SYNCED):
                cells.append(statistics.median(a[0] / b[0] for a, b in zip(runs, found[base], strict=True)))
            peak = statistics.median(run[1] for run in runs)
            print(f"{name:32}{cells[0]:8.2f}{cells[1]:8.2f}{cells[2]:12.2f}{peak:14.0f}")
        shutil.rmtree(source)

    def growth(self, depths: list[int]) -> None:
        """The same model, deeper and deeper: whether time grows as bytes do, and memory does not."""
        print("\nllama, bytes kept" + " " * 12 + "cp s   lineage s   s a GB   peak MB")
        for layers in depths:
            source = self.made("llama", layers)
            size = sum(path.stat().st_size for path in source.iterdir())
            found = self.turns(source, {**self.copies(), **self.ours()})
            copied, done = found[COPY], found["lineage convert --no-sync"]
            seconds = statistics.median(run[0] for run in done)
            peak = max(run[1] for run in done)
            print(f"{size / GIGA:6.2f} GB{'':18}{statistics.median(run[0] for run in copied):6.2f}{seconds:12.2f}"
                  f"{seconds / size * GIGA:9.2f}{peak:10.0f}")  # fmt: skip
            shutil.rmtree(source)

    @staticmethod
    def copies() -> dict[str, list[str]]:
        return {COPY: ["cp", "-r", "{in}", "{out}"], SYNCED: ["sh", "-c", "cp -r {in} {out} && sync {out}/*"]}

    @staticmethod
    def ours() -> dict[str, list[str]]:
        convert = [sys.executable, "-m", "lineage", "convert", "{in}", "-o", "{out}", "--verify", "none"]
        return {
            "lineage convert": convert,
            "lineage convert --no-sync": [*convert, "--no-sync"],
            "lineage convert --no-sync --hash": [*convert, "--no-sync", "--hash"],
        }

    def made(self, kind: str, layers: int) -> Path:
        source = self.folder / kind
        subprocess.run([sys.executable, "-c", MAKE, kind, source, str(layers)], check=True)
        return source

    def turns(self, source: Path, sides: dict[str, list[str]]) -> dict[str, list[tuple[float, float]]]:
        """Each side once a round, every second round from behind; the first round only warms."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        failed: set[str] = set()
        for number in range(self.rounds + 1):
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                if name in failed:
                    continue
                run = self.once([part.replace("{in}", str(source)) for part in sides[name]])
                if run is None:
                    failed.add(name)
                elif number:
                    found[name].append(run)
        return {name: [] if name in failed else runs for name, runs in found.items()}

    def once(self, command: list[str]) -> tuple[float, float] | None:
        """Seconds and peak MB of a command; None if it fails, and then its last words are printed."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        start = time.perf_counter()
        with tempfile.TemporaryFile() as said:
            command = [part.replace("{out}", str(out)) for part in command]
            process = subprocess.Popen(command, env=self.environment, stdout=said, stderr=said)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                said.seek(0)
                print(said.read().decode(errors="replace").strip().splitlines()[-1:], file=sys.stderr)
        shutil.rmtree(out, ignore_errors=True)
        return None if process.returncode else (seconds, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
