"""A new token's products: which of them another kernel takes, and that it gives the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lineage import components as c
from lineage.modules import linear
from lineage.modules.attention import Attention
from lineage.modules.cache import Cache
from lineage.modules.fusing import FUSIONS, fuse, part
from lineage.modules.linear import FEW, LARGE, TALL, Linear
from lineage.modules.registry import make
from tests.test_generation import model_of

WIDE, HIGH = 512, LARGE // 512


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def taken(monkeypatch, threads):
    """The shapes of the matrices that the other kernel was given."""
    shapes, kernel = [], linear._kernel()
    if kernel is None:
        pytest.skip("this build of torch has no oneDNN")

    def noted(x, weight, *rest):
        shapes.append(tuple(weight.shape))
        return kernel(x, weight, *rest)

    monkeypatch.setattr(linear, "_kernel", lambda: noted)
    return shapes


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


def near(found, want):
    return bool((found - want).abs().max() <= 1e-5 * want.abs().max())


@pytest.mark.parametrize("texts", [1, 3, FEW])
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased"])
def test_a_new_token_is_taken_and_gives_the_same(texts, turned, bias, taken):
    module = Linear(WIDE, HIGH, bias=bias)
    if turned:
        module.weight = nn.Parameter(module.weight.detach().T.contiguous().T)
    x = numbers(texts, 3, WIDE)[:, -1:]
    with torch.no_grad():
        found = module(x)
        want = F.linear(x.double(), module.weight.double(), None if module.bias is None else module.bias.double())
    assert taken == [(HIGH, WIDE)]
    assert found.shape == (texts, 1, HIGH)
    assert near(found, want)


def test_a_new_token_is_taken_in_inference_mode(taken):
    with torch.inference_mode():
        linear.linear(numbers(1, 1, WIDE), numbers(HIGH, WIDE))
    assert taken


LEFT = {
    "several tokens": lambda: linear.linear(numbers(1, 2, WIDE), numbers(HIGH, WIDE)),
    "many texts": lambda: linear.linear(numbers(FEW + 1, 1, WIDE), numbers(HIGH, WIDE)),
    "a small matrix": lambda: linear.linear(numbers(1, 1, WIDE), numbers(HIGH - 1, WIDE)),
    "no texts": lambda: linear.linear(numbers(2, WIDE), numbers(HIGH, WIDE)),
    "a part of a matrix": lambda: linear.linear(numbers(1, 1, WIDE), numbers(WIDE, 2 * HIGH)[:, HIGH:].T),
    "some columns": lambda: linear.linear(numbers(1, 1, WIDE), numbers(HIGH, 2 * WIDE)[:, :WIDE]),
    "double": lambda: linear.linear(numbers(1, 1, WIDE).double(), numbers(HIGH, WIDE).double()),
    "bf16": lambda: linear.linear(numbers(1, 1, WIDE).bfloat16(), numbers(HIGH, WIDE).bfloat16()),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_to_the_usual_kernel(case, taken):
    with torch.no_grad():
        LEFT[case]()
    assert not taken


def test_gradients_and_autocast_are_left_to_the_usual_kernel(taken):
    module = Linear(WIDE, HIGH)
    module(numbers(1, 1, WIDE)).sum().backward()
    assert module.weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(numbers(1, 1, WIDE)).dtype == torch.bfloat16
    assert not taken


def test_one_thread_gives_away_tall_matrices_alone(taken):
    torch.set_num_threads(1)
    low, tall = numbers(4 * WIDE, WIDE), numbers(TALL * WIDE, WIDE)
    with torch.no_grad():
        linear.linear(numbers(1, 1, WIDE), low)
        found = linear.linear(numbers(1, 1, WIDE), tall)
    assert taken == [tuple(tall.shape)]
    assert near(found, F.linear(numbers(1, 1, WIDE), tall))


def broken(*_):
    raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize("kernel", [broken, lambda x, weight, *rest: F.linear(x, weight)], ids=["fails", "wrong"])
def test_a_kernel_that_is_not_what_it_was_is_not_used(kernel, monkeypatch, threads):
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", kernel)
    assert linear._kernel.__wrapped__() is None
    monkeypatch.setattr(linear, "_kernel", lambda: None)
    x, weight = numbers(1, 1, WIDE), numbers(HIGH, WIDE)
    with torch.no_grad():
        assert torch.equal(linear.linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("texts", [1, 5])
def test_new_tokens_go_through_their_experts_alone(texts, biased, taken):
    router = c.Router(experts=4, top_k=2, score="softmax", normalise="sum")
    spec = c.Experts(router=router, width=HIGH, activation="silu", gated=True, bias=biased)
    module = make(spec, WIDE)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.05)
        x = numbers(texts, 1, WIDE)
        found, want = module(x), module.double()(x.double())
    assert set(taken) == {(HIGH, WIDE), (WIDE, HIGH)}
    assert near(found, want)


WIDTHS = {
    "gpt2": {"width": 1024, "heads": 8, "vocab": 1100},
    "llama": {"width": 1024, "heads": 8, "kv_heads": 8, "mlp_width": 1100, "vocab": 1100},
    "mixtral": {"width": 1024, "heads": 8, "kv_heads": 8, "mlp_width": 1100, "vocab": 1100},
}


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("kind", WIDTHS)
def test_what_is_decoded_is_what_the_whole_gives(kind, fused, taken):
    model = model_of(kind, layers=2, **WIDTHS[kind]).float()
    model = fuse(model) if fused else model
    ids = torch.randint(5, 1000, (2, 9), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        want, cache = model(ids).logits, Cache(model.spec, 16)
        assert not taken
        found = [model(piece, cache=cache, last=1).logits for piece in ids.split([6, 1, 1, 1], 1)]
    assert (torch.cat(found, 1) - want[:, 5:]).abs().max() <= 2e-4 * want.abs().max()
    assert len(taken) >= 3 * (2 * 2 + 1)  # of each new token at least the networks' and the head's


def test_what_lies_turned_is_fused_turned_and_parted_in_order():
    model = model_of("llama", width=64, heads=2, kv_heads=2).float()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    attention = model.blocks[0].attention.body
    for name in FUSIONS[Attention].parts:
        one = getattr(attention, name)
        one.weight = nn.Parameter(one.weight.detach().T.contiguous().T, False)
    fuse(model)
    assert attention.qkv.weight.T.is_contiguous()
    assert model.blocks[1].attention.body.qkv.weight.is_contiguous()
    part(model)
    after = dict(model.named_parameters())
    assert all(
        torch.equal(after[name], parameter) and after[name].is_contiguous() for name, parameter in before.items()
    )


def test_a_bias_that_is_no_row_of_numbers_is_left_to_the_usual_kernel(taken):
    x, weight = numbers(1, 1, WIDE), numbers(HIGH, WIDE)
    for bias in (numbers(2 * HIGH)[::2], torch.ones(1).expand(HIGH)):
        with torch.no_grad():
            assert torch.equal(linear.linear(x, weight, bias), F.linear(x, weight, bias))
    assert not taken


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about its own flags
def test_who_switches_the_library_off_is_heard(taken):
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        linear.linear(numbers(1, 1, WIDE), numbers(HIGH, WIDE))
    assert not taken


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own way to tangents
def test_tangents_are_left_to_the_usual_kernel(taken):
    x, module = numbers(1, 1, WIDE), Linear(WIDE, HIGH)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(module(dual)).tangent is not None
    assert not taken
