"""Tiny checkpoints of every model type, made by the reference itself and saved to files.

A case is a class of the reference with a small config; together the cases use every argument of every spec. Weights
are spread: under a framework's own initialisation norm weights are 1 and biases 0, which hides whole kinds of
mistakes.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

FAINT = 0.02  # on the embedding's tables: makes the first norm's variance small, so that its eps is seen


@dataclass(frozen=True, eq=False)
class Case:
    """kind: the reference's class. options: to its config. outputs: what it gives, ours -> its own.

    made_with: arguments of its constructor.
    """

    name: str
    model_type: str
    kind: str
    options: Mapping[str, Any]
    outputs: Mapping[str, str] = field(default_factory=lambda: LOGITS)
    made_with: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def reference(self) -> type[nn.Module]:
        return getattr(transformers, self.kind)

    @cached_property
    def config(self) -> Any:
        return self.reference.config_class(**self.options)

    @property
    def context(self) -> int:
        """How many tokens it takes."""
        skipped = self.config.pad_token_id + 1 if "roberta" in self.model_type else 0
        return self.config.max_position_embeddings - skipped


LOGITS = {"logits": "logits"}
HIDDEN = {"hidden": "last_hidden_state"}
POOLED = HIDDEN | {"pooled": "pooler_output"}
BOTH = {"logits": "prediction_logits", "next_sentence": "seq_relationship_logits"}
SCORES = {"scores": "logits"}
NO_POOLER = {"add_pooling_layer": False}


def gpt2(name: str, **options: Any) -> Case:
    sizes = {"vocab_size": 97, "n_positions": 160, "n_embd": 32, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return Case(f"gpt2-{name}", "gpt2", "GPT2LMHeadModel", sizes | ends | options)


def gpt(name: str, **options: Any) -> Case:
    sizes = {"vocab_size": 89, "n_positions": 160, "n_embd": 24, "n_layer": 2, "n_head": 4}
    return Case(f"gpt-{name}", "openai-gpt", "OpenAIGPTLMHeadModel", sizes | options)


BERT = {
    "vocab_size": 101, "max_position_embeddings": 160, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
ROBERTA = BERT | {"max_position_embeddings": 164, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


def bert(
    name: str, kind: str = "BertForMaskedLM", outputs: Any = LOGITS, made_with: Any = None, **options: Any
) -> Case:
    return Case(f"bert-{name}", "bert", kind, BERT | options, outputs, made_with or {})


def roberta(name: str, kind: str, outputs: Any = LOGITS, made_with: Any = None, **options: Any) -> Case:
    return Case(f"roberta-{name}", "roberta", f"Roberta{kind}", ROBERTA | options, outputs, made_with or {})


def xlm_roberta(name: str, kind: str, outputs: Any = LOGITS, made_with: Any = None, **options: Any) -> Case:
    return Case(f"xlm-roberta-{name}", "xlm-roberta", f"XLMRoberta{kind}", ROBERTA | options, outputs, made_with or {})


def distilbert(name: str, kind: str = "DistilBertForMaskedLM", outputs: Any = LOGITS, **options: Any) -> Case:
    sizes = {"vocab_size": 103, "max_position_embeddings": 160, "dim": 32, "n_layers": 2, "n_heads": 4}
    return Case(f"distilbert-{name}", "distilbert", kind, sizes | {"hidden_dim": 40} | options, outputs)


CASES = (
    gpt2("plain"),
    gpt2("untied", tie_word_embeddings=False, n_layer=3, n_embd=30, n_head=3),
    gpt2("odd-mlp", n_inner=37, n_positions=163, layer_norm_epsilon=1e-3),
    gpt2("unscaled", scale_attn_weights=False, vocab_size=113),
    gpt2("by-layer", scale_attn_by_inverse_layer_idx=True, n_layer=3),
    gpt2("unscaled-by-layer", scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True, n_layer=3),
    gpt2("upcast", reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True),
    *(
        gpt2(name.replace("_", "-"), activation_function=name)
        for name in ("gelu", "gelu_python", "gelu_accurate", "gelu_pytorch_tanh", "relu", "silu", "swish")
    ),
    gpt("plain"),
    gpt("untied", tie_word_embeddings=False, layer_norm_epsilon=1e-6, n_positions=171),
    gpt("relu", afn="relu", n_embd=30, n_head=5, n_layer=3),
    gpt("silu", afn="silu", vocab_size=83),
    gpt("swish", afn="swish"),
    bert("masked", hidden_size=36, num_attention_heads=3),
    bert("untied", tie_word_embeddings=False, type_vocab_size=3, layer_norm_eps=1e-5, num_hidden_layers=3),
    bert("relu", hidden_act="relu"),
    bert("gelu-new", hidden_act="gelu_new", max_position_embeddings=171),
    bert("silu", hidden_act="silu", pad_token_id=5),
    bert("encoder", "BertModel", POOLED),
    bert("encoder-without-pooler", "BertModel", HIDDEN, NO_POOLER),
    bert("pretraining", "BertForPreTraining", BOTH),
    bert("classes", "BertForSequenceClassification", SCORES, num_labels=3),
    bert("next-sentence", "BertForNextSentencePrediction", {"next_sentence": "logits"}),
    roberta("masked", "ForMaskedLM"),
    roberta("relu", "ForMaskedLM", hidden_act="relu", pad_token_id=0, tie_word_embeddings=False),
    roberta("encoder", "Model", POOLED, pad_token_id=3),
    roberta("encoder-without-pooler", "Model", HIDDEN, NO_POOLER, type_vocab_size=2),
    roberta("classes", "ForSequenceClassification", SCORES, num_labels=5),
    xlm_roberta("masked", "ForMaskedLM", hidden_size=30, num_attention_heads=6),
    xlm_roberta("encoder", "Model", POOLED),
    distilbert("masked", dim=36, n_heads=3),
    distilbert("untied", tie_word_embeddings=False, activation="relu"),
    distilbert("gelu-new", activation="gelu_new", sinusoidal_pos_embds=True, n_layers=3),
    distilbert("encoder", "DistilBertModel", HIDDEN),
)
BY_NAME = {case.name: case for case in CASES}


def spread(model: nn.Module, generator: torch.Generator, faint: bool = False) -> None:
    """Fill every parameter with numbers of a size that shows mistakes (see the file's head)."""

    def normal(parameter: nn.Parameter, mean: float, deviation: float) -> None:
        parameter.data = mean + deviation * torch.randn(parameter.shape, generator=generator)

    done: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in done:
                normal(parameter, *_size(module, name, parameter, faint))
            done.add(id(parameter))


def _size(module: nn.Module, name: str, parameter: nn.Parameter, faint: bool) -> tuple[float, float]:
    """Mean and standard deviation of a parameter."""
    if isinstance(module, nn.Embedding):
        return 0.0, FAINT if faint else 1.0
    if name == "bias":
        return 0.0, 0.3
    if isinstance(module, nn.LayerNorm):
        return 1.0, 0.3
    assert isinstance(module, nn.Linear | Conv1D), f"how is {name} of {type(module).__name__} spread?"
    return 0.0, 1.5 / math.sqrt(parameter.shape[0 if isinstance(module, Conv1D) else 1])


def make(case: Case, faint: bool = False) -> nn.Module:
    """The case's model with spread weights, the same ones each time."""
    with quiet():
        model = case.reference(case.config, **case.made_with).eval()
    spread(model, torch.Generator().manual_seed(zlib.crc32(case.name.encode())), faint)
    _share_bias(model)
    return model


def has_dead_bias(case: Case) -> bool:
    """Untied, BERT's classes keep a second bias of the head that no forward reads."""
    return not case.options.get("tie_word_embeddings", True) and case.model_type in ("bert", "roberta", "xlm-roberta")


def _share_bias(model: nn.Module) -> None:
    """The two names of the head's bias hold the same numbers, as they do when tied and did in every old version."""
    held = dict(model.named_parameters(remove_duplicate=False))
    for name in held:
        if name.endswith("decoder.bias"):
            held[name.replace("decoder.bias", "bias")].data = held[name].data.clone()


def native(case: Case, root: Path, faint: bool = False) -> Path:
    """The case as today's transformers saves it; made once."""
    place = root / f"{case.name}{'-faint' * faint}"
    if not place.exists():
        with quiet():
            make(case, faint).save_pretrained(place)
    return place


def load(case: Case, place: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The reference's model of a directory."""
    with quiet():
        options = {"dtype": dtype, "attn_implementation": "eager", **case.made_with}
        if case.options.get("reorder_and_upcast_attn"):
            options["reorder_and_upcast_attn"] = False  # the same product, in float32 whatever the dtype
        return case.reference.from_pretrained(place, **options).eval()


@contextmanager
def quiet() -> Iterator[None]:
    """The reference without its reports and progress bars."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
