"""Mixtures of experts are compared given equal routes (parity.md §2).

Rounding may send a token to another expert where two of them all but tie. Everything behind it differs then, and says
nothing. So a token that we would send elsewhere takes the reference's way; the routers' logits are compared as a result
of their own, and each such flip is listed with its margin. N tokens, E experts, K chosen.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

import torch
from torch import Tensor, nn

from lineage.misfits import shown
from lineage.modules.experts import Router
from lineage.parity.probes import Probe
from lineage.values import Value

ROUTERS = "routers"  # the result that holds the logits of all of them
LISTED = 6
SCORES = {"softmax": lambda logits_NE: logits_NE.softmax(-1), "sigmoid": torch.sigmoid}


def _untold() -> Tensor:
    return torch.empty(0, 0, dtype=torch.long)


class Route(Value):
    """What a router gave in one call: logits [N, E]; weights and experts [N, K], empty where it does not tell them."""

    logits: Tensor
    weights: Tensor = field(default_factory=_untold)
    chosen: Tensor = field(default_factory=_untold)


Routes = dict[str, Route]  # a router's path in our model -> what it gave, on either side


class Flip(Value):
    """A token that we would send elsewhere. margin: from the last expert chosen to the next, in our scores.

    noise: how far our scores are from the reference's, at most. wrong: by its own scores and our rule, the reference
    would not have chosen as it did, so that it is the rule that differs.
    """

    router: str
    probe: str
    place: tuple[int, int]
    margin: float
    noise: float
    wrong: bool

    def __str__(self) -> str:
        row, token = self.place
        told = "by another rule" if self.wrong else f"margin {self.margin:.1e}, noise {self.noise:.1e}"
        return f"{self.probe:8} {self.router} sends row {row}, token {token} elsewhere: {told}"


@contextlib.contextmanager
def routed(routers: Mapping[str, nn.Module], given: Mapping[str, Route] | None) -> Iterator[Routes]:
    """Within, for one call of the model: what each router gives by itself. given: the ways that tokens shall take."""
    seen: Routes = {}

    def watch(path: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(module: nn.Module, args: object, output: tuple[Tensor, ...] | Tensor) -> object:
            values = output if isinstance(output, tuple) else (output,)
            told = len(values) == 3 and not values[-1].is_floating_point()  # else the logits come last
            seen[path] = own = Route(*values) if told else Route(values[-1])
            other = (given or {}).get(path)
            return None if other is None or not elsewhere(own, other).any() else _sent(own, other)

        return module.register_forward_hook(hook)

    hooks = [watch(path, module) for path, module in routers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _sent(own: Route, other: Route) -> tuple[Tensor, ...]:
    """A router's output with the other's experts, and their weights, where they are not its own."""
    away_N1 = elsewhere(own, other)[:, None]
    both = ((own.weights, other.weights.to(own.weights.dtype)), (own.chosen, other.chosen))
    return own.logits, *(torch.where(away_N1, b, a) if a.shape == b.shape else b for a, b in both)


def elsewhere(one: Route, other: Route) -> Tensor:
    """Which tokens have other experts, [N]; none where either does not tell."""
    if one.chosen.shape != other.chosen.shape:
        return torch.full((len(one.logits),), bool(one.chosen.numel() and other.chosen.numel()))
    return (one.chosen.sort(-1).values != other.chosen.sort(-1).values).any(-1)


def logits(seen: Routes, probe: Probe) -> dict[tuple[str, str], Tensor]:
    """The logits of all routers as one result, [B, T, ΣE]; those of an encoder are of other tokens, and not in it."""
    shape, logits = probe.ids_BT.shape, [route.logits.double().cpu() for route in seen.values()]
    parts = [one.reshape(*shape, -1) for one in logits if one.numel() == shape.numel() * one.shape[-1]]
    return {(ROUTERS, probe.name): torch.cat(parts, -1)} if parts else {}


def flips(
    routers: Mapping[str, nn.Module], own: Mapping[str, Routes], given: Mapping[str, Routes], probes: Iterable[Probe]
) -> list[Flip]:
    """Where our routers choose otherwise, of the tokens that count: those by another rule first, then by margin."""
    found: list[Flip] = []
    for probe in probes:
        for path, mine in own.get(probe.name, {}).items():
            other = given.get(probe.name, {}).get(path)
            away_N = elsewhere(mine, other).cpu() if other else torch.zeros(0, dtype=torch.bool)
            if probe.keep_BT is not None and len(away_N) == probe.keep_BT.numel():
                away_N &= probe.keep_BT.flatten()
            if other and away_N.any():
                found += _flips(routers[path], path, mine, other, away_N, probe)
    return sorted(found, key=lambda flip: (not flip.wrong, -flip.margin))


def listed(away: Iterable[Flip]) -> list[str]:
    """The first of them as text."""
    return shown([str(flip) for flip in away], LISTED)


def _flips(router: nn.Module, path: str, own: Route, other: Route, away_N: Tensor, probe: Probe) -> Iterator[Flip]:
    ours_NE, theirs_NE = (_scores(router, route.logits).double().cpu() for route in (own, other))
    chosen_NK = other.chosen.cpu()
    experts, top_k = ours_NE.shape[-1], chosen_NK.shape[-1]
    rounding = torch.finfo(own.logits.dtype).eps * _largest(theirs_NE)
    noise = max(rounding, _largest(ours_NE - theirs_NE))
    short_N = theirs_NE.topk(top_k).values[:, -1] - theirs_NE.gather(-1, chosen_NK).amin(-1)
    best_Nx = ours_NE.topk(min(top_k + 1, experts)).values
    for token in away_N.nonzero()[:, 0].tolist():
        wrong = own.chosen.shape != other.chosen.shape or not short_N[token] <= noise
        place = divmod(token, probe.ids_BT.shape[1])
        yield Flip(path, probe.name, place, (best_Nx[token, top_k - 1] - best_Nx[token, -1]).item(), noise, wrong)


def _largest(x: Tensor) -> float:
    """Of the numbers that are finite: an expert of a closed group has none."""
    return max(x[x.isfinite()].abs().tolist(), default=0.0)


def _scores(router: nn.Module, logits_NE: Tensor) -> Tensor:
    """What a router of ours chooses by, given logits."""
    if not isinstance(router, Router):
        return logits_NE
    exact_NE = logits_NE if logits_NE.dtype == torch.float64 else logits_NE.float()
    return router._open(SCORES.get(router.spec.score, lambda plain_NE: plain_NE)(exact_NE))
