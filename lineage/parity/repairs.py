"""Mends what the reference's code is known to do wrong, so that it can be compared; the report tells of it."""

from typing import Any

import torch
from torch import Tensor, nn

from lineage.rules import Reference

FORGETFUL = "its rotary positions take the factors of short calls at every length; compared with them told the length"


def mended(model: nn.Module, reference: Reference) -> nn.Module:
    """The reference's model in eval mode, mended as its dialect says."""
    if reference.deaf:
        told_lengths(model, reference.deaf)
    if reference.decides.get("task") == "choice":
        one_question(model)
    return model.eval()


def told_lengths(model: nn.Module, name: str) -> None:
    """Tell modules of this name how long a call is: they make their frequencies anew for it, from the config alone."""
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == name:
            _tell(module)


def _tell(module: nn.Module) -> None:
    lengths: list[int] = []
    frequencies: Any = module.rope_init_fn

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions: Any = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        lengths[:] = [int(positions.max()) + 1]

    module.register_forward_pre_hook(note, with_kwargs=True)
    module.rope_init_fn = lambda config: frequencies(config, seq_len=lengths[0])  # type: ignore[assignment]


def one_question(model: nn.Module) -> None:
    """Let a model that takes texts as choices, [questions, choices, T], take rows: the choices of one question."""

    def asked(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        rows = {name: value[None] for name, value in kwargs.items() if isinstance(value, Tensor) and value.dim() == 2}
        rows.setdefault("attention_mask", torch.ones_like(rows["input_ids"]))  # some code needs one
        return args, kwargs | rows

    def answered(_: nn.Module, args: Any, output: Any) -> None:
        output.logits = output.logits.transpose(0, 1)

    model.register_forward_pre_hook(asked, with_kwargs=True)
    model.register_forward_hook(answered)
