"""The reference: the same checkpoint in transformers, loaded by its own class and no other code.

A dialect may name another package's class: `rules.Reference.build`.
"""

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lineage import components as c
from lineage.checkpoint.source import Source
from lineage.checkpoint.weights import Weights
from lineage.errors import TensorMismatch, UsageError
from lineage.parity.islands import lifted
from lineage.parity.probes import Probe
from lineage.parity.repairs import mended
from lineage.rules import Dialect, Reference

LONGEST = "max_seq_len_cached"  # where code that stretches angles keeps the length of the longest call


def choose(dialect: Dialect, spec: c.Model) -> Reference:
    """The reference's class that has the most of the model's parts: the first that asks for none that are missing."""
    return next(reference for reference in dialect.references if reference.fits(spec))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the reference's progress bars and load reports off the terminal; what they say, we check ourselves."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@dataclass
class Material:
    """What the reference is loaded from: a directory with config and weights, or a config with a way to its tensors.

    rounded: the tensors that it decodes into the type in which it shall compute, and that are bfloat16 by the plan.
    notes: for the report. gguf: the directory's file of that form, if one speaks for the model. settings: keys of the
    config in place of the file's.
    """

    directory: Path
    tensors: Callable[[], Mapping[str, Tensor]] | None = None
    rounded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gguf: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> dict[str, Any]:
        """The keywords that say where the reference finds what it reads."""
        return {"pretrained_model_name_or_path": self.directory} | ({"gguf_file": self.gguf} if self.gguf else {})

    def said(self) -> dict[str, Any]:
        """The config as it stands in the file, or as the reference makes it of the file's keys."""
        from transformers import PreTrainedConfig

        if self.gguf:
            return {**PreTrainedConfig.get_config_dict(**self.place)[0], **self.settings}
        text = (self.directory / "config.json").read_text(encoding="utf-8")
        said: dict[str, Any] = json.loads(text)
        return {**said, **self.settings}

    def config(self, repairs: Mapping[str, Any]) -> Any:
        """The config as the reference's class for its model_type reads it, such that the model holds plain numbers.

        repairs: lines in place of the file's.
        """
        from transformers import CONFIG_MAPPING

        said = {**self.said(), **repairs}
        config = CONFIG_MAPPING[said["model_type"]].from_dict(said)
        encoded = vars(config).pop("quantization_config", None)
        if encoded and self.tensors is None:
            config.quantization_config = {**encoded, "dequantize": True}
        return config


@contextlib.contextmanager
def staged(source: Source, weights: Weights) -> Iterator[Material]:
    """A directory with links to config and weights and nothing else, so that nothing else can be found and run."""
    with tempfile.TemporaryDirectory(prefix="lineage-") as name:
        directory = Path(name)
        if source.config == source.file:
            os.symlink(source.file.resolve(), directory / source.file.name)
            yield Material(directory, gguf=source.file.name)
            return
        os.symlink(source.config.resolve(), directory / "config.json")
        single = len(weights.files) == 1 and weights.index is None
        for path in (*weights.files, *((weights.index,) if weights.index else ())):
            pickled = path.suffix in (".bin", ".pt", ".pth")
            usual = "pytorch_model.bin" if pickled else "model.safetensors"
            os.symlink(path.resolve(), directory / (usual if single else path.name))
        yield Material(directory)


def load(
    reference: Reference,
    material: Material,
    dtype: torch.dtype,
    attention: str,
    islands: Mapping[str, Any] | None = None,
    repairs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The reference in eval mode. Raises TensorMismatch if it cannot load the file, UsageError without what it needs.

    attention: "eager" or "sdpa". islands: keys of the config to change, see `config.Island`. repairs: see `Entry`.
    """
    if reference.build is not None:
        return _load_other(reference, material, dtype)
    import transformers

    kind = getattr(transformers, reference.name)
    attention = attention if kind._supports_sdpa else "eager"
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention, "experts_implementation": "eager"}
    if reference.name.endswith("Model") and "pooler" not in reference.parts and _takes_pooler(kind):
        options["add_pooling_layer"] = False
    encoded = material.tensors is None and (material.gguf or material.said().get("quantization_config"))
    if encoded and find_spec("accelerate") is None:
        raise UsageError("transformers decodes this file with accelerate, and that is not installed",
                         hint="pip install 'lineage-models[gguf]', or convert with --verify none")  # fmt: skip
    state = None if material.tensors is None else dict(material.tensors())  # made before single precision is lifted
    with quiet(), lifted() if dtype == torch.float64 else contextlib.nullcontext():
        try:
            config = material.config({**(repairs or {}), **reference.settings})
            config.return_dict = True
            for key, value in (islands or {}).items():
                setattr(config, key, value)
            if state is None:
                with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that nothing else turns off
                    model = kind.from_pretrained(**material.place, config=config, **options)
            else:
                model = kind.from_pretrained(None, config=config, state_dict=state, **options)
        except Exception as error:  # its code and its validators raise what they like
            raise _unloadable(reference, error) from error
    for name in parameter_names(model, list(material.rounded)).values():
        parameter = held(model)[name]
        parameter.data = parameter.data.bfloat16().to(parameter.dtype)
    for module in model.modules():
        if any(name.endswith(LONGEST) for name in vars(module)):
            module.register_forward_pre_hook(_forget)
    return mended(model, reference)


def build_other(reference: Reference, material: Material) -> nn.Module:
    """A reference that is not transformers', without weights. Raises UsageError if its package is not there."""
    assert reference.build is not None
    try:
        module = import_module(reference.module)
    except ImportError as error:
        raise UsageError(
            f"the reference is {reference.name} of the package {reference.library}, which cannot be imported: {error}",
            hint=f"install {reference.library} as its author says, or convert with --verify none",
        ) from error
    model: nn.Module = reference.build(module, material.said())
    return model


def _load_other(reference: Reference, material: Material, dtype: torch.dtype) -> nn.Module:
    assert material.tensors is not None
    state = dict(material.tensors())
    with lifted() if dtype == torch.float64 else contextlib.nullcontext():
        try:
            model = build_other(reference, material)
            model.load_state_dict(state)
        except UsageError:
            raise
        except Exception as error:  # another's code raises what it likes
            raise _unloadable(reference, error) from error
    return model.to(dtype).eval()


def _unloadable(reference: Reference, error: Exception) -> TensorMismatch:
    return TensorMismatch(
        f"{reference.library} cannot load this checkpoint as {reference.name}", facts=[str(error)[:300]],
        code="reference",
    )  # fmt: skip


def _forget(module: nn.Module, arguments: Any) -> None:
    """Angles that hang on a call's length are made for this call, and not for the longest that there has been."""
    for name in [name for name in vars(module) if name.endswith(LONGEST)]:
        setattr(module, name, 0)


def _takes_pooler(kind: type) -> bool:
    import inspect

    return "add_pooling_layer" in inspect.signature(kind).parameters


def run(model: nn.Module, probe: Probe, reference: Reference, **options: bool) -> dict[str, Tensor]:
    """The reference's outputs for one call, under our names."""
    with torch.no_grad(), quiet():
        outputs = model(**accepted(model, probe.arguments() | options))
    return {ours: result(outputs, theirs).cpu() for ours, theirs in reference.outputs.items()}


def result(outputs: Any, names: str | tuple[str, ...]) -> Tensor:
    """A result by its name, or of several by theirs, one last axis for all."""
    if isinstance(names, str):
        found: Tensor = getattr(outputs, names)
        return found
    return torch.stack([getattr(outputs, name) for name in names], -1)


def accepted(
    model: nn.Module, arguments: Mapping[str, Any], device: str | torch.device | None = None
) -> dict[str, Any]:
    """Those of the arguments that a model takes; and no cache, which has made some forget their masks.

    On the model's device, or on another, where its weights are not.
    """
    import inspect

    known, where = inspect.signature(model.forward).parameters, device or next(model.parameters()).device
    given = {name: value for name, value in {"use_cache": False, **arguments}.items() if name in known}
    return {name: value.to(where) if isinstance(value, Tensor) else value for name, value in given.items()}


def held(model: nn.Module) -> dict[str, Tensor]:
    """What it holds in memory, trained or not, under every name."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    return {**dict(model.named_parameters(remove_duplicate=False)), **buffers}


def parameter_names(model: nn.Module, names: Iterator[str] | list[str]) -> dict[str, str]:
    """Names in a file -> names in memory: as they stand, or under the class's prefix."""
    prefix = getattr(model, "base_model_prefix", "")
    present = held(model)
    found = {}
    for name in names:
        for candidate in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")):
            if candidate in present:
                found[name] = candidate
                break
    return found
