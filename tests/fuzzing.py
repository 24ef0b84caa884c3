"""The parsers under fire: whatever bytes a file holds, it is read or refused in our words, at a cost that it bounds.

tests/test_fuzz.py draws files by hypothesis; `scripts/fuzz` lets coverage lead (atheris):

    python -m tests.fuzzing PARSER [OPTIONS OF LIBFUZZER]
"""

import json
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests import handmade

REFUSALS = (2, 6, 7, 9)
FLOOR, EACH = 3 << 20, 64  # bytes of memory that any file may take, and that each of its bytes may
SECONDS = 20  # of the processor: a hundred times what these files take
MAGIC = b"GGUF\3\0\0\0"

Choose = Callable[[int], int]
"""A whole number below another, by whoever leads."""


def header(raw: bytes, folder: Path) -> None:
    """A safetensors file: its tensors are all of its bytes but the header."""
    from lineage.checkpoint.weights import open_weights

    path = folder / "model.safetensors"
    path.write_bytes(raw)
    weights = open_weights(folder, file=path)
    assert sum(len(piece) for name in weights for piece in weights.chunks(name)) < len(raw)


def index(raw: bytes, folder: Path) -> None:
    """An index beside two shards: what is opened lies beside it, and holds what it says."""
    from lineage.checkpoint.weights import open_weights

    if not (folder / "model.safetensors.index.json").exists():
        handmade.write(folder / "whole")
        (folder / "whole" / "config.json").unlink()
        handmade.shard(folder / "whole")
        for path in (folder / "whole").iterdir():
            path.rename(folder / path.name)
    (folder / "model.safetensors.index.json").write_bytes(raw)
    weights = open_weights(folder)
    assert all(path.parent == folder and path.name.startswith("model-0000") for path in weights.files)
    assert weights.keys() == handmade.tensors().keys()


def config(raw: bytes, folder: Path) -> None:
    """A config.json, alone and beside weights that are another model's."""
    from lineage.checkpoint.source import Access, locate
    from lineage.conversion import open_checkpoint
    from lineage.describe import describe

    if not (folder / "whole").exists():
        handmade.write(folder / "whole")
    for path in (folder / "config.json", folder / "whole" / "config.json"):
        path.write_bytes(raw)
    assert locate(str(folder), Access()).config == folder / "config.json"
    describe(str(folder / "config.json"), Access())
    open_checkpoint(str(folder / "whole"), Access())


def gguf(raw: bytes, folder: Path) -> None:
    """A GGUF file, config and tensors."""
    from lineage.checkpoint.source import Access
    from lineage.conversion import open_checkpoint

    path = folder / "model.gguf"
    path.write_bytes(raw)
    open_checkpoint(str(path), Access())


def record(raw: bytes, folder: Path) -> None:
    """The record of a converted directory, and the spec in it."""
    from lineage.checkpoint.source import Access
    from lineage.describe import describe
    from lineage.record import read_manifest

    (folder / "lineage.json").write_bytes(raw)
    try:
        read_manifest(folder)
    finally:
        describe(str(folder), Access())


PARSERS: Mapping[str, Callable[[bytes, Path], None]] = {
    "header": header, "index": index, "config": config, "gguf": gguf, "record": record,
}  # fmt: skip


def survived(parser: str, raw: bytes, folder: Path) -> bool:
    """Whether a file is read; False if it is refused as it should be. Raises whatever else comes of it."""
    from lineage.errors import LineageError

    refused: list[LineageError] = []
    try:
        PARSERS[parser](raw, folder)
    except LineageError as error:
        refused.append(error)
    for error in refused:
        told = sum(map(len, (error.message, *error.facts)))
        assert error.exit_code in REFUSALS, repr(error)
        assert 0 < told < 10_000 + 100 * len(raw), f"{told:,} characters"
    return not refused


def measured(parser: str, raw: bytes, folder: Path) -> bool:
    """The same, with a look at what it costs and at what it leaves behind."""
    survived(parser, raw, folder)  # what is loaded once is not this file's cost
    before = handmade.tree(folder)
    start = time.process_time()
    tracemalloc.start()
    try:
        return survived(parser, raw, folder)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert handmade.tree(folder) == before
        assert peak < FLOOR + EACH * len(raw), f"{len(raw):,} bytes took {peak:,} of memory"
        assert time.process_time() - start < SECONDS


MANY = 2**31 - 1
NUMBERS = (
    0, 1, 2, 3, 7, 64, 4096, -1, -2, MANY, MANY + 1, 2**63, 10**400, 0.0, -0.0, 0.5, 1e-300, 1e308,
    float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
WORDS = (
    "", "gelu", "default", "linear", "dynamic", "yarn", "longrope", "llama3", "full_attention", "sliding_attention",
    "\0\x1b[2J\n", "../../x", "é" * 4000, "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "rope_theta", "short_factor", "long_factor", "beta_fast", "mscale", "0",
    "quant_method", "fp8", "mxfp4", "weight_block_size", "attention", "global", "local",
)  # fmt: skip


def value(choose: Choose, depth: int = 0) -> Any:
    """Any value of JSON, of those that configs have and of those that they should not."""
    kind = choose(6 if depth < 4 else 4)
    if kind < 2:
        return NUMBERS[choose(len(NUMBERS))]
    if kind == 2:
        return (None, True, False)[choose(3)]
    if kind == 3:
        return WORDS[choose(len(WORDS))]
    inner = [value(choose, depth + 1) for _ in range(choose(4))]
    if kind == 4:
        return inner * (1, 1, 2, 50)[choose(4)] if depth == 0 else inner
    return {WORDS[choose(len(WORDS))]: one for one in inner}


@cache
def usual_configs() -> list[tuple[dict[str, Any], list[str]]]:
    """For each public model type, a config that is right, and every key that its table knows."""
    from lineage import catalog
    from lineage import config as configs
    from tests.published import usual

    return [
        (
            {"model_type": kind, **configs.write(dialect.config, usual(dialect))},
            sorted({"model_type", "architectures", *(key for e in dialect.config for key in e.spellings())}),
        )
        for kind, dialect in sorted(catalog.dialects().items())
    ]


def spoilt_config(choose: Choose) -> bytes:
    """A config of any type with a few of its keys changed."""
    settings, keys = usual_configs()[choose(len(usual_configs()))]
    changes = {keys[choose(len(keys))]: value(choose) for _ in range(1 + choose(4))}
    return json.dumps(settings | changes).encode()


def spoilt_header(choose: Choose) -> bytes:
    """A safetensors file of the right form whose entries are not all right."""
    tensor = {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}
    entries: dict[str, Any] = {}
    for _ in range(1 + choose(3)):
        entry: Any = {**tensor, "data_offsets": [8 * len(entries), 8 * len(entries) + 8]}
        if not choose(3):
            entry |= {("dtype", "shape", "data_offsets", "more")[choose(4)]: value(choose)}
        entries[("a", "__metadata__", *WORDS)[choose(len(WORDS) + 2)]] = value(choose) if not choose(9) else entry
    return handmade.framed(json.dumps(entries).encode(), bytes(8 * len(entries)))


def spoilt_index(choose: Choose) -> bytes:
    """An index that is right but for a few lines."""
    names = list(handmade.tensors())
    half = len(names) // 2
    places: dict[str, Any] = {n: f"model-{1 + i // half:05}-of-00002.safetensors" for i, n in enumerate(names)}
    files = (*sorted(set(places.values())), "../model.safetensors", "/etc/passwd", ".", "", "a\\b.safetensors", "x.bin")
    for _ in range(choose(3)):
        name = (*names, *WORDS)[choose(len(names) + len(WORDS))]
        places[name] = value(choose) if not choose(3) else files[choose(len(files))]
    whole = {"metadata": value(choose), "weight_map": value(choose) if not choose(9) else places}
    return json.dumps(whole).encode()


def spoilt_gguf(choose: Choose) -> bytes:
    """Keys of the right form and any value."""

    def text(said: str) -> bytes:
        return struct.pack("<Q", len(said.encode())) + said.encode()

    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    for _ in range(choose(5)):
        _, known = usual_configs()[choose(len(usual_configs()))]
        name, kind = known[choose(len(known))], choose(14)
        size = (0, 1, 4, 8, 12, 24)[choose(6)]
        keys.append(text(name) + struct.pack("<I", kind) + bytes(choose(256) for _ in range(size)))
    tensors = choose(3)
    raw = MAGIC + struct.pack("<QQ", tensors, len(keys)) + b"".join(keys)
    for _ in range(tensors):
        raw += text(WORDS[choose(len(WORDS))]) + struct.pack("<I", choose(6)) + struct.pack("<Q", choose(40))
        raw += struct.pack("<IQ", choose(32), 32 * choose(3))
    return raw + bytes(64)


def spoilt_record(choose: Choose) -> bytes:
    """A record whose spec is right but for one field, anywhere in it."""
    from lineage import catalog, graph
    from lineage.record import SCHEMA

    family = sorted(catalog.families())[choose(len(catalog.families()))]
    spec = graph.to_json(catalog.families()[family].function(**catalog.families()[family].tiny))
    place: Any = spec
    for _ in range(1 + choose(7)):
        parts = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not parts:
            break
        part = parts[choose(len(parts))]
        if not isinstance(place[part], dict | list) or not choose(5):
            place[part] = value(choose)
            break
        place = place[part]
    return json.dumps({"schema": SCHEMA, "family": family, "spec": spec}).encode()


SPOILT: Mapping[str, Callable[[Choose], bytes]] = {
    "header": spoilt_header, "index": spoilt_index, "config": spoilt_config, "gguf": spoilt_gguf,
    "record": spoilt_record,
}  # fmt: skip


def main() -> None:
    """One parser, until libFuzzer's -max_total_time; it stops at the first input that breaks a promise."""
    import atheris

    parser = sys.argv.pop(1)
    with atheris.instrument_imports(include=["lineage"]):
        import lineage.checkpoint.source
        import lineage.conversion
        import lineage.describe
        import lineage.exporting  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:

        def one(raw: bytes) -> None:
            data = atheris.FuzzedDataProvider(raw)
            made = raw[1:] if data.ConsumeBool() else SPOILT[parser](lambda most: data.ConsumeIntInRange(0, most - 1))
            survived(parser, made, Path(folder))

        atheris.Setup(sys.argv, one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
