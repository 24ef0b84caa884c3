"""Encoders with decoders on tiny spread checkpoints: as the reference saves them, as we write them, and aged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lineage
from lineage import graph
from lineage.components import LayerNorm
from lineage.errors import ArchitectureError, TensorMismatch
from lineage.modules.losses import smoothed_loss
from lineage.parity.tiny import write_tiny
from tests.tiny import quiet

PAIR = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 3, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 28, "max_position_embeddings": 40, "vocab_size": 61, "pad_token_id": 1,
    "decoder_start_token_id": 2,
}  # fmt: skip
TEXT = {
    "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 3, "vocab_size": 61,
    "relative_attention_num_buckets": 12, "relative_attention_max_distance": 50, "decoder_start_token_id": 0,
}  # fmt: skip
WORDS = {"src_vocab_size": 61, "tgt_vocab_size": 53}
SPARSE = {"num_experts": 5, "expert_capacity": 9, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 2}
CLASSES = {
    "fsmt": "FSMTForConditionalGeneration", "marian": "MarianMTModel", "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration", "m2m_100": "M2M100ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration", "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration", "switch_transformers": "SwitchTransformersForConditionalGeneration",
}  # fmt: skip
PLAIN = {name: value for name, value in PAIR.items() if name != "vocab_size"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fsmt": ("fsmt", PLAIN | WORDS),
    "fsmt of one table": ("fsmt", PLAIN | {"src_vocab_size": 53, "tgt_vocab_size": 53, "tie_word_embeddings": True,
                                           "scale_embedding": False, "activation_function": "gelu"}),
    "marian": ("marian", PAIR | {"scale_embedding": True, "activation_function": "swish", "pad_token_id": 60}),
    "marian of two tables": ("marian", PAIR | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53}),
    "marian untied": ("marian", PAIR | {"tie_word_embeddings": False}),
    "bart": ("bart", PAIR),
    "bart untied": ("bart", PAIR | {"tie_word_embeddings": False, "scale_embedding": True, "pad_token_id": 7}),
    "mbart": ("mbart", PAIR | {"scale_embedding": True, "activation_function": "relu"}),
    "m2m_100": ("m2m_100", PAIR),
    "m2m_100 unscaled": ("m2m_100", PAIR | {"scale_embedding": False, "pad_token_id": 5, "d_model": 12}),
    "pegasus": ("pegasus", PAIR | {"scale_embedding": True, "pad_token_id": 0}),
    "t5": ("t5", TEXT),
    "t5 1.1": ("t5", TEXT | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 gated": ("t5", TEXT | {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1, "layer_norm_epsilon": 1e-3}),
    "mt5": ("mt5", TEXT | {"num_heads": 2}),
    "switch": ("switch_transformers", TEXT | SPARSE),
    "switch untied": ("switch_transformers", TEXT | SPARSE | {"tie_word_embeddings": False, "router_bias": True}),
}  # fmt: skip
LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}


def spread(model: nn.Module, generator: torch.Generator) -> None:
    """Fill it with numbers that show mistakes; sines stay what they are."""
    done: set[int] = set()
    for module in model.modules():
        kept = "Sinusoidal" in type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            if kept or id(parameter) in done:
                continue
            done.add(id(parameter))
            noise = torch.randn(parameter.shape, generator=generator)
            table, norm = isinstance(module, nn.Embedding), parameter.dim() == 1 and name == "weight"
            scaled = (
                0.3 * noise if parameter.dim() == 1 else noise if table else 1.5 * noise / parameter.shape[-1] ** 0.5
            )
            parameter.data = 1 + scaled if norm else scaled
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))


def native(name: str, place: Path) -> Path:
    """A case as today's transformers saves it."""
    kind, keys = CASES[name]
    reference = getattr(transformers, CLASSES[kind])
    with quiet():
        model = reference(reference.config_class(**keys)).eval()
        spread(model, torch.Generator().manual_seed(len(name)))
        model.save_pretrained(place)
    return place


def check(done: Any, longest: int) -> None:
    report = done.report
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= LEVELS
    figures = report.level("fp64").figures
    assert max(figure["rel"] for figure in figures) <= 1e-12
    assert {figure["probe"] for figure in figures} >= {"short", "full", "padded"}
    assert max(figure["positions"] for figure in figures) >= longest


@pytest.mark.parametrize("name", CASES)
def test_every_level_holds(name: str, tmp_path: Path) -> None:
    done = lineage.convert(str(native(name, tmp_path / "source")), tmp_path / "out")
    endless = name.split()[0] in ("m2m_100", "t5", "mt5", "switch")
    check(done, 256 if endless else 40)
    faults = " ".join(done.report.faults)
    assert ("by default, with a cache" in faults) == name.startswith("fsmt"), "its default forward sees later tokens"
    notes = " ".join(done.report.notes)
    assert ("room for so many tokens" in notes) == name.startswith("switch")


@pytest.mark.parametrize("kind", ["fsmt", "bart", "t5", "switch_transformers"])
def test_what_we_write_holds_too(kind: str, tmp_path: Path) -> None:
    check(lineage.convert(str(write_tiny(kind, tmp_path / "source")), tmp_path / "out"), 160)


class Old:
    """A checkpoint that is being aged."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.tensors: dict[str, Tensor] = load_file(place / "model.safetensors")
        self.config: dict[str, Any] = json.loads((place / "config.json").read_text())

    def write(self, pickled: bool = False) -> Path:
        (self.place / "config.json").write_text(json.dumps(self.config))
        (self.place / "model.safetensors").unlink()
        if pickled:
            torch.save(self.tensors, self.place / "pytorch_model.bin")
        else:
            save_file(self.tensors, self.place / "model.safetensors", metadata={"format": "pt"})
        return self.place


def bare(old: Old) -> None:
    """A base saved alone: no prefix, no bias of the logits."""
    old.tensors.pop("final_logits_bias", None)
    old.tensors = {name.removeprefix("model."): value for name, value in old.tensors.items()}


def copies(old: Old) -> None:
    """Every name of the one table, as pickles had them."""
    base = "model." if "model.shared.weight" in old.tensors else ""
    shared = old.tensors[f"{base}shared.weight"]
    names = (f"{base}encoder.embed_tokens.weight", f"{base}decoder.embed_tokens.weight", "lm_head.weight")
    old.tensors |= {name: shared.clone() for name in names}


def decoders_alone(old: Old) -> None:
    """Of four names of one table, that which a reader of names alone would not look for."""
    old.tensors["model.decoder.embed_tokens.weight"] = old.tensors.pop("model.shared.weight")


def years(old: Old) -> None:
    """Keys of other years."""
    old.config["torch_dtype"] = old.config.pop("dtype", "float32")
    old.config |= {"normalize_before": False, "normalize_embedding": True, "static_position_embeddings": False}
    old.config |= {
        "add_final_layer_norm": False,
        "classif_dropout": 0.0,
        "extra_pos_embeddings": 2,
        "add_bias_logits": False,
    }
    old.config |= {
        "num_hidden_layers": 2,
        "output_past": True,
        "early_stopping": True,
        "max_length": 142,
        "num_beams": 4,
    }


def waves(old: Old) -> None:
    """The tables of sines that old files keep."""
    width, rows = old.config["d_model"], old.config["max_position_embeddings"]
    with quiet():
        model = transformers.MarianMTModel(transformers.MarianConfig(**old.config))
    table = model.model.encoder.embed_positions.weight.detach()
    assert table.shape == (rows, width)
    old.tensors |= {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}


def half(old: Old) -> None:
    old.tensors = {name: value.half() for name, value in old.tensors.items()}


def without_waves(old: Old) -> None:
    for side in ("encoder", "decoder"):
        del old.tensors[f"model.{side}.embed_positions.weight"]


def dead_bias(old: Old) -> None:
    """A table that the first releases had, and own words for what follows from others."""
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    old.tensors[name] = torch.ones(12, 3)
    for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act"):
        old.config.pop(key, None)


def own_head(old: Old) -> None:
    """As Flan-T5: the config says so, and the head is in the file."""
    dead_bias(old)
    old.config["tie_word_embeddings"] = False
    old.tensors["lm_head.weight"] = old.tensors["shared.weight"].flip(0).contiguous()


AGES: dict[str, tuple[str, tuple[Callable[[Old], None], ...], bool, int]] = {
    "bart, a base": ("bart", (bare, years), False, 0),
    "bart, pickled with copies": ("bart", (copies, years), True, 3),
    "bart, under the decoder's name": ("bart", (decoders_alone,), False, 0),
    "mbart, copies": ("mbart", (copies,), False, 3),
    "marian, pickled with sines": ("marian", (copies, waves, years), True, 3),
    "marian, sines in half": ("marian", (waves, half), False, 0),
    "fsmt, without sines": ("fsmt", (without_waves,), False, 0),
    "m2m_100, a base with copies": ("m2m_100", (copies, bare), True, 3),
    "t5 with old keys": ("t5", (copies, dead_bias), True, 3),
    "t5 with its own head": ("t5 1.1", (own_head,), False, 0),
    "mt5 with its own head": ("mt5", (own_head,), True, 0),
    "pegasus, pickled with copies": ("pegasus", (copies, years), True, 3),
    "switch, copies": ("switch", (copies,), False, 3),
}


@pytest.mark.parametrize("name", AGES)
def test_aged_copy_holds(name: str, tmp_path: Path) -> None:
    case, edits, pickled, copied = AGES[name]
    old = Old(native(case, tmp_path / "source"))
    for edit in edits:
        edit(old)
    done = lineage.convert(str(old.write(pickled)), tmp_path / "out", allow_pickle=True)
    assert done.report.passed, "\n".join(done.report.lines())
    plan = done.manifest["plan"]
    assert len(plan["copies"]) == copied
    table = [tensor for tensor in done.manifest["tensors"] if tensor.endswith("positions.weight")]
    if "sines" in name:
        assert len(table) == (2 if name.endswith("half") else 0), "a table that is not the sines is kept as one"
        assert [drop["lossy"] for drop in plan["dropped"]] == ([False] * 2 if name.endswith("with sines") else [])


def test_a_table_beside_the_sines_is_kept(tmp_path: Path) -> None:
    old = Old(native("pegasus", tmp_path / "source"))
    table = old.tensors["model.decoder.embed_positions.weight"]
    assert (
        lineage.convert(str(tmp_path / "source"), tmp_path / "as-saved", verify=False).manifest["arguments"]["table"]
        is False
    )
    table[3, 5] += 1e-3
    done = lineage.convert(str(old.write()), tmp_path / "out")
    assert done.report.passed, "\n".join(done.report.lines())
    assert done.manifest["arguments"]["table"] is True
    assert "embed.positions.weight" in done.manifest["tensors"]


@pytest.mark.parametrize(
    ("kind", "keys", "part"),
    [
        ("marian", {"is_decoder": True}, "is_decoder"),
        ("marian", {"is_encoder_decoder": False}, "is_encoder_decoder"),
        ("marian", {"encoder_attention_heads": 5}, "heads"),
        ("marian", {"activation_function": "mish"}, "activation_function"),
        ("fsmt", {"pad_token_id": None}, "pad_token_id"),
        ("fsmt", {"pad_token_id": 100}, "pad_token_id"),
        ("bart", {"scale_embedding": 1}, "scale_embedding"),
        ("m2m_100", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj"),
        ("t5", {"feed_forward_proj": "twice-gated-relu"}, "feed_forward_proj"),
        ("t5", {"dense_act_fn": "mish"}, "dense_act_fn"),
        ("t5", {"is_gated_act": "yes"}, "is_gated_act"),
        ("t5", {"scale_decoder_outputs": 1}, "scale_decoder_outputs"),
        ("t5", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ("t5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets"),
        ("t5", {"relative_attention_max_distance": 3}, "relative_attention_max_distance"),
        ("switch_transformers", {"router_dtype": "bfloat16"}, "router_dtype"),
        ("switch_transformers", {"encoder_sparse_step": 0}, "encoder_sparse_step"),
        ("switch_transformers", {"num_sparse_decoder_layers": -1}, "num_sparse_decoder_layers"),
        ("switch_transformers", {"num_decoder_layers": None}, "num_decoder_layers"),
    ],
)  # fmt: skip
def test_refused_with_the_key_named(kind: str, keys: dict[str, Any], part: str, tmp_path: Path) -> None:
    write_tiny(kind, tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(ArchitectureError) as refusal:
        lineage.convert(str(path.parent), tmp_path / "out", verify=False)
    assert refusal.value.exit_code == 6
    assert part in " ".join([refusal.value.message, *refusal.value.facts])


@pytest.mark.parametrize(
    "lost", ["model.encoder.embed_positions.weight", "model.decoder.layers.0.encoder_attn.k_proj.bias"]
)
def test_what_is_missing_is_named(lost: str, tmp_path: Path) -> None:
    old = Old(write_tiny("bart", tmp_path / "source"))
    del old.tensors[lost]
    with pytest.raises(TensorMismatch) as refusal:
        lineage.convert(str(old.write()), tmp_path / "out", verify=False)
    assert f"missing     {lost}" in "\n".join(refusal.value.facts)


def swap(body: Any) -> None:
    body.k, body.v = body.v, body.k


BUGS: dict[tuple[str, str], tuple[Callable[[Any], None], str]] = {
    ("fsmt", "keys for values"): (lambda m: swap(m.blocks[1].cross.body), "blocks.1.cross.body.k"),
    ("fsmt", "paper's frequencies"): (lambda m: vars(m.encoder.embed.positions.spec).update(closed=False),
                                      "encoder.embed.positions"),
    ("marian", "sines take turns"): (lambda m: vars(m.embed.positions.spec).update(apart=False), "embed.positions"),
    ("marian", "another activation"): (lambda m: setattr(m.blocks[0].mlp.body.act, "function", nn.functional.relu),
                                     "blocks.0.mlp.body.act"),
    ("bart", "eps"): (lambda m: setattr(m.encoder.embed.norm, "spec", LayerNorm(eps=1e-3)), "encoder.embed.norm"),
    ("bart", "a bias of the logits lost"): (lambda m: m.head.bias.data.zero_(), "head"),
    ("mbart", "a norm after the sum"): (lambda m: setattr(m.encoder.blocks[0].attention, "norm_input", nn.Identity()),
                                        "encoder.blocks.0.attention.norm_input"),
    ("mbart", "no last norm"): (lambda m: setattr(m, "norm", nn.Identity()), "norm"),
    ("m2m_100", "unscaled"): (lambda m: vars(m.encoder.embed.spec).update(scale=None), "encoder.embed"),
    ("m2m_100", "heads"): (lambda m: vars(m.blocks[0].cross.body.product.spec).update(scale=0.1),
                           "blocks.0.cross.body.product"),
    ("pegasus", "scaled"): (lambda m: vars(m.embed.spec).update(scale=5.0), "embed"),
    ("pegasus", "relu"): (lambda m: setattr(m.blocks[0].mlp.body.act, "function", nn.functional.relu),
                          "blocks.0.mlp.body.act"),
    ("t5", "one way"): (lambda m: vars(m.encoder.position_bias.spec).update(both_ways=False), "encoder.position_bias"),
    ("t5", "unscaled"): (lambda m: setattr(m.head, "scale_input", None), "head"),
    ("mt5", "scaled scores"): (lambda m: vars(m.blocks[0].attention.body.product.spec).update(scale=None),
                               "blocks.0.attention.body.product"),
    ("mt5", "gate for up"): (lambda m: setattr(m.blocks[0].mlp.body, "gate", m.blocks[0].mlp.body.up),
                             "blocks.0.mlp.body.gate"),
    ("switch_transformers", "room"): (lambda m: vars(m.encoder.blocks[1].mlp.body.spec.router).update(capacity=99),
                                      "encoder.blocks.1.mlp.body"),
    ("switch_transformers", "router"): (lambda m: m.blocks[0].mlp.body.router.weight.data.neg_(),
                                        "blocks.0.mlp.body.router"),
}  # fmt: skip


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny model of a type, converted once."""
    root = tmp_path_factory.mktemp("two-stacks")

    def get(kind: str) -> Path:
        if not (root / kind).exists():
            lineage.convert(str(write_tiny(kind, root / f"{kind}-source")), root / kind, verify=False)
        return root / kind

    return get


@pytest.mark.parametrize(("kind", "bug"), BUGS, ids=lambda value: value)
def test_a_planted_bug_is_named(kind: str, bug: str, converted: Callable[[str], Path]) -> None:
    plant, path = BUGS[kind, bug]
    model = lineage.from_pretrained(converted(kind))
    plant(model)
    report = lineage.verify(model, only=["replay"])
    assert not report.passed
    assert path in {guilty["ours"] for guilty in report.guilty}


def test_smoothed_loss_is_torchs_and_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(3, 7, 11, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 11, (3, 7), generator=generator)
    labels[0, 3:] = -100
    smoother = transformers.trainer_pt_utils.LabelSmoother(epsilon=0.1)

    def torchs(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)

    losses: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda logits: smoothed_loss(logits, labels),
        torchs,
        lambda logits: smoother({"logits": logits}, labels.clone()),
    )  # fmt: skip
    found = []
    for loss in losses:
        logits = given.clone().requires_grad_()
        value = loss(logits)
        value.backward()
        assert logits.grad is not None
        found.append((value.detach(), logits.grad))
    for value, gradient in found[1:]:
        assert torch.allclose(value, found[0][0], rtol=1e-6, atol=0)  # one of them sums in single precision
        assert torch.allclose(gradient, found[0][1], rtol=1e-6, atol=1e-9)
    assert torch.allclose(found[1][0], found[0][0], rtol=1e-14, atol=0)
    assert torch.allclose(found[1][1], found[0][1], rtol=1e-12, atol=1e-16)
    assert not torch.isclose(smoothed_loss(given, labels, 0.0), found[0][0], rtol=1e-3)


def test_the_count_of_the_literature_holds_tables_that_are_computed_here() -> None:
    """74,934,784: with two tables of 1024 sinusoids, and without the bias of the logits, which it holds as a buffer."""
    ours = graph.parameters(lineage.spec("opus-mt"))
    assert ours - 58101 + 2 * 1024 * 512 == 74_934_784


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("t5-small", 60_506_624), ("t5", 222_903_552), ("t5-large", 737_668_096), ("t5-v1.1-small", 76_961_152),
        ("t5-v1.1", 247_577_856), ("t5-v1.1-xl", 2_849_757_184), ("mt5-small", 300_176_768), ("t5-3b", 2_851_598_336),
        ("t5-11b", 11_307_321_344), ("flan-t5-large", 783_150_080), ("flan-t5-xxl", 11_135_332_352),
        ("mt5", 582_401_280), ("mt5-large", 1_229_581_312), ("mt5-xl", 3_742_619_648), ("mt5-xxl", 12_921_057_280),
        ("nllb-200-3.3b", 3_344_863_232), ("m2m-100-1.2b", 1_239_470_080),
        ("nllb-200-1.3b", 1_370_638_336), ("nllb-200-distilled-600m", 615_073_792),
    ],
)  # fmt: skip
def test_counts_with_heads_of_their_own(size: str, count: int) -> None:
    """The class ties whatever its config says, so that it has no model of the later ones without a file."""
    assert graph.parameters(lineage.spec(size)) == count


def test_sizes_of_the_paper() -> None:
    """65 and 213 million (Vaswani et al. 2017, table 3), with a vocabulary of about 37,000."""
    counts = [graph.parameters(lineage.spec(name)) for name in ("transformer", "transformer-big")]
    assert [round(count / 1e6) for count in counts] == [63, 214]


def test_shown_streamed_and_asked(converted: Callable[[str], Path]) -> None:
    from click.testing import CliRunner
    from lineage.cli import cli

    shown = CliRunner().invoke(cli, ["show", str(converted("t5"))])
    assert shown.exit_code == 0, shown.output
    assert "encoder" in shown.output
    asked = lineage.verify(converted("t5"), only=["fp64"], prompts=[[5, 6, 7, 8, 9]])
    assert asked.passed, "\n".join(asked.lines())
    streamed = CliRunner().invoke(cli, ["verify", str(converted("t5")), "--blocks"])
    assert streamed.exit_code == 0, streamed.output
