"""Counts as JSON and as text: parameters with their formulas, the cache, the work."""

from collections.abc import Mapping
from typing import Any

from lineage import count
from lineage.components import Bidirectional, Model
from lineage.render.text import bytes_text, wrapped
from lineage.words import joined


def report(name: str, model: Model, by: str, seq: int, batch: int, kind: str, tokens: float | None) -> dict[str, Any]:
    """All that can be counted without weights. by: component or layer; kind: of the cache; tokens: to train on."""
    shares, symbols = count.shares(model, by)
    figures = count.figures(model)
    kept = {
        "bytes": count.kept(model, seq, batch, kind),
        "ungrouped": count.kept(model, seq, batch, kind, whole=True),
    }
    share = count.MASKED if isinstance(model.blocks[0].attention.body.mask, Bidirectional) else 1.0  # type: ignore[union-attr]
    return {
        "schema": "lineage.params/1",
        "name": name,
        **figures,
        "tables": sum(one.parameters for one in count.shares(model)[0] if one.name.endswith(("tokens", "head"))),
        "parts": [vars(share) for share in shares],
        "symbols": symbols,
        "weights": {dtype: int(size * figures["parameters"]) for dtype, size in count.BYTES.items()},
        "kept": {"tokens": seq, "batch": batch, "dtype": kind, **kept, "flops": count.flops(model, seq)},
        "training": {"tokens": tokens, "flops": 6 * figures["active"] * tokens, "learned": share} if tokens else None,
    }


def text(told: Mapping[str, Any]) -> list[str]:
    """The same as lines."""
    total, active, kept, tables = told["parameters"], told["active"], told["kept"], told["tables"]
    few = f", {active:,} of them for one token ({active / total:.1%})" if active != total else ""
    lines = [f"{told['name']}   {total:,} parameters{few}", ""]
    for part in told["parts"]:
        size, some = part["parameters"], part["active"]
        few = f"   {some:,} a token" if some != size else ""
        lines.append(f"{part['name']:<20} {size:>18,} {size / total:>7.1%}   {part['formula']}{few}")
    spared = f"; ungrouped {bytes_text(kept['ungrouped'])}" if kept["ungrouped"] != kept["bytes"] else ""
    cache = f"{kept['bytes']:,} bytes ({bytes_text(kept['bytes'])}{spared}) in {kept['dtype']}"
    many = f"{kept['tokens']:,} tokens" + (f" × {kept['batch']:,}" if kept["batch"] > 1 else "")
    loaded = "; all of it must be loaded" if active != total else ""
    facts = {
        "where": joined(f"{name} = {value:,}" for name, value in told["symbols"].items()),
        "tables": f"of tokens, and the head: {tables:,} ({tables / total:.1%})",
        "memory": joined(f"{dtype} {bytes_text(size)}" for dtype, size in told["weights"].items()) + loaded,
        "cache": f"{cache}, for {many}" if kept["bytes"] else "none: every token attends to all",
        "work": f"{told['flops']:,} operations a token; at token {kept['tokens']:,}: {kept['flops']:,}",
    }
    if training := told["training"]:
        few = f"; learns from 1 token in {1 / training['learned']:.1f}" if training["learned"] < 1 else ""
        facts["training"] = f"{training['flops']:.3g} operations (6 · N · D) for {training['tokens']:.3g} tokens{few}"
    return [*lines, "", *(line for name, text in facts.items() for line in wrapped(name, text, 10))]
