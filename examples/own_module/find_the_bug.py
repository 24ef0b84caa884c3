"""Where does a module of your own part from the model that it should be?

    python examples/own_module/find_the_bug.py [gelu | scale | mask | none]

Converts the example, compares the hand-written GPT-2 with the result port by port, and prints the report. Exits 3 if
they differ.
"""

import sys
import tempfile
from pathlib import Path

from gpt2_by_hand import BUGS, load

import lineage

MODEL = Path(__file__).parents[1] / "addition" / "model"
LAYER = {  # a module of ours-by-hand -> the component that it should be
    "before_attention": "attention.norm_input",
    "attention.queries": "attention.body.q",
    "attention.keys": "attention.body.k",
    "attention.values": "attention.body.v",
    "attention.merge": "attention.body.o",
    "attention": "attention.body",
    "before_mlp": "mlp.norm_input",
    "widen": "mlp.body.up",
    "bend": "mlp.body.act",
    "narrow": "mlp.body.down",
    "": "",  # the whole layer
}


def ports(layers: int) -> dict[str, str]:
    """Module paths of the candidate -> component paths."""
    found = {"words": "embed.tokens", "places": "embed.positions", "last": "norm", "": ""}
    for i in range(layers):
        for mine, ours in LAYER.items():
            found[f"layers.{i}.{mine}".rstrip(".")] = f"blocks.{i}.{ours}".rstrip(".")
    return found


def main() -> int:
    asked = sys.argv[1] if len(sys.argv) > 1 else BUGS[0]
    if asked not in (*BUGS, "none"):
        print(__doc__)
        return 2
    candidate = load(MODEL, None if asked == "none" else asked).double()  # in double precision no noise hides a bug
    with tempfile.TemporaryDirectory() as place:
        converted = lineage.convert(str(MODEL), Path(place) / "addition", verify=False).output
        report = lineage.verify_module(candidate, against=converted, ports=ports(len(candidate.layers)))
    print(*report.lines(), sep="\n")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
