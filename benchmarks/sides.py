"""What is compared: ours and others' models behind one door. Each loads a checkpoint's folder in single precision."""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lineage
from lineage.modules.cache import Cache
from lineage.modules.model import Model

Step = Callable[[Tensor], Tensor]


class Lineage:
    """Ours. fused: loaded with fused projections."""

    def __init__(self, directory: Path, fused: bool = False) -> None:
        self.model: Model = lineage.from_pretrained(directory, dtype="fp32", **({"fused": True} if fused else {}))

    def whole(self, ids: Tensor) -> Tensor:
        return self.model(ids).logits

    def prefill(self, ids: Tensor, room: int) -> tuple[Tensor, Step]:
        """The last position's logits, and what goes on from there."""
        cache = Cache(self.model.spec, room)

        def step(new: Tensor) -> Tensor:
            return self.model(new, cache=cache, last=1).logits

        return step(ids), step

    def filled(self, length: int, room: int) -> Step:
        """What goes on from a cache of random numbers."""
        cache = Cache(self.model.spec, room)
        for layer in cache.layers:
            layer.update(0, True, *(torch.randn(1, heads, length, width) for heads, width in layer.parts))
        cache.advance(length)
        return lambda new: self.model(new, cache=cache, last=1).logits


class Transformers:
    """The reference. attention: sdpa or eager. compiled: its forward goes through the compiler."""

    def __init__(self, directory: Path, attention: str = "sdpa", compiled: bool = False) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model: Any = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation=attention
            ).eval()
        self.call = torch.compile(self.model) if compiled else self.model

    def whole(self, ids: Tensor) -> Tensor:
        return self.call(input_ids=ids, use_cache=False).logits

    def prefill(self, ids: Tensor, room: int) -> tuple[Tensor, Step]:
        from transformers import DynamicCache

        step = self._going(DynamicCache(config=self.model.config))
        return step(ids), step

    def filled(self, length: int, room: int) -> Step:
        from transformers import DynamicCache

        config = self.model.config
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kept = DynamicCache(config=config)
        for layer in range(config.num_hidden_layers):
            kept.update(torch.randn(1, heads, length, width), torch.randn(1, heads, length, width), layer)
        return self._going(kept)

    def _going(self, kept: Any) -> Step:
        def step(new: Tensor) -> Tensor:
            return self.call(input_ids=new, past_key_values=kept, use_cache=True, logits_to_keep=1).logits

        return step


class Lean:
    """A hand-written model over the reference's own weights (`--lean FILE`): a yardstick, no part of this project."""

    def __init__(self, file: Path, reference: Transformers) -> None:
        self.model = _module(file).Lean(reference.model)

    def whole(self, ids: Tensor) -> Tensor:
        return self.model(ids)

    def prefill(self, ids: Tensor, room: int) -> tuple[Tensor, Step]:
        cache = self.model.cache(ids.shape[0], room)

        def step(new: Tensor) -> Tensor:
            return self.model(new, cache, last_only=True)

        return step(ids), step


class LitGPT:
    """litgpt's model of the reference's weights: Llama's shape alone, for which its names are written down here."""

    def __init__(self, reference: Transformers) -> None:
        from litgpt import GPT, Config

        told, state = reference.model.config, reference.model.state_dict()
        self.config = Config(
            block_size=told.max_position_embeddings, padded_vocab_size=told.vocab_size, vocab_size=told.vocab_size,
            n_layer=told.num_hidden_layers, n_head=told.num_attention_heads, n_embd=told.hidden_size,
            n_query_groups=told.num_key_value_heads, rotary_percentage=1.0, parallel_residual=False, bias=False,
            norm_class_name="RMSNorm", norm_eps=told.rms_norm_eps, mlp_class_name="LLaMAMLP", rope_base=10000,
            intermediate_size=told.intermediate_size, head_size=told.head_dim,
        )  # fmt: skip
        with torch.device("meta"):
            self.model: nn.Module = GPT(self.config)
        self.model.load_state_dict(self._renamed(state), assign=True, strict=False)
        self.model.max_seq_length = 1024
        self.model.cos, self.model.sin = self.model.rope_cache(device=torch.device("cpu"))
        self.model.eval()

    def _renamed(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {
            "lm_head.weight": state["lm_head.weight"],
            "transformer.wte.weight": state["model.embed_tokens.weight"],
            "transformer.ln_f.weight": state["model.norm.weight"],
        }
        for i in range(self.config.n_layer):
            old, new = f"model.layers.{i}.", f"transformer.h.{i}."
            names = {
                "norm_1": "input_layernorm", "norm_2": "post_attention_layernorm", "attn.proj": "self_attn.o_proj",
                "mlp.fc_1": "mlp.gate_proj", "mlp.fc_2": "mlp.up_proj", "mlp.proj": "mlp.down_proj",
            }  # fmt: skip
            found |= {f"{new}{ours}.weight": state[f"{old}{theirs}.weight"] for ours, theirs in names.items()}
            found[f"{new}attn.qkv.weight"] = torch.cat([state[f"{old}self_attn.{x}_proj.weight"] for x in "qkv"])
        return found

    def whole(self, ids: Tensor) -> Tensor:
        self.model.clear_kv_cache()
        return self.model(ids)

    def prefill(self, ids: Tensor, room: int) -> tuple[Tensor, Step]:
        self.model.clear_kv_cache()
        self.model.max_seq_length = room
        self.model.set_kv_cache(batch_size=ids.shape[0], device=torch.device("cpu"), dtype=torch.float32)
        seen = [0]

        def step(new: Tensor) -> Tensor:
            places = torch.arange(seen[0], seen[0] + new.shape[1])
            seen[0] += new.shape[1]
            return self.model(new, places)[:, -1:]

        return step(ids), step


def sides(kind: str, directory: Path, lean: Path | None, wanted: list[str]) -> dict[str, Any]:
    """Those of these names that are to be had: the baseline, transformers with sdpa, is always there, and first."""
    found: dict[str, Any] = {"sdpa": Transformers(directory)}
    for name in wanted:
        if name in ("lineage", "fused"):
            found[name] = Lineage(directory, name == "fused")
        elif name in ("eager", "compiled"):
            found[name] = Transformers(directory, "eager" if name == "eager" else "sdpa", name == "compiled")
        elif name == "lean" and lean is not None:
            found[name] = Lean(lean, found["sdpa"])
        elif name == "litgpt" and kind == "llama" and importlib.util.find_spec("litgpt"):
            found[name] = LitGPT(found["sdpa"])
    return found


def _module(file: Path) -> Any:
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return module
