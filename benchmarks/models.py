"""Random checkpoints in the public layout, of sizes at which speed means something.

gpt2: 124M in fp32. llama: 1.1B in bf16. mixtral: 1B in bf16, 8 experts of which 2 see a token. Small ones have the same
parts and run in a second, to try the scripts.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from lineage import catalog, config, graph
from lineage.operations import invert
from lineage.parity.tiny import tiny
from lineage.plan import expected

GROUPED = dict(kv_heads=4, head_size=64, eps=1e-5, theta=10000.0, tied=False, padding=None)
SIZES = {
    "gpt2": dict(vocab=50257, context=1024, width=768, layers=12, heads=12),
    "llama": GROUPED | dict(vocab=32000, width=2048, layers=22, heads=32, mlp_width=5632),
    "mixtral": GROUPED | dict(vocab=32000, width=1024, layers=10, heads=16, mlp_width=3584, experts=8, top_k=2),
}
LESS = dict(vocab=503, width=64, layers=2, heads=4)
SMALL = {
    "gpt2": SIZES["gpt2"] | LESS,
    "llama": SIZES["llama"] | LESS | dict(kv_heads=2, head_size=16, mlp_width=96),
    "mixtral": SIZES["mixtral"] | LESS | dict(kv_heads=2, head_size=16, mlp_width=96),
}
STORED = {"gpt2": torch.float32, "llama": torch.bfloat16, "mixtral": torch.bfloat16}


def checkpoint(kind: str, root: Path, small: bool = False) -> Path:
    """The folder of a model, written the first time that it is asked for."""
    directory = root / f"{kind}-{'small' if small else 'whole'}"
    if (directory / "config.json").exists():
        return directory
    _, dialect, chosen = tiny(kind, **(SMALL if small else SIZES)[kind])
    spec = catalog.families()[dialect.spec].function(**chosen)
    draw, shapes, dtype, tensors = torch.Generator().manual_seed(0), graph.tensors(spec), STORED[kind], {}
    for step in expected(dialect, spec, dialect.prefixes[0]):
        arrays = [_drawn(target, shapes[target], dtype, draw).numpy() for target in step.targets]
        for name, array in zip(step.sources, invert(step.operations, arrays), strict=True):
            tensors[name] = torch.from_numpy(array).contiguous().view(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    told = {"model_type": kind, "architectures": [dialect.references[0].name], "eos_token_id": None}
    told |= {"dtype": str(dtype).removeprefix("torch."), "bos_token_id": None}
    told |= {} if kind == "gpt2" else {"max_position_embeddings": 8192}
    (directory / "config.json").write_text(json.dumps(config.write(dialect.config, chosen) | told, indent=2))
    return directory


def _drawn(name: str, shape: tuple[int, ...], dtype: torch.dtype, draw: torch.Generator) -> torch.Tensor:
    """Small numbers, as raw elements; a router's are larger, so that no two experts tie."""
    deviation = 0.1 if "router" in name else 0.02
    drawn = torch.randn(shape, generator=draw) * deviation + (len(shape) == 1 and name.endswith("weight"))
    return drawn.to(dtype).view({4: torch.int32, 2: torch.int16}[dtype.itemsize])
