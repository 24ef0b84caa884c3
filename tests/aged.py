"""Copies of a tiny checkpoint as the hub has them: other prefixes, old names, buffers, duplicates, old configs, other
containers. None of it changes a number that the model uses.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests import tiny
from tests.tiny import Case

SHARDS = 3


@dataclass
class Draft:
    """A checkpoint that is being aged."""

    case: Case
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def prefix(self) -> str:
        return PREFIXES[self.case.model_type]


PREFIXES = {
    "gpt2": "transformer.", "openai-gpt": "transformer.", "bert": "bert.", "roberta": "roberta.",
    "xlm-roberta": "roberta.", "distilbert": "distilbert.",
}  # fmt: skip
WORDS = "embeddings.word_embeddings.weight"
COPIES = {  # a tensor that is stored a second time -> what it repeats, without the prefix
    "gpt2": {"lm_head.weight": "wte.weight"},
    "openai-gpt": {"lm_head.weight": "tokens_embed.weight"},
    "bert": {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    "roberta": {"lm_head.decoder.weight": WORDS, "lm_head.decoder.bias": "lm_head.bias"},
    "xlm-roberta": {"lm_head.decoder.weight": WORDS, "lm_head.decoder.bias": "lm_head.bias"},
    "distilbert": {"vocab_projector.weight": WORDS},
}
DECODERS = {"gpt2", "openai-gpt"}
OLD_KEYS = {  # keys of old configs: some that today's class knows, some that nobody reads
    "gpt2": {"n_ctx": 160, "gradient_checkpointing": False, "task_specific_params": {"text-generation": {}}},
    "openai-gpt": {"n_ctx": 160, "n_special": 0, "predict_special_tokens": True},
    "bert": {"position_embedding_type": "absolute", "gradient_checkpointing": False, "directionality": "bidi"},
    "roberta": {"position_embedding_type": "absolute", "output_past": True},
    "xlm-roberta": {"position_embedding_type": "absolute", "output_past": True},
    "distilbert": {"sinusoidal_pos_embds": False, "tie_weights_": True, "pruned_heads": {}, "torchscript": False},
}
UNREAD = {"directionality", "output_past", "pruned_heads", "torchscript", "use_bfloat16"}
ALIASES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings", "dim": "hidden_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}  # fmt: skip


def without_prefix(draft: Draft) -> None:
    draft.tensors = {name.removeprefix(draft.prefix): tensor for name, tensor in draft.tensors.items()}


def with_prefix(draft: Draft) -> None:
    draft.tensors = {draft.prefix + name: tensor for name, tensor in draft.tensors.items()}


def other_prefix(draft: Draft) -> None:
    """An encoder cut out of a whole model, or a whole model named as an encoder is."""
    (with_prefix if is_encoder(draft.case) else without_prefix)(draft)


def old_norms(draft: Draft) -> None:
    """TensorFlow's names of a norm's weight and bias."""
    spellings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in spellings.items():
        draft.tensors = {name.replace(new, old): tensor for name, tensor in draft.tensors.items()}


def buffers(mask: torch.dtype) -> Callable[[Draft], None]:
    """What old versions kept beside the parameters. mask: the type of the causal triangle."""

    def add(draft: Draft) -> None:
        length = draft.case.config.max_position_embeddings
        base = draft.prefix if any(name.startswith(draft.prefix) for name in draft.tensors) else ""
        if draft.case.model_type not in DECODERS:
            draft.tensors[f"{base}embeddings.position_ids"] = torch.arange(length)[None]
            return
        for layer in range(draft.case.config.num_hidden_layers):
            triangle = torch.ones(length, length).tril().to(mask)[None, None]
            draft.tensors[f"{base}h.{layer}.attn.bias"] = triangle
            if draft.case.model_type == "gpt2":
                draft.tensors[f"{base}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    return add


def copies(draft: Draft) -> None:
    """The tied head (and its bias) stored a second time, as pickles did."""
    if "logits" not in draft.case.outputs:
        return
    for name, of in COPIES[draft.case.model_type].items():
        original = next((n for n in (of, draft.prefix + of) if n in draft.tensors), None)
        if original and name not in draft.tensors:
            draft.tensors[name] = draft.tensors[original].clone()


def old_config(draft: Draft) -> None:
    """Only what differs from the class's defaults, and keys of other years."""
    usual = type(draft.case.config)().to_dict()
    kept = {key: value for key, value in draft.config.items() if key == "architectures" or value != usual.get(key)}
    old = {"model_type": draft.case.model_type, "torch_dtype": "float32", "transformers_version": "4.5.1"}
    draft.config = {**kept, **old, "_name_or_path": "checkpoints/step-1000", **OLD_KEYS[draft.case.model_type]}
    del draft.config["dtype"]


def aliases(draft: Draft) -> None:
    """The config's sizes by the names that all models share."""
    draft.config = {ALIASES.get(key, key): value for key, value in draft.config.items()}


def half(draft: Draft) -> None:
    draft.tensors = {name: tensor.half() for name, tensor in draft.tensors.items()}
    draft.config["torch_dtype"] = draft.config.pop("dtype").replace("32", "16")


def pooler(draft: Draft) -> None:
    """A pooler that the masked-token head does not use: roberta-base has one."""
    width = draft.case.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    draft.tensors[f"{draft.prefix}pooler.dense.weight"] = torch.randn(width, width, generator=generator)
    draft.tensors[f"{draft.prefix}pooler.dense.bias"] = torch.randn(width, generator=generator)


def is_encoder(case: Case) -> bool:
    return not case.outputs.keys() & {"logits", "next_sentence", "scores"}


def is_tied(case: Case) -> bool:
    return case.options.get("tie_word_embeddings", True)


def is_bert(case: Case) -> bool:
    return case.model_type not in DECODERS


@dataclass(frozen=True)
class Age:
    """edits: what is changed. container: "safetensors" or "bin". fits: the cases in which it is found."""

    edits: tuple[Callable[[Draft], None], ...] = ()
    container: str = "safetensors"
    sharded: bool = False
    fits: Callable[[Case], bool] = lambda case: True


AGES: Mapping[str, Age] = {
    "hub": Age((other_prefix, old_norms, buffers(torch.float32), copies, old_config)),
    "prefix": Age((other_prefix,)),
    "norms": Age((old_norms,), fits=is_bert),
    "buffers": Age((buffers(torch.float32),)),
    "buffers-bool": Age((buffers(torch.bool),), fits=lambda case: not is_bert(case)),
    "buffers-uint8": Age((buffers(torch.uint8),), fits=lambda case: not is_bert(case)),
    "copies": Age((copies,), fits=lambda case: "logits" in case.outputs and is_tied(case)),
    "config": Age((old_config,)),
    "aliases": Age((aliases,), fits=lambda case: case.model_type in DECODERS | {"distilbert"}),
    "half": Age((half,)),
    "sharded": Age((), sharded=True),
    "bin": Age((copies, buffers(torch.uint8)), "bin"),
    "bin-sharded": Age((), "bin", sharded=True),
    "pooler": Age((pooler,), fits=lambda case: case.name in ("roberta-masked", "xlm-roberta-masked")),
}


def aged(case: Case, age: str, root: Path) -> Path:
    """The case at this age; made once."""
    place = root / f"{case.name}@{age}"
    if not place.exists():
        source = tiny.native(case, root)
        config = json.loads((source / "config.json").read_text())
        draft = Draft(case, config, load_file(source / "model.safetensors"))
        before = (dict(config), list(draft.tensors), [t.dtype for t in draft.tensors.values()])
        for edit in AGES[age].edits:
            edit(draft)
        after = (draft.config, list(draft.tensors), [t.dtype for t in draft.tensors.values()])
        assert before != after or not AGES[age].edits, f"{place.name}: nothing was aged"
        write(draft, place, AGES[age])
    return place


def write(draft: Draft, place: Path, age: Age) -> Path:
    """Save a draft in an age's container."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(draft.config))
    _write(draft.tensors, place, age)
    return place


def _write(tensors: dict[str, Tensor], place: Path, age: Age) -> None:
    stem, suffix = ("model", ".safetensors") if age.container == "safetensors" else ("pytorch_model", ".bin")
    names = sorted(tensors)
    files = [f"{stem}-{n + 1:05}-of-{SHARDS:05}{suffix}" for n in range(SHARDS)] if age.sharded else [stem + suffix]
    places = {name: files[n % len(files)] for n, name in enumerate(names)}
    for file in files:
        part = {name: tensors[name].contiguous() for name in names if places[name] == file}
        if age.container == "safetensors":
            save_file(part, place / file, metadata={"format": "pt"})
        else:
            torch.save(part, place / file)
    if age.sharded:
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (place / f"{stem}{suffix}.index.json").write_text(json.dumps(index))


def stored(place: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, read by the libraries that wrote it."""
    found: dict[str, Tensor] = {}
    for path in sorted(place.glob("model*.safetensors")):
        found |= load_file(path)
    for path in sorted(place.glob("pytorch_model*.bin")):
        found |= torch.load(path, map_location="cpu", weights_only=True)
    return found
