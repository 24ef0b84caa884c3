"""The GPT line after GPT-2 on tiny spread checkpoints that the reference itself saved: every layout and option, aged
copies, planted bugs, and what is refused.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lineage
from lineage import components as c
from lineage import graph
from lineage.errors import ArchitectureError, TensorMismatch
from lineage.parity.blocks import verify_blocks
from lineage.parity.tiny import write_tiny
from tests.tiny import quiet

LEVELS = ("static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16")
GPTJ = {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 3, "rotary_dim": 8, "n_positions": 140}
NEO = {"vocab_size": 97, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "window_size": 4,
       "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 140}  # fmt: skip
OPT = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
       "max_position_embeddings": 140}  # fmt: skip
BLOOM = {"vocab_size": 97, "hidden_size": 36, "n_layer": 2, "n_head": 12}
SIZES = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
GROUPED = SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2}
RW = SIZES | {"num_attention_heads": 12, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
PHI = SIZES | {"intermediate_size": 40}
CODE = {"vocab_size": 97, "n_positions": 140, "n_embd": 36, "n_layer": 2, "n_head": 6}
MPT = {"vocab_size": 97, "d_model": 36, "n_layers": 2, "n_heads": 12}
NEOX = SIZES | {"intermediate_size": 40, "attention_bias": False, "hidden_act": "relu", "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0,
                                    "partial_rotary_factor": 0.5}}  # fmt: skip
MIXED = [[["local"], 1], [["global", "local"], 1]]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gptj": ("GPTJForCausalLM", GPTJ),
    "gptj tied": ("GPTJForCausalLM", GPTJ | {"n_inner": 37, "tie_word_embeddings": True, "n_positions": 40}),
    "gpt_neo": ("GPTNeoForCausalLM", NEO),
    "gpt_neo windows first": ("GPTNeoForCausalLM", NEO | {"attention_types": MIXED, "num_layers": 3, "window_size": 9,
                                                          "intermediate_size": 37, "tie_word_embeddings": False}),
    "opt": ("OPTForCausalLM", OPT),
    "opt-350m": ("OPTForCausalLM", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 20}),
    "opt narrow, untied": ("OPTForCausalLM", OPT | {"word_embed_proj_dim": 20, "tie_word_embeddings": False}),
    "opt bare": ("OPTForCausalLM", OPT | {"_remove_final_layer_norm": True, "pad_token_id": None}),
    "opt without bias": ("OPTForCausalLM", OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False,
                                                  "activation_function": "gelu"}),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom normed": ("BloomForCausalLM", BLOOM | {"apply_residual_connection_post_layernorm": True, "n_head": 4,
                                                  "tie_word_embeddings": False}),
    "falcon-7b": ("FalconForCausalLM", SIZES),
    "falcon-7b stretched": ("FalconForCausalLM", SIZES | {
        "max_position_embeddings": 60, "ffn_hidden_size": 37,
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}}),
    "falcon-40b": ("FalconForCausalLM", GROUPED),
    "falcon-11b": ("FalconForCausalLM", GROUPED | {"num_ln_in_parallel_attn": 1, "bias": True}),
    "falcon-rw": ("FalconForCausalLM", RW),
    "falcon in sequence": ("FalconForCausalLM", SIZES | {"parallel_attn": False, "tie_word_embeddings": False}),
    "phi": ("PhiForCausalLM", PHI | {"pad_token_id": 3}),
    "phi with norms on heads": ("PhiForCausalLM", PHI | {
        "qk_layernorm": True, "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25}}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", CODE),
    "gpt_bigcode head by head": ("GPTBigCodeForCausalLM", CODE | {"multi_query": False, "scale_attn_weights": False,
                                                                  "n_inner": 37, "tie_word_embeddings": False}),
    "mpt": ("MptForCausalLM", MPT),
    "mpt clipped": ("MptForCausalLM", MPT | {"attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.4}, "n_heads": 4,
                                             "tie_word_embeddings": False}),
    "gpt_neox with every option": ("GPTNeoXForCausalLM", NEOX),
}  # fmt: skip
PLAIN = (
    "gptj",
    "gpt_neo",
    "opt",
    "opt-350m",
    "bloom",
    "falcon-7b",
    "falcon-40b",
    "falcon-rw",
    "phi",
    "gpt_bigcode",
    "mpt",
)


def spread(model: nn.Module) -> None:
    """Weights by which every tensor shows, a shared one once (see `lineage.parity.tiny`)."""
    generator = torch.Generator().manual_seed(3)
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                noise = 0.3 * noise + (isinstance(module, nn.LayerNorm) and name == "weight")
            elif not isinstance(module, nn.Embedding):
                noise = 1.5 * noise / parameter.shape[-1] ** 0.5
            parameter.data.copy_(noise)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A case as the reference saves it; made once."""
    root = tmp_path_factory.mktemp("native")

    def make(name: str) -> Path:
        place = root / name
        if not place.exists():
            kind, options = CASES[name]
            reference = getattr(transformers, kind)
            with quiet():
                model = reference(reference.config_class(**options))
                spread(model)
                model.save_pretrained(place)
        return place

    return make


@pytest.mark.parametrize("name", CASES)
def test_every_level_holds(name: str, native: Callable[[str], Path], tmp_path: Path) -> None:
    report = lineage.convert(str(native(name)), tmp_path / "out").report
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= set(LEVELS)
    figures = report.level("fp64").figures
    assert max(figure["rel"] for figure in figures) <= 1e-12
    assert {figure["probe"] for figure in figures} >= {"short", "full", "padded"}
    limits = [CASES[name][1].get(key) for key in ("n_positions", "max_position_embeddings")]
    table = next((limit for limit in limits if limit and "stretched" not in name), 256)
    assert {figure["positions"] for figure in figures if figure["probe"] == "full"} == {table}, "past every window"
    assert all(figure["std"] > 0.05 for figure in figures), "nothing to compare"


@pytest.mark.parametrize("name", PLAIN)
def test_what_we_write_is_what_the_reference_reads(name: str, native: Callable[[str], Path], tmp_path: Path) -> None:
    """A tiny model of the same arguments in the layout that our rules say, with other weights."""
    done = lineage.convert(str(native(name)), tmp_path / "first", verify=False)
    kind = done.manifest["source"]["model_type"]
    arguments = {key: value for key, value in done.manifest["arguments"].items() if key != "scaling"}
    ours = write_tiny(kind, tmp_path / "ours", **arguments)
    names = [load_file(place / "model.safetensors").keys() for place in (ours, native(name))]
    assert names[0] == names[1]
    report = lineage.verify(ours, only=("static", "bytes", "reference", "replay", "fp64"))
    assert report.passed, "\n".join(report.lines())


Draft = tuple[dict[str, Any], dict[str, Tensor]]


def renamed(tensors: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new, 1) if name.startswith(old) else name: value for name, value in tensors.items()}


def mask_buffers(tensors: dict[str, Tensor], place: str, length: int, layers: int) -> dict[str, Tensor]:
    triangle = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    return {f"{place.format(i)}bias": triangle.clone() for i in range(layers)} | {
        f"{place.format(i)}masked_bias": torch.tensor(-1e9) for i in range(layers)
    }


def aged_gptj(config: dict[str, Any], tensors: dict[str, Tensor]) -> Draft:
    """As of 2021: buffers, names of the code it was trained with."""
    config = {**config, "rotary": True, "scale_attn_weights": True, "torch_dtype": "float32"}
    return config, renamed(tensors | mask_buffers(tensors, "transformer.h.{}.attn.", 140, 2), "transformer.", "")


def aged_gpt_neo(config: dict[str, Any], tensors: dict[str, Tensor]) -> Draft:
    """The pattern in both spellings, no prefix, buffers, a second copy of the tied head."""
    del config["attention_types"]
    config["attention_layers"] = ["global", "local", "global", "local"]
    head = {"lm_head.weight": tensors["transformer.wte.weight"].clone()}
    buffers = mask_buffers(tensors, "transformer.h.{}.attn.attention.", 140, 4)
    return config, renamed({**tensors, **head, **buffers}, "transformer.", "")


def aged_opt(config: dict[str, Any], tensors: dict[str, Tensor]) -> Draft:
    """The shorter prefix, which 6.7b and 350m have, and keys of 2022."""
    config |= {"activation_dropout": 0.0, "prefix": "</s>", "torch_dtype": "float16"}
    head = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"].clone()}
    return config, renamed(tensors, "model.", "") | head


def aged_bloom(config: dict[str, Any], tensors: dict[str, Tensor]) -> Draft:
    """The older names of the sizes, and what its training code left in the config; no prefix."""
    width, heads = config.pop("hidden_size"), config.pop("n_head")
    old = {"n_embed": width, "num_attention_heads": heads, "offset_alibi": 100, "seq_length": 2048, "n_inner": None}
    more = {"masked_softmax_fusion": True, "pretraining_tp": 4, "skip_bias_add": True, "unk_token_id": 0}
    return {**config, **old, **more}, renamed(tensors, "transformer.", "")


def aged_falcon(config: dict[str, Any], tensors: dict[str, Tensor]) -> Draft:
    """Rotary positions by their older keys, the width by its older name, code that is not run; a second head."""
    theta = config.pop("rope_parameters")["rope_theta"]
    old = {"rope_theta": theta, "rope_scaling": None, "n_embed": config.pop("hidden_size")}
    head = {"lm_head.weight": tensors["transformer.word_embeddings.weight"].clone()}
    old["auto_map"] = {"AutoModelForCausalLM": "modeling_falcon.FalconForCausalLM"}
    return {**config, **old, "apply_residual_connection_post_layernorm": False}, tensors | head


def aged_phi(config: dict[str, Any], tensors: dict[str, Tensor]) -> Draft:
    """Rotary positions by their older keys, frequencies as buffers."""
    del config["rope_parameters"]
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(2) for i in range(2)}
    return config | {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_scaling": None}, tensors | buffers


AGED: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], Draft]] = {
    "gptj": aged_gptj,
    "gpt_neo": aged_gpt_neo,
    "opt": aged_opt,
    "opt-350m": aged_opt,
    "bloom": aged_bloom,
    "falcon-7b": aged_falcon,
    "falcon-40b": aged_falcon,
    "falcon-rw": aged_falcon,
    "phi": aged_phi,
}


def write_aged(name: str, source: Path, place: Path, pickled: bool = False) -> Path:
    config = json.loads((source / "config.json").read_text())
    config, tensors = AGED[name](config, load_file(source / "model.safetensors"))
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, place / "pytorch_model.bin")
    else:
        save_file({key: value.contiguous() for key, value in tensors.items()}, place / "model.safetensors")
    return place


@pytest.mark.parametrize("name", AGED)
def test_aged_copy_is_the_same_model(name: str, native: Callable[[str], Path], tmp_path: Path) -> None:
    pickled = name == "opt-350m"
    old = write_aged(name, native(name), tmp_path / "aged", pickled)
    done = lineage.convert(str(old), tmp_path / "out", verify=False, allow_pickle=pickled)
    young, aged = lineage.from_pretrained(native(name)), lineage.from_pretrained(done.output)
    assert young.spec == aged.spec
    assert all(torch.equal(value, young.state_dict()[key]) for key, value in aged.state_dict().items())
    report = lineage.verify(done.output, only=("static", "bytes", "reference", "fp64"))
    assert report.passed, "\n".join(report.lines())


def test_reference_that_adds_alibi_twice_is_reported(native: Callable[[str], Path]) -> None:
    """Should a release mend it, this fails: then the converter's `Fault` is to go."""
    report = lineage.verify(native("falcon-rw"), only=("fp64", "fp32"))
    assert report.passed
    assert [note for note in report.notes if "adds ALiBi twice" in note and "sdpa" in note]
    assert len([fault for fault in report.faults if "eager and sdpa attention differ by" in fault]) == 4
    honest = lineage.verify(native("falcon-7b"), only=("fp64", "fp32"))
    assert honest.passed
    assert not honest.faults
    assert not honest.notes


@pytest.mark.parametrize("name", ["gptj", "opt-350m", "bloom", "falcon-rw"])
def test_blocks_one_by_one(name: str, native: Callable[[str], Path]) -> None:
    report = verify_blocks(native(name))
    assert report.passed, "\n".join(report.lines())


def respelt(path: str, **fields: Any) -> Callable[[Any], None]:
    """One component runs as if its spec said something else."""

    def plant(model: Any) -> None:
        module = model.get_submodule(path)
        module.spec = replace(module.spec, **fields)

    return plant


def turned_halves(model: Any) -> None:
    spec = model.blocks[0].attention.body.product.spec
    model.blocks[0].attention.body.product.spec = replace(spec, rotary=replace(spec.rotary, pairing="halves"))


def without_bias(path: str) -> Callable[[Any], None]:
    return lambda model: model.get_submodule(path).bias.data.zero_()


def permuted_heads(path: str, width: int) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        weight = model.get_submodule(path).weight.data
        weight.copy_(weight.unflatten(0, (-1, width)).flip(0).flatten(0, 1))

    return plant


def off_by_one(model: Any) -> None:
    model.embed.positions.weight.data.copy_(model.embed.positions.weight.data.roll(1, 0))


def scaled_alibi(model: Any) -> None:
    bias = model.blocks[1].attention.body.position_bias
    bias.spec = replace(bias.spec, scale=2.0 * bias.spec.scale)


def unrounded_alibi(model: Any) -> None:
    bias = model.blocks[0].attention.body.position_bias
    bias.spec = replace(bias.spec, rounded=False)


def exact_gelu(layer: int) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        model.blocks[layer].mlp.body.act.function = nn.functional.gelu

    return plant


def unnormed(model: Any) -> None:
    model.blocks[1].attention.normed = False


PRODUCT = "blocks.{}.attention.body.product"
BUGS: list[tuple[str, Callable[[Any], None], str]] = [
    ("gptj", turned_halves, PRODUCT.format(0)),
    ("gptj", without_bias("head"), "head"),
    ("gptj", respelt("blocks.1.norm_input", eps=1e-3), "blocks.1.norm_input"),
    ("gpt_neo", respelt(PRODUCT.format(1), mask=c.Causal(window=5)), PRODUCT.format(1)),
    ("gpt_neo", respelt(PRODUCT.format(2), scale=8**-0.5), PRODUCT.format(2)),
    ("opt", off_by_one, "embed.positions"),
    ("opt-350m", respelt("blocks.0.mlp.norm_sum", eps=1e-3), "blocks.0.mlp.norm_sum"),
    ("bloom", scaled_alibi, PRODUCT.format(1)),
    ("bloom", exact_gelu(1), "blocks.1.mlp.body.act"),
    ("bloom normed", unnormed, "blocks.1.attention"),
    ("falcon-40b", permuted_heads("blocks.0.attention.body.q", 8), "blocks.0.attention.body.q"),
    ("falcon-rw", unrounded_alibi, PRODUCT.format(0)),
    ("mpt", scaled_alibi, PRODUCT.format(1)),
    ("gpt_bigcode", permuted_heads("blocks.1.attention.body.q", 6), "blocks.1.attention.body.q"),
    ("phi", exact_gelu(0), "blocks.0.mlp.body.act"),
    (
        "phi with norms on heads",
        respelt("blocks.1.attention.body.key_norm", eps=1e-3),
        "blocks.1.attention.body.key_norm",
    ),
]


@pytest.fixture(scope="module")
def converted(native: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("converted")

    def make(name: str) -> Path:
        place = root / name
        return place if place.exists() else lineage.convert(str(native(name)), place, verify=False).output

    return make


@pytest.mark.parametrize(("name", "plant", "guilty"), BUGS, ids=[f"{bug[0]}-{bug[2]}" for bug in BUGS])
def test_planted_bug_is_named(
    name: str, plant: Callable[[Any], None], guilty: str, converted: Callable[[str], Path]
) -> None:
    model = lineage.from_pretrained(converted(name))
    plant(model)
    report = lineage.verify(model, only=("replay",))
    assert [node["ours"] for node in report.guilty] == [guilty]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gptj", {"rotary_dim": None}, "rotary_dim"),
    ("gptj", {"rotary_dim": 7}, "odd"),
    ("gptj", {"rotary_dim": 32}, "channels turn"),
    ("gptj", {"n_head": 5}, "n_head"),
    ("gpt_neo", {"attention_types": [[["global", "sparse"], 2]]}, "sparse"),
    ("gpt_neo", {"attention_types": [[["global", "local"], 3]]}, "num_layers is 4"),
    ("gpt_neo", {"attention_types": [["global", 4]]}, "attention_types"),
    ("gpt_neo", {"attention_types": []}, "attention_types names 0 layers"),
    ("gpt_neo", {"attention_types": [[["global", "local"], 2000000000]]}, "num_layers is 4"),
    ("gpt_neo", {"attention_layers": ["local", "global", "local", "global"]}, "attention_layers"),
    ("gpt_neo", {"attention_layers": "global"}, "attention_layers"),
    ("gpt_neo", {"window_size": 0}, "window_size"),
    ("opt", {"do_layer_norm_before": None}, "do_layer_norm_before"),
    ("opt", {"enable_bias": "yes"}, "enable_bias"),
    ("opt", {"word_embed_proj_dim": 0}, "word_embed_proj_dim"),
    ("opt", {"activation_function": "gelu_10"}, "activation_function"),
    ("bloom", {"slow_but_exact": True}, "slow_but_exact"),
    ("bloom", {"n_embed": 24}, "n_embed"),
    ("bloom", {"apply_residual_connection_post_layernorm": 1}, "apply_residual_connection_post_layernorm"),
    ("falcon-40b", {"parallel_attn": False}, "parallel_attn"),
    ("falcon-7b", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
    ("falcon-40b", {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn"),
    ("falcon-rw", {"num_kv_heads": 2}, "num_kv_heads"),
    ("falcon-40b", {"num_kv_heads": 4}, "num_kv_heads"),
    ("falcon-7b", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
    ("falcon-7b", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("gpt_bigcode", {"multi_query": None}, "multi_query"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln"),
    ("mpt", {"attn_config": {"rope": True}}, "rope"),
    ("mpt", {"no_bias": False}, "no_bias"),
    ("mpt", {"logit_scale": 0.5}, "logit_scale"),
    ("phi", {"head_dim": 4}, "head_dim"),
    ("phi", {"partial_rotary_factor": 0.4, "rope_parameters": None}, "odd"),
    ("phi", {"qk_layernorm": None}, "qk_layernorm"),
    ("phi", {"sliding_window": 4}, "sliding_window"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "part"), REFUSED)
def test_refused_with_the_key_named(
    name: str, keys: dict[str, Any], part: str, native: Callable[[str], Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").symlink_to(native(name) / "model.safetensors")
    config = json.loads((native(name) / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | keys))
    with pytest.raises(ArchitectureError) as refusal:
        lineage.convert(str(source), tmp_path / "out", verify=False)
    assert refusal.value.exit_code == 6
    assert part in " ".join([refusal.value.message, *refusal.value.facts])
    assert not (tmp_path / "out").exists()


def test_a_norm_under_the_other_layout_is_refused(native: Callable[[str], Path], tmp_path: Path) -> None:
    """The tensors of two parallel norms, and a config that says one."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").symlink_to(native("falcon-40b") / "model.safetensors")
    config = json.loads((native("falcon-40b") / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_ln_in_parallel_attn": 1}))
    with pytest.raises(TensorMismatch) as refusal:
        lineage.convert(str(source), tmp_path / "out", verify=False)
    text = "\n".join(refusal.value.facts)
    assert "missing     transformer.h.0.input_layernorm.weight" in text
    assert "unexpected  transformer.h.0.ln_mlp.bias" in text


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("gptj", 6_050_882_784),
        ("gpt-neo-125m", 125_198_592),
        ("opt", 125_239_296),
        ("opt-350m", 331_196_416),
        ("bloom-560m", 559_214_592),
        ("bloom", 176_247_271_424),
        ("falcon-7b", 6_921_720_704),
        ("falcon-rw-1b", 1_311_625_216),
        ("mpt", 6_649_286_656),
        ("starcoder", 15_517_456_384),
        ("phi-1.5", 1_418_270_720),
        ("phi-2", 2_779_683_840),
    ],
)
def test_counts_of_the_literature(size: str, count: int) -> None:
    assert graph.parameters(lineage.spec(size)) == count
