"""Mends what the reference's code is known to do wrong, so that it can be compared; the report tells of it."""

from typing import Any

from torch import nn

FORGETFUL = "its rotary positions take the factors of short calls at every length; compared with them told the length"


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
