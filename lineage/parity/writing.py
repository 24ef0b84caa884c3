"""Text from a model: a prompt through its own tokenizer, the model's tokens back through it as they come."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lineage.checkpoint.gguf import read_gguf
from lineage.checkpoint.source import whole_file
from lineage.errors import UsageError
from lineage.modules.beams import beam_search
from lineage.modules.constraints import Constraints
from lineage.modules.generation import Choice, stream
from lineage.modules.model import Model
from lineage.parity.prompts import prompt_ids


@dataclass
class Written:
    """A prompt, how the model goes on, and how fast that was."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second, the prompt's own time included."""
        return len(self.tokens) / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "tokens": self.tokens,
            "text": self.text,
            "seconds": self.seconds,
            "rate": self.rate,
        }


def source_of(directory: Path) -> Path:
    """Where the source's small files lie: in a converted directory apart, else in the folder itself."""
    apart = directory / "source"
    return apart if apart.is_dir() else directory


def settings_of(directory: Path) -> dict[str, Any]:
    """What config and generation config say of generating, the latter first."""
    whole = whole_file(source_of(directory))
    found: dict[str, Any] = (
        {"eos_token_id": read_gguf(whole).metadata.get("tokenizer.ggml.eos_token_id")} if whole else {}
    )
    for name in ("config.json", "generation_config.json"):
        path = source_of(directory) / name
        said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        found |= {key: value for key, value in said.items() if value is not None} if isinstance(said, dict) else {}
    return found


def stops(settings: dict[str, Any]) -> list[int]:
    """The tokens that end a text."""
    said = settings.get("eos_token_id", [])
    return [token for token in (said if isinstance(said, list) else [said]) if type(token) is int]


def write(
    model: Model, directory: Path, prompt: str, tokens: int, choice: Choice, written: Written, beams: int = 1
) -> Iterator[str]:
    """The text piece by piece, of beams in one; `written` is filled on the way. prompt: text, or token ids as [1, 2].

    What the generation config asks for is heeded: the tokens that end a text, forced and suppressed ones.

    Raises UsageError: what it asks for is not understood, nothing to go on from, ids that the model does not have, text
    without a tokenizer, an encoder whose config does not say what a target begins with.
    """
    settings, vocab = settings_of(directory), (model.spec.encoder or model.spec).embed.vocab
    ids, tokenizer = prompt_ids(prompt, source_of(directory), "prompt")
    if not ids or max(ids) >= vocab:
        raise UsageError(f"prompt: {len(ids)} tokens, up to {max(ids, default=0)}; the model has {vocab}")
    written.prompt[:] = ids
    start = None
    if model.spec.encoder is not None:
        first = settings.get("decoder_start_token_id")
        if type(first) is not int:
            raise UsageError("config.json does not say which token a target begins with (decoder_start_token_id)")
        start = torch.tensor([[first]], device=model.table.device)
    began, shown = time.perf_counter(), ""
    given = {"tokens": tokens, "stop": stops(settings), "start": start, "constraints": Constraints.of(settings)}
    for next_B in _tokens(model, torch.tensor([ids], device=model.table.device), beams, choice, settings, given):
        written.tokens.append(int(next_B[0]))
        written.seconds = time.perf_counter() - began
        whole = tokenizer.decode(written.tokens, skip_special_tokens=True) if tokenizer else _spelled(written.tokens)
        if not whole.endswith("\N{REPLACEMENT CHARACTER}"):  # else a character of several tokens is not yet whole
            yield whole[len(shown) :]
            shown = written.text = whole
    if written.tokens and whole != shown:  # ended amid a character
        written.text = whole
        yield whole[len(shown) :]


def _tokens(
    model: Model, ids_BT: torch.Tensor, beams: int, choice: Choice, settings: dict[str, Any], given: dict[str, Any]
) -> Iterable[torch.Tensor]:
    if beams == 1:
        return stream(model, ids_BT, choice=choice, **given)
    if choice != Choice():
        raise UsageError("beams take the likeliest texts, and draw no tokens")
    penalty, early = settings.get("length_penalty", 1.0), settings.get("early_stopping", False)
    if type(early) is not bool:
        raise UsageError(f"the generation config asks for early_stopping {early!r}, which is not understood")
    begun = ids_BT if given["start"] is None else given["start"]
    whole_BT = beam_search(model, ids_BT, beams=beams, penalty=penalty, early=early, **given)
    return whole_BT[:, begun.shape[1] :].unbind(1)


def _spelled(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))
