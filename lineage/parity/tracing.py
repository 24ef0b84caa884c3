"""Activations of a model by name, while it runs: our component paths, or the reference's module paths."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from lineage import catalog
from lineage.errors import UsageError
from lineage.modules.model import Model
from lineage.parity.activations import Pair, pairs, tensor_of
from lineage.plan import expected


@contextlib.contextmanager
def trace(model: Model, *patterns: str, names: str = "lineage") -> Iterator[dict[str, Tensor]]:
    """Within: what every component gave when it last ran, by name; filled as the model runs, not copied.

    patterns: of names, as in `blocks.*.attention.body.product`; none: all. names: "lineage", or "hf" for those of the
    reference's causal or masked class, with ":input" after a module that is known by what enters it. Outside, a model
    runs as if this did not exist. Raises UsageError for names that are neither, a pattern that fits none, and "hf" for
    a model that came from no public checkpoint.
    """
    if names not in ("lineage", "hf"):
        raise UsageError(f"names {names!r} are not lineage or hf")
    paths = [path for path, _ in model.named_modules() if path]
    mapping = [Pair(path, path) for path in paths] if names == "lineage" else _theirs(model, paths)
    told: dict[str, list[Pair]] = defaultdict(list)
    for pair in mapping:
        told[_name(pair)].append(pair)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in told):
            raise UsageError(f"nothing in the model is named {pattern!r}", hint="lineage show MODEL lists our paths")
    found: dict[str, Tensor] = {}
    chosen = [name for name in told if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    hooks = [
        model.get_submodule(pair.ours).register_forward_hook(_keeping(found, name, pair, told[name]))
        for name in chosen
        for pair in told[name]
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _name(pair: Pair) -> str:
    return pair.theirs + ":input" * (pair.at == "input")


def _theirs(model: Model, paths: list[str]) -> list[Pair]:
    """The mapping of activations under the reference's names."""
    kind = str(model.provenance.get("model_type"))
    if kind not in catalog.dialects():
        raise UsageError('names="hf" are those of a public model type, and this model came from none')
    dialect = catalog.dialects()[kind]
    memory, base = replace(dialect, tensors=(*dialect.memory, *dialect.tensors)), dialect.prefixes[0]
    return pairs(dialect, expected(memory, model.spec, base), base, paths)


def _keeping(found: dict[str, Tensor], name: str, pair: Pair, together: list[Pair]) -> Callable[..., None]:
    """A hook that puts an output where it belongs: whole, or into its channels of what the reference has in one."""
    width = sum(len(one.part or ()) for one in together)

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        value = tensor_of(output)
        if value is None:
            return
        value = pair.turned(value)
        if pair.part is None:
            found[name] = value
            return
        value = value.flatten(2)
        if name not in found or pair is together[0]:
            found[name] = value.new_zeros(*value.shape[:-1], width)
        found[name][..., list(pair.part)] = value.detach()

    return keep
