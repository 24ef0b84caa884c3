"""How configs say that weights are stored encoded: `quantization_config`, of which two methods are understood."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from lineage.keys import Only, brief

Option = tuple[str, Callable[[Any], bool]]


def _one_of(*values: Any) -> Option:
    return " or ".join(map(json.dumps, values)), lambda given: (type(given), given) in [(type(v), v) for v in values]


NAMES: Option = (
    "null or a list of names",
    lambda given: given is None or (isinstance(given, list) and all(isinstance(name, str) for name in given)),
)
BLOCK: Option = (
    "two whole numbers of at least 1",
    lambda given: isinstance(given, list) and len(given) == 2 and all(type(n) is int and n >= 1 for n in given),
)
TRUTH = _one_of(True, False)
METHODS: Mapping[str, Mapping[str, Option]] = {
    "mxfp4": {"modules_to_not_convert": NAMES, "dequantize": TRUTH},
    "fp8": {
        "activation_scheme": _one_of("dynamic"),
        "weight_block_size": BLOCK,
        "fmt": _one_of("e4m3"),
        "scale_fmt": _one_of("float", "ue8m0"),  # how scales were chosen; their own type says how they are stored
        "expert_dtype": _one_of("fp8"),
        "modules_to_convert": _one_of(None),
        "modules_to_not_convert": NAMES,  # the files say it too: what was left as it was has no scales beside it
        "ignored_layers": NAMES,
        "dequantize": TRUTH,
    },
}


class StorageKeys(Only):
    """Null, or one of the methods that `lineage.checkpoint.encoded` undoes, with options that it understands."""

    value: Any = None

    def wrong(self, value: Any) -> str | None:
        if value is None:
            return None
        method = value.get("quant_method") if isinstance(value, dict) else None
        if not isinstance(method, str) or method not in METHODS:
            return f"null, or quant_method {' or '.join(METHODS)}, not {brief(method)}"
        for key, given in value.items():
            if key == "quant_method":
                continue
            if key not in METHODS[method]:
                return f"{method} without {brief(key)}"
            wanted, fits = METHODS[method][key]
            if not fits(given):
                return f"{method} with {key} {wanted}, not {brief(given)}"
        return None
