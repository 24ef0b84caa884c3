"""The mixtures of experts on tiny spread checkpoints: as written by us, as saved by the reference, and aged."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lineage
from lineage import graph
from lineage.errors import ArchitectureError, TensorMismatch
from lineage.modules.experts import routed
from lineage.modules.losses import balance_loss
from lineage.parity.tiny import write_tiny
from tests.tiny import quiet

LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
    "short_mscale": 1.1, "long_mscale": 1.25, "original_max_position_embeddings": 40, "rope_theta": 10000.0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
OURS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2_moe with a step": ("qwen2_moe", {"bias": False, "normalise": True, "dense": None, "sparse_step": 2}, {}),
    "qwen3_moe with dense layers": ("qwen3_moe", {"normalise": False, "tied": True}, {}),
    "olmoe normalised": ("olmoe", {"clip": None, "normalise": True, "kv_heads": 6}, {}),
    "phimoe longrope": ("phimoe", {"window": 9, "head_bias": False}, {"rope_parameters": LONG}),
    "deepseek_v2 lite": ("deepseek_v2", {"query_latent": None, "method": "greedy", "mlp_bias": True, "bias": True}, {}),
    "deepseek_v3 halves": ("deepseek_v3", {"neighbours": False, "normalise": False, "dense_first": 0}, {}),
    "deepseek_v3 yarn": ("deepseek_v3", {}, {"rope_parameters": YARN, "max_position_embeddings": 256}),
    "glm4_moe bare": ("glm4_moe", {"head_norms": False, "bias": False, "normalise": False}, {}),
    "gpt_oss by a pattern": ("gpt_oss", {"pattern": ("full", "window", "window"), "bias": False}, {}),
    "llama4 without": (
        "llama4_text",
        {"head_norms": False, "tempered": False, "sparse": (0, 2), "top_k": 2, "period": 2, "chunk": None},
        {},
    ),
    "dbrx by its own theta": ("dbrx", {"clip": None, "normalise": False}, {"rope_parameters": None}),
}  # fmt: skip
SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = SIZES | {"num_key_value_heads": 2}
FEW = {"num_local_experts": 6, "num_experts_per_tok": 2}
LATENT = SIZES | {
    "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "first_k_dense_replace": 1, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 10, "n_group": 4, "topk_group": 2,
}  # fmt: skip
ENDS = {"pad_token_id": 1, "eos_token_id": 2}
THEIRS: dict[str, dict[str, Any]] = {
    "mixtral": GROUPED | FEW,
    "qwen2_moe": GROUPED
    | {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 2}
    | {"mlp_only_layers": [1]},
    "qwen3_moe": GROUPED
    | {"head_dim": 16, "moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "olmoe": GROUPED | ENDS | {"num_experts": 6, "num_experts_per_tok": 2, "clip_qkv": 1.0},
    "granitemoe": GROUPED
    | FEW
    | {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2},
    "phimoe": GROUPED | FEW | {"lm_head_bias": True, "attention_bias": True, "router_jitter_noise": 0.2},
    "deepseek_v2": LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
    "deepseek_v3": LATENT | {"rope_parameters": YARN, "max_position_embeddings": 256},
    "glm4_moe": GROUPED
    | {"head_dim": 16, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 2}
    | {"attention_bias": True, "use_qk_norm": True},
    "gpt_oss": GROUPED | FEW | {"head_dim": 16, "sliding_window": 4, "swiglu_limit": 0.9},
    "llama4_text": GROUPED
    | {"head_dim": 16, "intermediate_size_mlp": 40, "num_local_experts": 4, "interleave_moe_layer_step": 2}
    | {"num_hidden_layers": 4, "attention_chunk_size": 5, "floor_scale": 16},
    "dbrx": {
        "vocab_size": 97, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
        "attn_config": {"clip_qkv": 0.8, "kv_n_heads": 2, "rope_theta": 500000.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
}  # fmt: skip
FAULTY = {"phimoe longrope": "short calls", "dbrx by its own theta": "rope_parameters", "dbrx": "rope_parameters"}


def check(report: Any, faults: str | None) -> None:
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= LEVELS
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12
    assert any(figure["positions"] >= 256 for figure in report.level("fp64").figures), "past every window and length"
    assert "router" in {node["ours"].rpartition(".")[2] for node in report.nodes}
    said = " ".join(report.faults)
    assert faults in said if faults else not said


@pytest.mark.parametrize("name", OURS)
def test_every_level_holds(name: str, tmp_path: Path) -> None:
    kind, arguments, keys = OURS[name]
    path = write_tiny(kind, tmp_path / "source", **arguments) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    check(lineage.convert(str(tmp_path / "source"), tmp_path / "out").report, FAULTY.get(name))


def made(kind: str) -> nn.Module:
    """The reference's own model with spread weights."""
    config = transformers.CONFIG_MAPPING[kind](**THEIRS[kind])
    with quiet():
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(3)
    for name, value in model.state_dict().items():
        value.copy_(_spread(name, torch.randn(value.shape, generator=generator)))
    return model


def _spread(name: str, noise: Tensor) -> Tensor:
    if noise.dim() == 1:
        return 1 + 0.3 * noise if name.endswith("weight") else 0.3 * noise
    if "bias" in name or "embed" in name or "wte" in name:
        return (0.3 if "bias" in name else 1.0) * noise
    return noise * 1.5 / math.sqrt(min(noise.shape[-2:]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each type as the reference saves it; made once."""

    def place(kind: str) -> Path:
        directory = tmp_path_factory.getbasetemp() / f"saved-{kind}"
        if not directory.exists():
            with quiet():
                made(kind).save_pretrained(directory)
        return directory

    return place


def aged(source: Path, place: Path) -> Path:
    """Without the prefix, with the keys of other years, with buffers that old versions kept."""
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    base = {"dbrx": "transformer.", "llama4_text": "none."}.get(config["model_type"], "model.")
    tensors = {name.removeprefix(base): value for name, value in tensors.items()}
    if config["model_type"] != "dbrx":
        first = "" if "embed_tokens.weight" in tensors else "model."
        tensors[first + "layers.0.self_attn.rotary_emb.inv_freq"] = torch.rand(4)
        rotary = config.pop("rope_parameters")
        config["rope_theta"] = rotary.pop("rope_theta")
        config["rope_scaling"] = None if rotary["rope_type"] == "default" else rotary
    config |= {"torch_dtype": config.pop("dtype"), "transformers_version": "4.40.0", "_name_or_path": "x/y"}
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


@pytest.mark.parametrize("kind", THEIRS)
def test_aged_files_of_the_reference_pass(kind: str, saved: Any, tmp_path: Path) -> None:
    native = lineage.convert(str(saved(kind)), tmp_path / "native", verify=False)
    old = lineage.convert(str(aged(saved(kind), tmp_path / "aged")), tmp_path / "out")
    check(old.report, FAULTY.get(kind))
    assert old.checkpoint.plan.model == native.checkpoint.plan.model
    core = lineage.verify(tmp_path / "native", only=["static", "bytes", "reference", "fp64"])
    assert core.passed, "\n".join(core.lines())


def written(kind: str, place: Path, **keys: Any) -> Path:
    path = write_tiny(kind, place) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return place


def refusal(place: Path, error: type[Exception] = ArchitectureError) -> str:
    with pytest.raises(error) as caught:
        lineage.convert(str(place), place.parent / "out", verify=False)
    assert not (place.parent / "out").exists()
    return "\n".join([caught.value.message, *caught.value.facts])


@pytest.mark.parametrize(
    ("kind", "keys", "part"),
    [
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen2_moe", {"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("olmoe", {"head_dim": 8}, "head_dim"),
        ("olmoe", {"clip_qkv": 0}, "clip_qkv"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok"),
        ("phimoe", {"rope_parameters": {k: v for k, v in LONG.items() if k != "long_mscale"}}, "long_mscale"),
        ("phimoe", {"rope_parameters": YARN}, "yarn"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek_v2", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v3", {"n_group": 3}, "groups"),
        ("glm4_moe", {"topk_group": 3, "n_group": 2}, "groups"),
        ("gpt_oss", {"layer_types": ["sliding_attention"]}, "layer"),
        ("gpt_oss", {"sliding_window": None}, "sliding_window"),
        ("granitemoe", {"logits_scaling": 0}, "logits_scaling"),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "layers"),
        ("llama4_text", {"moe_layers": "all"}, "moe_layers"),
        ("dbrx", {"attn_config": {"kv_n_heads": 2, "twist": 3}}, "twist"),
        ("dbrx", {"attn_config": {"rope_theta": -1}}, "rope_theta"),
        ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 2}}, "moe_normalize_expert_weights"),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "glu"}}}, "name"),
        ("dbrx", {"ffn_config": 3}, "ffn_config"),
    ],
)  # fmt: skip
def test_refused_with_the_key_named(kind: str, keys: dict[str, Any], part: str, tmp_path: Path) -> None:
    assert part in refusal(written(kind, tmp_path / "in", **keys))


def rewritten(place: Path, **changes: Any) -> Path:
    """A checkpoint whose names are changed: old -> new, or None for a tensor that is left out."""
    file = place / "model.safetensors"
    tensors = load_file(file)
    for old, new in changes["names"].items():
        value = tensors.pop(old)
        if new is not None:
            tensors[new] = value
    save_file(tensors | changes.get("more", {}), file, metadata={"format": "pt"})
    return place


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "phimoe"])
@pytest.mark.parametrize("number", [7, None], ids=["renumbered", "missing"])
def test_an_expert_that_is_not_there_is_named(kind: str, number: int | None, tmp_path: Path) -> None:
    source = written(kind, tmp_path / "in")
    name = next(n for n in load_file(source / "model.safetensors") if ".experts.2." in n)
    count = 9
    other = None if number is None else name.replace("experts.2.", f"experts.{count}.")
    said = refusal(rewritten(source, names={name: other}), TensorMismatch)
    assert f"missing     {name}" in said
    assert other is None or f"unexpected  {other}" in said


def predicting(place: Path) -> dict[str, Tensor]:
    """One layer more, as DeepSeek-V3 has it for further tokens."""
    tensors = load_file(place / "model.safetensors")
    more = {n.replace("layers.2.", "layers.3."): v.clone() for n, v in tensors.items() if "layers.2." in n}
    return more | {f"model.layers.3.{x}.weight": torch.rand(24) for x in ("enorm", "hnorm", "shared_head.norm")}


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe"])
def test_layers_that_predict_further_tokens_are_dropped_for_a_reason(kind: str, tmp_path: Path) -> None:
    source = written(kind, tmp_path / "in")
    more = predicting(source)
    said = refusal(rewritten(source, names={}, more=more), TensorMismatch)
    assert "unexpected  model.layers.3.enorm.weight" in said, "a layer too many, and no sign of what it is"
    joined = {"model.layers.3.eh_proj.weight": torch.rand(24, 48)}
    done = lineage.convert(str(rewritten(source, names={}, more=joined)), tmp_path / "out", verify=False)
    assert {drop["name"] for drop in done.manifest["plan"]["dropped"]} == {*more, *joined}
    assert all("further tokens" in drop["why"] for drop in done.manifest["plan"]["dropped"])


def test_pictures_are_refused(tmp_path: Path) -> None:
    source = written("llama4_text", tmp_path / "in")
    more = {"vision_model.class_embedding": torch.rand(8)}
    assert "vision_model.class_embedding" in refusal(rewritten(source, names={}, more=more), TensorMismatch)


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "granitemoe", "phimoe", "deepseek_v3"])
def test_files_in_the_names_of_memory_hold_the_same_model(kind: str, saved: Any, tmp_path: Path) -> None:
    usual = lineage.from_pretrained(saved(kind))
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "config.json").write_text((saved(kind) / "config.json").read_text())
    state = {name: value.contiguous() for name, value in made(kind).state_dict().items()}
    save_file(state, tmp_path / "fused" / "model.safetensors", metadata={"format": "pt"})
    fused = lineage.from_pretrained(tmp_path / "fused")
    assert fused.spec == usual.spec
    assert all(torch.equal(value, fused.state_dict()[name]) for name, value in usual.state_dict().items())
    only = ["static", "bytes", "reference", "fp64"]
    assert lineage.verify(tmp_path / "fused", only=only).passed


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("padded", [False, True])
def test_balance_loss_is_the_references(kind: str, padded: bool, saved: Any) -> None:
    ours, theirs = lineage.from_pretrained(saved(kind)), made(kind)
    ids_BT = torch.randint(0, 97, (3, 20), generator=torch.Generator().manual_seed(1))
    mask_BT = torch.ones_like(ids_BT)
    if padded:
        mask_BT[0, :6], mask_BT[1, 15:] = 0, 0
    with routed(ours) as logits:
        ours(ids_BT, attention_mask=mask_BT)
    mine = balance_loss(logits, theirs.config.num_experts_per_tok, mask_BT if padded else None)
    its = theirs(ids_BT, attention_mask=mask_BT, output_router_logits=True).aux_loss
    assert mine.item() == pytest.approx(its.item(), rel=1e-6)
    mine.backward()
    its.backward()
    router, gate = ours.blocks[0].mlp.body.router.weight.grad, theirs.model.layers[0].mlp.gate.weight.grad
    assert torch.allclose(router, gate, rtol=1e-4, atol=1e-7)
    assert gate.abs().max() > 1e-4


def test_balance_loss_of_even_loads_is_the_number_chosen() -> None:
    assert balance_loss([torch.zeros(12, 4), torch.zeros(12, 4)], 2).item() == pytest.approx(2.0)


PLANTED = {
    "expert order": ("mixtral", "mlp.body", lambda m: m.up.data.copy_(m.up.data.flip(0))),
    "not normalised": ("mixtral", "mlp.body.router", lambda m: _vary(m, normalise="none")),
    "shared gate open": ("qwen2_moe", "mlp.body.shared_gate", lambda m: m.shared_gate.weight.data.zero_()),
    "shared act": ("qwen2_moe", "mlp.body.shared.act", lambda m: setattr(m.shared.act, "function", torch.tanh)),
    "one norm a head": ("olmoe", "attention.body.query_norm", lambda m: m.query_norm.weight.data.mul_(1.01)),
    "clip lost": ("olmoe", "attention.body.product", lambda m: _vary(m.product, clip=None)),
    "branch not scaled": ("granitemoe", "mlp", lambda m: setattr(m, "scale", 0.31)),
    "gates hotter": ("granitemoe", "mlp.body.router", lambda m: _vary(m, normalise="sigmoid")),
    "jitter": ("phimoe", "mlp.body.router", lambda m: _vary(m, jitter=0.001)),
    "correction lost": ("deepseek_v3", "mlp.body.router", lambda m: m.correction.data.zero_()),
    "latent eps": ("deepseek_v3", "attention.body.latent_norm", lambda m: m.latent_norm.weight.data.mul_(1.001)),
    "scores not hot": ("deepseek_v3", "attention.body.product", lambda m: _vary_inner(m, scale=0.2)),
    "groups": ("deepseek_v2", "mlp.body.router", lambda m: _vary(m, groups=None)),
    "scale": ("glm4_moe", "mlp.body.router", lambda m: _vary(m, scale=1.5)),
    "sinks lost": ("gpt_oss", "attention.body.product", lambda m: m.sinks.data.fill_(-50.0)),
    "limit": ("gpt_oss", "mlp.body", lambda m: _clamp(m, 0.7)),
    "late weights": ("llama4_text", "mlp.body", lambda m: _vary(m, early=False)),
    "no shared one": ("llama4_text", "mlp.body.shared.down", lambda m: m.shared.down.weight.data.zero_()),
    "dbrx clip": ("dbrx", "attention.body.product", lambda m: _vary(m.product, clip=0.7)),
    "dbrx router": ("dbrx", "mlp.body.router", lambda m: m.weight.data.mul_(1.001)),
}  # fmt: skip


def _vary(module: Any, **fields: Any) -> None:
    from dataclasses import replace

    module.spec = replace(module.spec, **fields)


def _vary_inner(module: Any, **fields: Any) -> None:
    from dataclasses import replace

    module.product.inner = replace(module.product.inner, **fields)


def _clamp(module: Any, limit: float) -> None:
    from dataclasses import replace

    _vary(module, clamp=replace(module.spec.clamp, limit=limit))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_named(name: str, tmp_path: Path) -> None:
    kind, path, plant = PLANTED[name]
    lineage.convert(str(write_tiny(kind, tmp_path / "in")), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    last = len(model.blocks) - 1
    where = path if path in ("mlp", "mlp.body.router") else ".".join(path.split(".")[:2])
    plant(model.get_submodule(f"blocks.{last}.{where}"))
    report = lineage.verify(model, only=["replay"])
    assert not report.passed
    assert {node["ours"] for node in report.guilty} == {f"blocks.{last}.{path}"}, "\n".join(report.lines())


@pytest.mark.parametrize(
    ("size", "billions"),
    [
        ("qwen1.5-moe-a2.7b", 14.32), ("qwen3_moe", 30.53), ("olmoe", 6.92), ("phi-3.5-moe", 41.87),
        ("deepseek-v2-lite", 15.71), ("deepseek_v2", 235.74), ("deepseek_v3", 671.03), ("gpt-oss-20b", 20.91),
        ("gpt-oss-120b", 116.83), ("llama-4-scout", 107.77), ("dbrx", 131.60), ("granite-3.0-1b-a400m", 1.33),
    ],
)  # fmt: skip
def test_counts_of_the_literature(size: str, billions: float) -> None:
    assert graph.parameters(lineage.spec(size)) / 1e9 == pytest.approx(billions, abs=0.006)
