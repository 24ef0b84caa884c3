"""What a model does beyond one forward: padding, batches, prefixes, lengths, causality, greedy generation.

All in double precision, where equal means 1e-12. B batch, T tokens.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from lineage import components as c
from lineage import graph
from lineage.errors import UsageError
from lineage.modules.model import Model
from lineage.parity import reference
from lineage.parity.figures import distance
from lineage.parity.islands import lifted
from lineage.parity.levels import FP64_LIMIT
from lineage.parity.probes import ENDLESS, Probe, pad_token, sources, steady_length, tokens, usable_length
from lineage.parity.report import Level, passed
from lineage.parity.session import Session
from lineage.values import Value

FULL = (
    "have room for so many tokens of a row in one call, padding too: what a token gets depends on those before it, and "
    "decoding with a cache is another computation than the whole forwards that are compared"
)
LENGTH, NEW, PADS = 12, 8, 3  # tokens of a row, tokens generated, tokens of padding


class Finding(Value):
    """One question with its answer."""

    question: str
    good: bool
    figure: str


def behaviour(session: Session) -> Level:
    """The level: every question with its answer."""
    if steady_length(session.made.spec) < PADS + 2:
        return Level("behaviour", "skipped", "there are too few places to pad a row")
    ours, theirs = session.pair(torch.float64)
    found = list(_findings(session, ours, theirs))
    wrong = [f"{finding.question}: {finding.figure}" for finding in found if not finding.good]
    figures = tuple({"question": f.question, "holds": f.good, "figure": f.figure} for f in found)
    return passed("behaviour", not wrong, f"{len(found) - len(wrong)} of {len(found)} hold", wrong, figures=figures)


def _findings(session: Session, ours: Model, theirs: nn.Module) -> Iterator[Finding]:
    spec = session.made.spec
    length = min(LENGTH, steady_length(spec) - PADS)
    generator = torch.Generator().manual_seed(7)
    rows_BT = tokens(spec, 3, length, generator)
    source_BS = sources(spec, 3, length, generator)
    output = next(iter(session.reference.outputs))

    def on(probe: Probe, row: int = 0) -> Probe:
        """A call on these tokens, and on the source's rows from this one on."""
        if source_BS is None or probe.source_BS is not None:
            return probe
        return replace(probe, source_BS=source_BS[row : row + len(probe.ids_BT)])

    def own(probe: Probe, positions_BT: Tensor | None = None, row: int = 0) -> Tensor:
        with torch.no_grad():
            places = None if positions_BT is None else positions_BT.to(session.device)
            value: Tensor = getattr(ours(**on(probe, row).arguments(session.device), position_ids=places), output)
        return value.cpu()

    def its(probe: Probe, **options: bool) -> Tensor:
        with lifted():
            return reference.run(theirs, on(probe), session.reference, **options)[output]

    alone = torch.cat([own(Probe("row", row_T[None]), row=row) for row, row_T in enumerate(rows_BT)])
    yield _equal("rows do not depend on their batch", own(Probe("rows", rows_BT)), alone)
    if alone.dim() == 3:
        if source_BS is None:
            yield from _padding(own, rows_BT, alone, pad_token(spec))
        else:
            yield _padded_source(own, rows_BT, source_BS, alone, pad_token(spec.encoder or spec))
            apart = distance(its(Probe("rows", rows_BT), use_cache=True), its(Probe("rows", rows_BT)))
            if not apart <= FP64_LIMIT:
                session.faults.append(f"its forward as it is called by default, with a cache, is off by {apart:.1e}")
        yield _causality("ours", own, rows_BT, session.causal)
        finding = _causality("the reference", its, rows_BT, session.causal)
        if not finding.good:
            session.faults.append(f"its forward is {'not ' if session.causal else ''}causal")
        yield finding
    full = [node.path for node in graph.walk(spec) if isinstance(node.component, c.Router) and node.component.capacity]
    if full:
        session.notes.append(f"{len(full)} routers ({full[0]} …) {FULL}")
    if session.causal and output == "logits":
        steps = [own(Probe("prefix", rows_BT[:, :n]))[:, -1] for n in range(1, length + 1)]
        yield _equal("token by token equals the whole", torch.stack(steps, 1), alone)
        if length > NEW and hasattr(theirs, "generate"):
            yield _greedy(
                own,
                theirs,
                on(Probe("start", rows_BT[:1, : 1 if spec.encoder else length - NEW])).arguments(),
                session.faults,
                not full,
            )
    if usable_length(spec) < ENDLESS:
        yield _too_long(own, tokens(spec, 1, usable_length(spec) + 1, torch.Generator().manual_seed(8)))


def _equal(question: str, have: Tensor, want: Tensor) -> Finding:
    apart = distance(have, want)
    return Finding(question, apart <= FP64_LIMIT, f"off by {apart:.1e}")


def _padding(own: Callable[..., Tensor], rows_BT: Tensor, alone: Tensor, pad: int | None) -> Iterator[Finding]:
    """Each row with some tokens of padding on either side, against the row alone."""
    rows, length = rows_BT.shape
    filler = torch.full((rows, PADS), 0 if pad is None else pad)
    real, none = torch.ones(rows, length, dtype=torch.bool), torch.zeros(rows, PADS, dtype=torch.bool)
    right = Probe("right", torch.cat([rows_BT, filler], 1), torch.cat([real, none], 1))
    left = Probe("left", torch.cat([filler, rows_BT], 1), torch.cat([none, real], 1))
    counted_BT = (left.arguments()["attention_mask"].cumsum(1) - 1).clamp(min=0)
    yield _equal("padding on the right changes nothing", own(right)[:, :length], alone)
    yield _equal(
        "padding on the left changes nothing", own(left, None if pad is not None else counted_BT)[:, PADS:], alone
    )


def _padded_source(
    own: Callable[..., Tensor], rows_BT: Tensor, source_BS: Tensor, alone: Tensor, pad: int | None
) -> Finding:
    """The encoder's rows with padding behind, against those without."""
    filler = torch.full((len(source_BS), PADS), 0 if pad is None else pad)
    keep_BS = torch.cat([torch.ones_like(source_BS), torch.zeros_like(filler)], 1).bool()
    probe = Probe("padded", rows_BT, source_BS=torch.cat([source_BS, filler], 1), source_keep_BS=keep_BS)
    return _equal("padding of the source changes nothing", own(probe), alone)


def _causality(side: str, run: Callable[[Probe], Tensor], rows_BT: Tensor, causal: bool) -> Finding:
    """Another last token must leave earlier results alone if the model is causal, and change them if it is not."""
    other_BT = rows_BT.clone()
    other_BT[:, -1] = rows_BT[:, 0]
    other_BT[:, -1] = torch.where(other_BT[:, -1] == rows_BT[:, -1], rows_BT[:, 1], other_BT[:, -1])
    probe = Probe("rows", rows_BT)
    apart = distance(run(replace(probe, ids_BT=other_BT))[:, :-1], run(probe)[:, :-1])
    return Finding(
        f"{side}: {'no' if causal else 'each'} token sees later ones", (apart <= FP64_LIMIT) is causal, f"{apart:.1e}"
    )


def _generated(theirs: nn.Module, given: Mapping[str, Tensor], faults: list[str], cached: bool) -> Tensor:
    """What the reference generates: with its cache, or without one where it fails with it."""
    try:
        found: Tensor = theirs.generate(**given, use_cache=cached)  # type: ignore[operator]
    except IndexError as error:
        faults.append(f"it cannot generate with its cache ({error}); it did without one")
        found = theirs.generate(**given, use_cache=False)  # type: ignore[operator]
    return found.cpu()


def _greedy(
    own: Callable[..., Tensor], theirs: nn.Module, given: Mapping[str, Tensor], faults: list[str], cached: bool
) -> Finding:
    """The likeliest next token, time after time: ours by whole forwards, the reference's by its own cache.

    cached: whether it may use one.
    """
    from transformers import GenerationConfig

    start_BT = ids_BT = given.get("decoder_input_ids", given["input_ids"])
    for _ in range(NEW):
        ids_BT = torch.cat([ids_BT, own(Probe("greedy", ids_BT))[:, -1:].argmax(-1)], 1)
    usual, theirs.generation_config = (
        theirs.generation_config,
        GenerationConfig(do_sample=False, max_new_tokens=NEW, decoder_start_token_id=int(start_BT[0, 0])),
    )
    try:
        with reference.quiet(), lifted():
            mask_BS = torch.ones_like(given["input_ids"])
            device = next(theirs.parameters()).device
            put = {name: value.to(device) for name, value in {**given, "attention_mask": mask_BS}.items()}
            want_BT = _generated(theirs, put, faults, cached)
    finally:
        theirs.generation_config = usual
    same = want_BT.shape[1] > start_BT.shape[1] and torch.equal(ids_BT[:, : want_BT.shape[1]], want_BT)
    asked = f"{NEW} greedy tokens are the reference's" + ("" if cached else ", without its cache")
    return Finding(asked, same, f"{ids_BT.tolist()} against {want_BT.tolist()}")


def _too_long(own: Callable[[Probe], Tensor], ids_BT: Tensor) -> Finding:
    try:
        own(Probe("too long", ids_BT))
    except UsageError:
        return Finding("one token too many is refused", True, "")
    return Finding("one token too many is refused", False, f"{ids_BT.shape[1]} tokens were taken")
