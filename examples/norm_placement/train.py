"""Pre-norm and post-norm of one size, trained without warm-up: the difference that a norm's place makes.

    .venv/bin/python examples/norm_placement/train.py [--steps 300] [--layers 12] [--output losses.svg]

Both are specs of the tool: `gpt2` has its norms before each branch, `gpt` after each sum (Radford et al. 2018, 2019);
all else is the same, the random weights too. The text is this project's licence, a letter a token. Without warm-up the
deep post-norm stack stays where it is, since its gradients at the output are too large for the first steps (Xiong et
al. 2020, §3); pre-norm just learns. The run is deterministic: the same numbers each time, on one machine.
"""

import argparse
from pathlib import Path

import torch

import lineage
from lineage.modules.losses import causal_loss
from lineage.modules.model import Model, build

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "LICENSE").read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))
ROWS, LENGTH, RATE = 16, 64, 1e-3
COLOURS = {"pre-norm": "#1b6ca8", "post-norm": "#b3432b"}


def made(spec: str, layers: int) -> Model:
    """A model of random weights: those of equal names are equal in both."""
    sizes = {"vocab": len(LETTERS), "context": LENGTH, "width": 64, "layers": layers, "heads": 4}
    model = build(lineage.spec(spec, **sizes), "cpu").train()
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        draw = torch.Generator().manual_seed(number)
        if name.endswith("weight") and parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02, generator=draw)
        else:
            torch.nn.init.constant_(parameter, float(name.endswith("weight")))
    return model


def train(model: Model, steps: int) -> list[float]:
    """The losses of so many steps, at one learning rate from the first to the last."""
    ids = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    optimizer, draw, losses = torch.optim.Adam(model.parameters(), lr=RATE), torch.Generator().manual_seed(1), []
    for _ in range(steps):
        begins = torch.randint(len(ids) - LENGTH, (ROWS, 1), generator=draw)
        batch = ids[begins + torch.arange(LENGTH)]
        loss = causal_loss(model(batch).logits, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def drawn(losses: dict[str, list[float]]) -> str:
    """The losses as an SVG of their own: no library, no script, no font that is fetched."""
    width, height, left, low = 640, 360, 50, 320
    top, steps = max(max(each) for each in losses.values()), max(len(each) for each in losses.values())
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13" '
        f'viewBox="0 0 {width} {height}">',
        "<title>Loss of pre-norm and post-norm without warm-up</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<path d="M{left} 20V{low}H{width - 20}" fill="none" stroke="#555555"/>',
        f'<text x="{left}" y="{height - 14}">0</text><text x="{width - 60}" y="{height - 14}">{steps} steps</text>',
        '<text x="8" y="16">loss</text>',
    ]
    for tick in range(int(top) + 1):
        y = low - (low - 30) * tick / top
        parts.append(f'<text x="30" y="{y + 4:.1f}">{tick}</text>')
    for place, (name, each) in enumerate(losses.items()):
        points = (
            f"{left + (width - 70) * step / (steps - 1):.1f},{low - (low - 30) * loss / top:.1f}"
            for step, loss in enumerate(each)
        )
        dash = ' stroke-dasharray="6 4"' * place
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dash}/>'
        )
        parts.append(
            f'<text x="{width - 190}" y="{40 + 20 * place}" fill="{COLOURS[name]}">{name}: {each[-1]:.2f}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--output", type=Path, default=HERE / "losses.svg")
    asked = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    losses = {
        name: train(made(spec, asked.layers), asked.steps)
        for name, spec in (("pre-norm", "gpt2"), ("post-norm", "gpt"))
    }
    for name, each in losses.items():
        print(f"{name:10} first {each[0]:.3f}   last {each[-1]:.3f}")
    asked.output.write_text(drawn(losses), encoding="utf-8")
    print(f"wrote {asked.output}")


if __name__ == "__main__":
    main()
