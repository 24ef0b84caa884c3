"""Both sides of a comparison, loaded once a dtype, and what they give on the probes."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lineage import components as c
from lineage import graph
from lineage.checkpoint.files import available_memory
from lineage.config import Island, brief
from lineage.modules.model import Model
from lineage.parity import reference
from lineage.parity.activations import pairs, spellings
from lineage.parity.figures import Figures, compare
from lineage.parity.probes import Probe, reads_padding
from lineage.parity.repairs import FORGETFUL
from lineage.parity.routes import Routes, logits, routed
from lineage.parity.subject import Subject
from lineage.plan import HEAD

FP64_WORK = 2e10  # parameters x tokens beyond which a probe is not run in double precision
SLOW_WORK = 3e8  # the same for bf16, which has no fast matrix product on most CPUs
Results = dict[tuple[str, str], Tensor]


@dataclass
class Session:
    """A subject, its reference's material, and the probes. notes: for the report. faults: of the reference.

    against: another checkpoint, whose numbers the reference was given in place of the subject's own. device: where
    the models run; results are brought back to the CPU.
    """

    made: Subject
    material: reference.Material
    probes: tuple[Probe, ...]
    rtol: float | None = None
    against: Subject | None = None
    device: str = "cpu"
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    exact: Results = field(default_factory=dict)
    exact_routes: dict[str, Routes] = field(default_factory=dict)
    _pair: tuple[torch.dtype, Model, nn.Module] | None = None

    def __post_init__(self) -> None:
        self.reference = reference.choose(self.made.dialect, self.made.spec)
        self.notes += self.material.notes
        heads = [name for name, why in self.made.dropped.items() if why == HEAD]
        self.notes += [f"{len(heads)} tensors of heads were dropped as asked: {', '.join(heads)}"] * bool(heads)
        said = self.material.said()
        self.repairs = {key: value for e in self.made.dialect.config for key, value in e.repaired(said).items()}
        self.faults += [
            f"it misreads {key} = {brief(_apart(said.get(key), told))}; "
            f"compared as if it were {brief(_apart(told, said.get(key)))}"
            for key, told in self.repairs.items()
        ]
        kinds = {type(node.component).__name__ for node in graph.walk(self.made.spec)}
        self.fault = next((fault for fault in self.made.dialect.faults if fault.component in kinds), None)
        self.attention = "sdpa" if self.fault and self.fault.attention == "eager" else "eager"
        self.faults += [FORGETFUL] * (bool(self.reference.deaf) and "LongRope" in kinds)
        if self.fault:
            wrong = f"its {self.fault.attention} attention {self.fault.why}"
            self.notes.append(f"compared with the reference's {self.attention} attention: {wrong}")
        self.parameters = graph.parameters(self.made.spec)
        if any(isinstance(node.component, c.Dynamic) for node in graph.walk(self.made.spec)):
            self.faults.append("its dynamic angles stay those of the longest call; compared with that forgotten")
        if reads_padding(self.made.spec):
            self.notes.append("it reads a text's first token, padding or not: no row padded on the left is compared")
        outputs = self.reference.outputs
        seen = {"head": "logits" in outputs, "next_sentence": "next_sentence" in outputs}
        seen["classifier"] = "scores" in outputs
        scored = self.made.spec.classifier if seen["classifier"] else None
        seen["pooler"] = "pooled" in outputs or seen["next_sentence"] or bool(scored and scored.reads == "pooled")
        for part, compared in seen.items():
            if getattr(self.made.spec, part) is not None and not compared:
                self.notes.append(f"{self.reference.name} has no {part}: its bytes are compared, its result is not")

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        bodies = [block.attention.body for block in self.made.spec.blocks]
        attending = (c.Attention, c.LatentAttention)
        return all(isinstance(b, attending) and isinstance(b.mask, c.Causal | c.Chunked) for b in bodies)

    def pair(self, dtype: torch.dtype) -> tuple[Model, nn.Module]:
        """Ours and the reference in a dtype, eager unless that is wrong; those of the last dtype are let go."""
        if self._pair is None or self._pair[0] != dtype:
            self._pair = None
            self._pair = (dtype, self.made.make(dtype).to(self.device), self.load(dtype, self.attention))
        return self._pair[1:]

    def load(self, dtype: torch.dtype, attention: str) -> nn.Module:
        """The reference alone."""
        double = dtype == torch.float64
        islands = {e.key: e.off for e in self.made.dialect.config if double and isinstance(e, Island)}
        loaded = reference.load(self.reference, self.material, dtype, attention, islands, self.repairs)
        return loaded.to(self.device)

    def fits(self, width: int) -> bool:
        """Whether both sides fit into memory with numbers of this many bytes."""
        return self.parameters * width * 2 <= self.free()

    def free(self) -> float:
        """Bytes that are free: in memory, through which all weights go, and on the device."""
        there = torch.cuda.mem_get_info(self.device)[0] if self.device != "cpu" else float("inf")
        return min(available_memory(), there)

    def small(self, work: float = FP64_WORK) -> list[Probe]:
        """The probes that are not too much work for a slow type."""
        return [probe for probe in self.probes if self.parameters * probe.ids_BT.numel() <= work]

    def theirs(
        self, model: nn.Module, probes: Sequence[Probe], given: Mapping[str, Routes] | None = None
    ) -> tuple[Results, dict[str, Routes]]:
        """The reference's results, those of its routers first; and what these gave. given: ways for tokens to take."""

        def run(probe: Probe) -> Mapping[str, Tensor]:
            return reference.run(model, probe, self.reference)

        return self._all(model, probes, given, run)

    def ours(
        self, model: Model, probes: Sequence[Probe], given: Mapping[str, Routes] | None = None
    ) -> tuple[Results, dict[str, Routes]]:
        """The same of ours."""

        def run(probe: Probe) -> Mapping[str, Tensor]:
            with torch.no_grad():
                outputs = model(**probe.arguments(self.device))
            return {output: getattr(outputs, output).cpu() for output in self.reference.outputs}

        return self._all(model, probes, given, run)

    def _all(
        self, model: nn.Module, probes: Sequence[Probe], given: Mapping[str, Routes] | None,
        run: Callable[[Probe], Mapping[str, Tensor]],
    ) -> tuple[Results, dict[str, Routes]]:  # fmt: skip
        found: Results = {}
        routes: dict[str, Routes] = {}
        routers = self.routers(model)
        for probe in probes:
            with routed(routers, (given or {}).get(probe.name)) as routes[probe.name]:
                results = run(probe)
            found |= logits(routes[probe.name], probe)
            found |= {(output, probe.name): value for output, value in results.items()}
        return found, routes

    def routers(self, model: nn.Module) -> dict[str, nn.Module]:
        """The routers of ours or of the reference, by our paths."""
        made, held = self.made, dict(model.named_modules())
        paths = [node.path for node in graph.walk(made.spec) if isinstance(node.component, c.Router)]
        if isinstance(model, Model) or not paths:
            return {path: held[path] for path in paths if path in held}
        prefix = getattr(model, "base_model_prefix", "")
        mapping = pairs(made.dialect, made.memory, made.base, paths)
        return {pair.ours: held[n] for pair in mapping for n in spellings(pair.theirs, prefix) if n in held}

    def compare(self, ours: Results, theirs: Results) -> list[Figures]:
        """Every result that both have."""
        probes = {probe.name: probe for probe in self.probes}
        return [compare(o, p, ours[o, p], theirs[o, p], probes[p].keep_BT) for o, p in theirs if (o, p) in ours]


def _apart(value: Any, other: Any) -> Any:
    """Of two objects what this one alone says; of anything else all."""
    both = isinstance(value, dict) and isinstance(other, dict)
    return {k: v for k, v in value.items() if k not in other or other[k] != v} if both else value


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with another number of threads: the same sums in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
