"""The compiler takes a model whole, once for prompts and once for single tokens, and changes no result."""

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from lineage import catalog
from lineage.modules.cache import Cache
from lineage.modules.model import Model, build
from lineage.parity.tiny import spread, tiny

ROOM, LENGTHS = 80, range(20, 70)  # past every window: before it and after it are two graphs
NEAR = 2e-5  # of the largest logit: what single precision leaves open


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def made(kind: str, **arguments: object) -> Model:
    _, dialect, chosen = tiny(kind, **arguments)
    spec = catalog.families()[dialect.spec].function(**chosen)
    model = build(spec, "cpu")
    model.load_state_dict(spread(spec))
    return model.requires_grad_(False)


def ids_of(length: int) -> Tensor:
    ids = torch.randint(5, 90, (2, length), generator=torch.Generator().manual_seed(length))
    torch._dynamo.mark_dynamic(ids, 1)
    return ids


def close(found: Tensor, want: Tensor) -> bool:
    return bool((found - want).abs().max() <= NEAR * want.abs().max())


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gemma2"])
def test_one_graph_for_prompts_and_one_for_tokens(kind: str) -> None:
    model, counter = made(kind), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in LENGTHS:
        fixed, growing = Cache(model.spec, ROOM, fixed=True), Cache(model.spec, ROOM)
        prompt = ids_of(length)
        assert close(compiled(prompt, cache=fixed, last=1).logits, model(prompt, cache=growing, last=1).logits)
        assert counter.frame_count == (1 if length == LENGTHS[0] else 2)
        for token in ([7], [8]), ([9], [10]):
            new = torch.tensor(token)
            assert close(compiled(new, cache=fixed, last=1).logits, model(new, cache=growing, last=1).logits)
    assert counter.frame_count == 2


@pytest.mark.parametrize("kind", ["gpt2", "mistral", "bloom"])
def test_a_prompt_in_two_pieces(kind: str) -> None:
    model = made(kind)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length in (24, 30):
        fixed, growing = Cache(model.spec, ROOM, fixed=True), Cache(model.spec, ROOM)
        for piece in (ids_of(length), ids_of(length - 7)):
            assert close(compiled(piece, cache=fixed, last=2).logits, model(piece, cache=growing, last=2).logits)


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_gradients_go_through_a_compiled_graph(kind: str) -> None:
    model, ids = made(kind).requires_grad_(), ids_of(12)
    found = {}
    for name, run in {"as it is": model, "compiled": torch.compile(model, fullgraph=True, backend="aot_eager")}.items():
        model.zero_grad()
        run(ids).logits.square().mean().backward()
        found[name] = {path: parameter.grad.clone() for path, parameter in model.named_parameters()}
    for path, want in found["as it is"].items():
        assert (found["compiled"][path] - want).abs().max() <= 1e-4 * want.abs().max() + 1e-9, path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's CPU code needs g++")
def test_compiled_code_gives_the_same() -> None:
    model = made("mixtral")
    compiled = torch.compile(model, fullgraph=True)
    fixed, growing, prompt = (
        Cache(model.spec, ROOM, fixed=True).reserve(2, model.table),
        Cache(model.spec, ROOM),
        ids_of(9),
    )
    assert close(compiled(prompt, cache=fixed, last=1).logits, model(prompt, cache=growing, last=1).logits)
    for _ in range(3):
        new = torch.tensor([[7], [8]])
        assert close(compiled(new, cache=fixed, last=1).logits, model(new, cache=growing, last=1).logits)
