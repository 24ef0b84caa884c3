"""Tiny models with spread weights, as files in the reference's own layout: what a family's parity is tried on.

A framework's default initialisation hides bugs: norm weights of 1 and biases of 0 are invisible. Spread weights are
not (parity.md §1): norm weights 1 + 0.3 N, biases 0.3 N, matrices N(0, 1.5/√fan_in), embeddings N(0, 1).
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lineage import catalog, config, graph
from lineage import components as c
from lineage.operations import Array, invert
from lineage.parity.reference import choose
from lineage.plan import expected
from lineage.rules import Dialect

TABLES = (c.Embed, c.LearnedPositions, c.Segments, c.Distances)


def spread(spec: c.Model, seed: int = 0, table_scale: float = 1.0) -> dict[str, Tensor]:
    """Spread weights for every tensor of a spec. table_scale: of the embedding's tables; 0.02 exposes a norm's eps."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for node in graph.walk(spec):
        for name, shape in node.component.tensors(node.width).items():
            noise = torch.randn(shape, generator=generator)
            path = f"{node.path}.{name}" if node.path else name
            found[path] = noise * table_scale if isinstance(node.component, TABLES) else _scaled(name, noise)
    return found


def _scaled(name: str, noise: Tensor) -> Tensor:
    if name.endswith("bias"):
        return 0.3 * noise
    if noise.dim() == 1:
        return 1 + 0.3 * noise
    return noise * 1.5 / noise.shape[-1] ** 0.5


def write_tiny(name: str, directory: Path, *, seed: int = 0, table_scale: float = 1.0, **arguments: Any) -> Path:
    """Write a tiny checkpoint of a family, or of a public model type, in that type's own layout. Returns its folder.

    arguments: of the spec, in place of the tiny ones. Raises UsageError for a name that is not known.
    """
    from safetensors.torch import save_file

    kind, dialect, chosen = tiny(name, **arguments)
    spec = catalog.families()[dialect.spec].function(**chosen)
    state, base = spread(spec, seed, table_scale), dialect.prefixes[0]
    tensors: dict[str, Tensor] = {}
    for step in expected(dialect, spec, base):
        arrays: list[Array] = [state[target].numpy() for target in step.targets]
        back = invert(step.operations, arrays)
        tensors |= {
            source: torch.from_numpy(array).contiguous() for source, array in zip(step.sources, back, strict=True)
        }
    directory.mkdir(parents=True, exist_ok=True)
    settings = config.write(dialect.config, chosen) | {
        "model_type": kind,
        "architectures": [choose(dialect, spec).name],
    }
    (directory / "config.json").write_text(json.dumps(settings, indent=2))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def tiny(name: str, **arguments: Any) -> tuple[str, Dialect, dict[str, Any]]:
    """The model type, the dialect and the spec's arguments of a tiny model. Raises UsageError as `write_tiny` does."""
    types = {kind: dialect for kind, dialect in catalog.dialects().items() if name in (kind, dialect.spec)}
    if not types:
        raise catalog.unknown(name, {**catalog.families(), **catalog.dialects()})
    kind, dialect = (name, types[name]) if name in types else next(iter(types.items()))
    usual = config.read(dialect.config, {}).arguments  # what the reference's class takes for a config that says nothing
    usual |= {find.argument: True for find in dialect.finds if find.usual}
    scored = next((r for r in dialect.references if r.decides and r.decides.get("task") == arguments.get("task")), None)
    if scored:
        usual |= {find.argument: find.argument in scored.parts for find in dialect.finds} | dict(scored.decides)
    return kind, dialect, usual | dict(catalog.families()[dialect.spec].tiny) | dict(dialect.fixed) | arguments
