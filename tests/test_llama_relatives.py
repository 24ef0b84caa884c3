"""Llama's relatives on tiny spread checkpoints that the reference itself saved: options, windows and lengths passed,
copies as old as the hub's, planted bugs, and what is refused.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import lineage
from lineage import components as c
from lineage import graph
from lineage.errors import ArchitectureError, TensorMismatch
from lineage.parity.tiny import write_tiny
from tests.tiny import quiet

LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}
SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "num_key_value_heads": 2, "pad_token_id": 3}  # fmt: skip
WIDE = SIZES | {"head_dim": 16}
THREE, FOUR = {"num_hidden_layers": 3}, {"num_hidden_layers": 4}
LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
MULTIPLIED = {"embedding_multiplier": 3.0, "logits_scaling": 3.0, "residual_multiplier": 0.3,
              "attention_multiplier": 0.2}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 8.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", SIZES | TIED),
    "qwen2 windows": ("qwen2", SIZES | THREE | {"use_sliding_window": True, "sliding_window": 4,
                                                "max_window_layers": 1}),
    "qwen3 pattern": ("qwen3", WIDE | THREE | TIED | {
        "use_sliding_window": True, "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gemma3": ("gemma3_text", WIDE | FOUR | {"sliding_window": 4, "query_pre_attn_scalar": 24,
                                             "sliding_window_pattern": 3, "rope_scaling": LINEAR}),
    "gemma3 capped": ("gemma3_text", WIDE | UNTIED | {
        "sliding_window": 9, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0, "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention"], "rms_norm_eps": 1e-5,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3e5},
                            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}}}),
    "phi3 windows": ("phi3", SIZES | {"sliding_window": 5, "partial_rotary_factor": 0.5}),
    "phi3 longrope": ("phi3", SIZES | {"max_position_embeddings": 64, "original_max_position_embeddings": 16,
                                       "rope_scaling": LONG}),
    "phi3 longrope, soon long": ("phi3", SIZES | {"max_position_embeddings": 64, "rope_scaling": LONG | {"factor": 4.0},
                                                  "original_max_position_embeddings": 8}),
    "olmo": ("olmo", SIZES | {"clip_qkv": 0.8}),
    "olmo plain": ("olmo", SIZES | TIED | {"attention_bias": True, "num_key_value_heads": None}),
    "olmo2": ("olmo2", SIZES),
    "olmo2 with biases": ("olmo2", SIZES | TIED | {"attention_bias": True, "rms_norm_eps": 1e-6}),
    "granite": ("granite", SIZES | MULTIPLIED),
    "granite with biases": ("granite", SIZES | TIED | {"attention_bias": True, "mlp_bias": True}),
    "smollm3": ("smollm3", SIZES | FOUR),
    "smollm3 windows": ("smollm3", SIZES | FOUR | UNTIED | {"use_sliding_window": True, "sliding_window": 4,
                                                            "no_rope_layers": [1, 0, 0, 1, 1], "mlp_bias": True}),
    "starcoder2": ("starcoder2", SIZES | {"sliding_window": 4}),
    "starcoder2 bare": ("starcoder2", SIZES | UNTIED | {"use_bias": False, "norm_epsilon": 1e-6}),
    "stablelm": ("stablelm", SIZES | {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm 12b": ("stablelm", SIZES | TIED | {"qk_layernorm": True, "use_parallel_residual": True}),
    "stablelm normed": ("stablelm", SIZES | {"qk_layernorm": True, "layer_norm_eps": 1e-3}),
    "cohere": ("cohere", SIZES),
    "cohere plus": ("cohere", SIZES | {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.8}),
    "glm": ("glm", WIDE),
    "glm whole": ("glm", WIDE | TIED | {"attention_bias": False, "partial_rotary_factor": 1.0}),
    "internlm3": ("internlm3", WIDE | {"qkv_bias": True, "bias": True}),
}  # fmt: skip


def saved(name: str, place: Path) -> Path:
    """The case as today's transformers saves it, spread: what is tied stays so, and Gemma's norms stand around 0."""
    kind, options = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    with quiet():
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{"eos_token_id": None, **options}))
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = "norm" in path and path.endswith("weight")
            scale = 0.3 if norm or parameter.dim() == 1 else 1 if "embed" in path else 1.5 / parameter.shape[-1] ** 0.5
            parameter.data = scale * noise + (norm and "gemma" not in kind)
        model.save_pretrained(place)
    return place


@pytest.mark.parametrize("name", CASES)
def test_every_level_holds(name: str, tmp_path: Path) -> None:
    report = lineage.convert(str(saved(name, tmp_path / "source")), tmp_path / "out").report
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= LEVELS
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12
    assert {figure["probe"] for figure in report.level("fp64").figures} == {"short", "long", "full", "padded"}
    assert any(figure["positions"] >= 256 for figure in report.level("fp64").figures), "past every window and length"
    assert sum(figure["bit_exact"] for figure in report.level("bf16").figures) >= 2
    assert not report.faults
    blocks = {node["ours"].partition("blocks.1.")[2] for node in report.nodes}
    assert {"attention.body", "attention.body.product", "mlp.body", "mlp.body.act", "mlp.body.down"} <= blocks
    spec = lineage.from_pretrained(tmp_path / "out").spec
    if spec.blocks[1].attention.body.query_norm:
        assert {"attention.body.query_norm", "attention.body.key_norm"} <= blocks


OLD = {  # a case -> keys as the hub has them, in place of those that are gone
    "qwen2 windows": ({"rope_theta": 1e4, "max_window_layers": 1}, ["rope_parameters", "layer_types"]),
    "gemma3": ({"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": LINEAR, "sliding_window_pattern": 3},
               ["rope_parameters", "layer_types", "_sliding_window_pattern"]),
    "phi3 longrope": ({"rope_theta": 1e4, "rope_scaling": LONG, "embd_pdrop": 0.0}, ["rope_parameters"]),
    "olmo plain": ({"rope_theta": 1e4}, ["rope_parameters", "clip_qkv"]),
    "granite": ({"rope_theta": 1e4, "rope_scaling": None}, ["rope_parameters", "head_dim"]),
    "smollm3": ({"rope_theta": 2e6, "pretraining_tp": 2}, ["rope_parameters", "no_rope_layers", "layer_types"]),
    "starcoder2": ({"rope_theta": 1e4, "mlp_type": "default"}, ["rope_parameters"]),
    "stablelm 12b": ({"rope_theta": 1e4, "partial_rotary_factor": 0.25}, ["rope_parameters"]),
    "cohere": ({"rope_theta": 5e5, "use_qk_norm": False}, ["rope_parameters"]),
    "glm": ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, ["rope_parameters"]),
    "internlm3": ({"rope_theta": 1e4, "rope_scaling": None}, ["rope_parameters", "attention_bias", "mlp_bias"]),
}  # fmt: skip
OLD["internlm3"][0].update({"qkv_bias": True, "bias": True})


def aged(place: Path, name: str) -> Path:
    """Old keys, no prefix, rotary buffers, and a tied head that stands twice; of OLMo a pickle."""
    new, gone = OLD[name]
    path = place / "config.json"
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in gone} | new))
    file = place / "model.safetensors"
    tensors = {key.removeprefix("model."): value for key, value in load_file(file).items()}
    for layer in range(config["num_hidden_layers"]):
        tensors[f"layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    if config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"].clone()
    file.unlink()
    if name == "olmo plain":
        torch.save(tensors, place / "pytorch_model.bin")
    else:
        save_file(tensors, file, metadata={"format": "pt"})
    return place


@pytest.mark.parametrize("name", OLD)
def test_aged_copy_is_the_same_model(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path / "source")
    native = lineage.from_pretrained(source)
    done = lineage.convert(str(aged(source, name)), tmp_path / "out", verify=False, allow_pickle=True)
    report = lineage.verify(tmp_path / "out", only=["static", "bytes", "reference", "replay", "fp64", "training"])
    assert report.passed, "\n".join(report.lines())
    model = lineage.from_pretrained(tmp_path / "out")
    assert model.spec == native.spec
    assert all(torch.equal(value, native.state_dict()[key]) for key, value in model.state_dict().items())
    assert done.manifest["plan"]["dropped"]


def respec(**changes: Any) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        module.spec = replace(module.spec, **changes)

    return change


def turn(**changes: Any) -> Callable[[Any], None]:
    """Other rotary positions in an attention product."""
    return lambda product: respec(rotary=replace(product.spec.rotary, **changes))(product)


def exact_gelu(act: Any) -> None:
    act.function = nn.functional.gelu


def heads_exchanged(norm: Any) -> None:
    norm.weight.data = norm.weight.data.flip(0)


def gates_exchanged(body: Any) -> None:
    body.gate.weight, body.up.weight = body.up.weight, body.gate.weight


def unscaled(part: Any) -> None:
    part.scale = 1.0


LAST = "blocks.1.attention.body."
GATES = {"blocks.1.mlp.body.gate", "blocks.1.mlp.body.up"}
BUGS: list[tuple[str, str, Callable[[Any], None], set[str]]] = [  # case, part, what is done to it, who must be guilty
    ("qwen2 windows", LAST + "product", respec(mask=c.Causal(window=5)), {LAST + "product"}),
    ("qwen3 pattern", LAST + "key_norm", respec(eps=1e-3), {LAST + "key_norm"}),
    ("gemma3", "blocks.2.attention.body.product", turn(theta=1e4), {"blocks.2.attention.body.product"}),
    ("gemma3", LAST + "query_norm", respec(plus_one=False), {LAST + "query_norm"}),
    ("phi3 longrope", LAST + "product", turn(scaling=None), {LAST + "product"}),
    ("phi3 windows", "blocks.1.mlp.body", gates_exchanged, GATES),
    ("olmo", LAST + "product", respec(clip=0.9), {LAST + "product"}),
    ("olmo plain", "blocks.1.mlp.norm_input", respec(eps=1e-4), {"blocks.1.mlp.norm_input"}),
    ("olmo2", "blocks.0.mlp.norm_branch", respec(eps=1e-4), {"blocks.0.mlp.norm_branch"}),
    ("granite", "blocks.1.attention", unscaled, {"blocks.1.attention"}),
    ("granite", "embed", respec(scale=2.9), {"embed"}),
    ("smollm3", "blocks.3.attention.body.product", respec(rotary=c.Rotary(theta=2e6, width=8)),
     {"blocks.3.attention.body.product"}),
    ("starcoder2", "blocks.1.mlp.body.act", exact_gelu, {"blocks.1.mlp.body.act"}),
    ("stablelm 12b", LAST + "query_norm", heads_exchanged, {LAST + "query_norm"}),
    ("stablelm", LAST + "product", turn(width=2), {LAST + "product"}),
    ("cohere", LAST + "product", turn(pairing="halves"), {LAST + "product"}),
    ("cohere plus", "head", unscaled, {"head"}),
    ("glm", LAST + "product", turn(pairing="halves"), {LAST + "product"}),
    ("internlm3", LAST + "product", turn(theta=9e3), {LAST + "product"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "plant", "guilty"), BUGS, ids=[f"{name}-{path}" for name, path, *_ in BUGS])
def test_planted_bug_is_named(
    name: str, path: str, plant: Callable[[Any], None], guilty: set[str], tmp_path: Path
) -> None:
    lineage.convert(str(saved(name, tmp_path / "source")), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    plant(model.get_submodule(path))
    assert {node["ours"] for node in lineage.verify(model, only=["replay"]).guilty} == guilty


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention"] * 2}, "layer_types"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
    ("qwen3", {"use_sliding_window": 1}, "use_sliding_window"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "full_attention"),
    ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 8.0}}, "type"),
    ("gemma3_text", {"rope_scaling": 8.0}, "rope_scaling"),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_type": "spiral"}}}, "sliding_attention"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3_text", {"sliding_window": None}, "sliding_window"),
    ("gemma3_text", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
    ("phi3", {"rope_scaling": LONG | {"short_factor": [1.0]}}, "short"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4}}, "long_factor"),
    ("olmo", {"clip_qkv": 0}, "clip_qkv"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ("smollm3", {"no_rope_layers": [1, 1, 2, 1]}, "no_rope_layers"),
    ("smollm3", {"layer_types": ["sliding_attention"] * 4, "sliding_window": 4}, "layer_types"),
    ("starcoder2", {"num_key_value_heads": None}, "num_key_value_heads"),
    ("stablelm", {"head_dim": 16}, "head_dim"),
    ("stablelm", {"partial_rotary_factor": 1.5, "rope_parameters": None}, "partial_rotary_factor"),
    ("cohere", {"logit_scale": None}, "logit_scale"),
    ("glm", {"num_key_value_heads": None}, "num_key_value_heads"),
    ("internlm3", {"attention_bias": False, "qkv_bias": True}, "qkv_bias"),
]


@pytest.mark.parametrize(("kind", "keys", "part"), REFUSED)
def test_refused_with_the_key_named(kind: str, keys: dict[str, Any], part: str, tmp_path: Path) -> None:
    path = write_tiny(kind, tmp_path / "source") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(ArchitectureError) as refusal:
        lineage.convert(str(tmp_path / "source"), tmp_path / "out", verify=False)
    assert refusal.value.exit_code == 6
    assert part in " ".join([refusal.value.message, *refusal.value.facts])
    assert not (tmp_path / "out").exists()


def test_a_head_without_its_norm_is_refused(tmp_path: Path) -> None:
    file = write_tiny("stablelm", tmp_path / "source", head_norms=True) / "model.safetensors"
    gone = "model.layers.1.self_attn.q_layernorm.norms.3.weight"
    save_file({name: value for name, value in load_file(file).items() if name != gone}, file)
    with pytest.raises(TensorMismatch) as refusal:
        lineage.convert(str(tmp_path / "source"), tmp_path / "out", verify=False)
    assert any(fact.startswith(f"missing     {gone}") for fact in refusal.value.facts)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("gemma3-270m", 268_098_176),
        ("gemma3-1b", 999_885_952),
        ("olmo-1b", 1_176_764_416),
        ("olmo2", 7_298_617_344),
        ("granite-3.0-2b", 2_533_531_648),
        ("smollm3", 3_075_098_624),
        ("starcoder2-15b", 15_957_889_024),
        ("stablelm-2-1.6b", 1_644_515_328),
        ("cohere", 34_980_831_232),
        ("command-r-plus", 103_810_674_688),
        ("glm", 9_399_951_360),
    ],
)
def test_counts_of_the_literature(size: str, count: int) -> None:
    assert graph.parameters(lineage.spec(size)) == count
