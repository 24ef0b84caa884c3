"""The cache and generation: what is kept gives what a whole forward gives, and the tokens are the reference's."""

import json
import warnings
from pathlib import Path

import pytest
import torch

import lineage
from lineage import catalog, graph
from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.beams import beam_search
from lineage.modules.cache import Cache
from lineage.modules.constraints import Constraints
from lineage.modules.generation import Choice, check_generates, generate
from lineage.modules.model import Model, build
from lineage.parity.tiny import spread, tiny, write_tiny
from tests.handmade import main
from tests.published import JUDGED

LENGTH, NEW = 20, 12
CUTS = {"prompt, then one by one": [9] + [1] * 11, "one by one": [1] * 20, "pieces": [5, 1, 7, 1, 6], "whole": [20]}


def spec_of(kind: str, **arguments: object) -> c.Model:
    _, dialect, chosen = tiny(kind, **arguments)
    return catalog.families()[dialect.spec].function(**chosen)


def generates(kind: str) -> bool:
    try:
        check_generates(spec_of(kind))
    except UsageError:
        return False
    return True


def crowded(kind: str) -> bool:
    """Whether a token's result hangs on the other tokens of its call: experts that take only so many of them."""
    routers = (node.component for node in graph.walk(spec_of(kind)) if isinstance(node.component, c.Router))
    return any(router.capacity is not None for router in routers)


KINDS = sorted(kind for kind in JUDGED if generates(kind) and not crowded(kind))


def model_of(kind: str, **arguments: object) -> Model:
    spec = spec_of(kind, **arguments)
    model = build(spec, "cpu", torch.float64)
    model.load_state_dict({name: tensor.double() for name, tensor in spread(spec).items()})
    return model


def given(model: Model, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    if model.spec.encoder is None:
        return {"input_ids": ids}
    return {"input_ids": torch.arange(7, 14).expand(len(ids), 7), "decoder_input_ids": ids}


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_gives_what_the_whole_gives(kind: str, fixed: bool) -> None:
    model = model_of(kind)
    ids = torch.randint(5, model.spec.embed.vocab, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(**given(model, ids)).logits
        for cuts in CUTS.values():
            cache = Cache(model.spec, 64, fixed)
            pieces = [model(**given(model, piece), cache=cache).logits for piece in ids.split(cuts, 1)]
            assert (torch.cat(pieces, 1) - want).abs().max() <= 1e-11 * want.abs().max()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if spec_of(kind).encoder is None])
def test_rows_padded_on_the_left(kind: str) -> None:
    model = model_of(kind)
    ids = torch.randint(5, model.spec.embed.vocab, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    keep = torch.ones_like(ids)
    keep[0, :6] = 0
    places = (keep.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        want = model(ids, keep, places).logits
        cache, at, pieces = Cache(model.spec, 64), 0, []
        for count in [9] + [1] * 11:
            now = slice(at, at + count)
            pieces.append(model(ids[:, now], keep[:, : at + count], places[:, now], cache=cache).logits)
            at += count
    apart = (torch.cat(pieces, 1) - want)[keep.bool()].abs().max()
    assert apart <= 1e-11 * want.abs().max()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_block_computes_what_is_asked_for(kind: str, padded: bool, attention: str) -> None:
    model = model_of(kind)
    model.attention = attention
    ids = torch.randint(5, model.spec.embed.vocab, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    keep = torch.ones_like(ids)
    keep[0, :6] = 0 if padded and model.spec.encoder is None else 1
    ran: list[int] = []
    depth = model.spec.order or range(len(model.blocks))
    model.blocks[depth[-1]].mlp.body.register_forward_pre_hook(lambda _, given: ran.append(given[0].shape[-2]))
    told = {"attention_mask": keep} if padded and model.spec.encoder is None else {}
    with torch.no_grad():
        want = model(**given(model, ids), **told).logits
        for last, fixed in ((1, False), (3, True), (1, True), (3, False)):
            cache, at = Cache(model.spec, 64, fixed), 0
            for piece in ids.split([9, 6, 4, 1], 1):
                at += piece.shape[1]
                told = {name: mask[:, :at] for name, mask in told.items()}
                logits = model(**given(model, piece), **told, cache=cache, last=last).logits
                asked = min(last, piece.shape[1])
                assert ran[-1] == asked
                assert (logits - want[:, at - asked : at]).abs().max() <= 1e-11 * want.abs().max()
                told = dict.fromkeys(told, keep)


@pytest.mark.parametrize("kind", ["deberta-v2", "bert", "albert", "modernbert"])
def test_encoders_too_compute_what_is_asked_for(kind: str) -> None:
    model = model_of(kind)
    ids = torch.randint(5, model.spec.embed.vocab, (2, LENGTH), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        want = model(ids).hidden
        for last in (1, 3):
            found = model(ids, cache=Cache(model.spec, 64), last=last).hidden
            assert (found - want[:, -last:]).abs().max() <= 1e-11 * want.abs().max()


class Halved(torch.nn.Module):
    """Attention of somebody's own, which knows nothing of what is asked for."""

    def forward(self, x_BTD: torch.Tensor, context: object) -> torch.Tensor:
        return x_BTD * 0.5


@pytest.mark.parametrize("last", [1, 3])
def test_a_body_of_ones_own_may_compute_all(last: int) -> None:
    model = model_of("llama")
    model.blocks[-1].attention.body = Halved()
    ids = torch.randint(5, model.spec.embed.vocab, (2, LENGTH), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        want = model(ids).logits[:, -last:]
        found = model(ids, cache=Cache(model.spec, 64), last=last).logits
    assert (found - want).abs().max() <= 1e-11 * want.abs().max()


@pytest.mark.parametrize("last", [0, -1])
def test_no_position_is_asked_for(last: int) -> None:
    model = model_of("llama")
    with pytest.raises(UsageError, match=f"last is {last}"):
        model(torch.arange(5, 9)[None], last=last)


def test_experts_that_take_so_many_of_a_text_see_all_of_it() -> None:
    kind = next(kind for kind in JUDGED if generates(kind) and crowded(kind))
    model = model_of(kind)
    ids = torch.randint(5, model.spec.embed.vocab, (4, LENGTH), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        want = model(**given(model, ids)).logits[:, -1:]
        logits = model(**given(model, ids), cache=Cache(model.spec, 64), last=1).logits
    assert (logits - want).abs().max() <= 1e-11 * want.abs().max()


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_a_window_bounds_what_is_kept(fixed: bool) -> None:
    window = 7
    model = model_of("mistral", window=window)
    cache = Cache(model.spec, 1000, fixed)
    with torch.no_grad():
        for piece in torch.randint(5, 90, (1, 4 * window)).split(3, 1):
            model(piece, cache=cache)
    body = model.spec.blocks[0].attention.body
    assert cache.size == len(model.spec.blocks) * 2 * body.kv_heads * body.head_width * window * 8


def test_latent_attention_keeps_its_latent() -> None:
    model = model_of("deepseek_v3")
    cache = Cache(model.spec, 40, fixed=True)
    with torch.no_grad():
        model(torch.randint(5, 90, (1, 8)), cache=cache)
    body = model.spec.blocks[0].attention.body
    assert cache.size == len(model.spec.blocks) * (body.latent + body.rotary.width) * 40 * 8


def test_no_room_left() -> None:
    model = model_of("llama")
    cache = Cache(model.spec, 10)
    with torch.no_grad():
        model(torch.randint(5, 90, (1, 8)), cache=cache)
        with pytest.raises(UsageError, match="holds 10 tokens, and 11"):
            model(torch.randint(5, 90, (1, 3)), cache=cache)


CHOICES = {
    "greedy": (Choice(), {"do_sample": False}),
    "repetition": (Choice(repetition=1.3), {"do_sample": False, "repetition_penalty": 1.3}),
    "drawn": (
        Choice(temperature=0.8, top_k=20, top_p=0.9, seed=3),
        {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    ),
    "drawn from all": (Choice(temperature=1.3, seed=3), {"do_sample": True, "temperature": 1.3, "top_k": 0}),
}


@pytest.mark.parametrize("kind", ["gpt2", "mistral", "gemma2", "mixtral", "opt", "bloom", "deepseek_v3"])
def test_tokens_are_the_references(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig, set_seed

    ours = lineage.from_pretrained(write_tiny(kind, tmp_path), dtype="fp32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=torch.float32, experts_implementation="eager"
        ).eval()
    ids = torch.randint(5, 90, (3, 10), generator=torch.Generator().manual_seed(4))
    keep = torch.ones_like(ids)
    keep[0, :4] = keep[1, :2] = 0
    ids = ids * keep
    for choice, options in CHOICES.values():
        theirs.generation_config = GenerationConfig(max_new_tokens=NEW, pad_token_id=0, **options)
        set_seed(3)
        want = theirs.generate(ids, attention_mask=keep)
        assert torch.equal(generate(ours, ids, keep, tokens=NEW, choice=choice), want)


def test_a_row_that_stopped_is_filled() -> None:
    model = model_of("llama")
    ids = torch.randint(5, 90, (2, 4), generator=torch.Generator().manual_seed(5))
    free = generate(model, ids, tokens=NEW)
    stop = int(free[0, 6])
    rows = generate(model, ids, tokens=NEW, stop=[stop], fill=3)
    at = free[0, 4:].tolist().index(stop) + 4
    assert rows[0, : at + 1].tolist() == free[0, : at + 1].tolist()
    assert set(rows[0, at + 1 :].tolist()) <= {3}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"top_p": 1.5, "temperature": 1.0}, "top_p"),
        ({"top_k": 3}, "temperature"),
        ({"repetition": -1.0}, "repetition"),
    ],
)
def test_a_choice_that_cannot_be(values: dict[str, float], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        Choice(**values)


def test_a_model_that_does_not_generate() -> None:
    with pytest.raises(UsageError, match="does not generate"):
        generate(build(spec_of("bert"), "cpu"), torch.zeros(1, 3, dtype=torch.long), tokens=2)


ADDITION = Path(__file__).parents[1] / "examples" / "addition" / "model"


def test_command_goes_on_from_text_and_from_ids() -> None:
    assert main("generate", ADDITION, "123+456=").out.strip().startswith("0579")
    outcome = main("generate", ADDITION, "[1, 2, 3, 10, 4, 5, 6, 11]", "--json", "--tokens", "4")
    assert json.loads(outcome.out)["tokens"] == [0, 5, 7, 9]


@pytest.mark.parametrize("prompt", ["no such letters", "[1, 99]", "[]", "[-1]", ""])
def test_command_refuses_a_prompt(prompt: str) -> None:
    outcome = main("generate", ADDITION, prompt)
    assert (outcome.code, outcome.out) == (2, "")
    assert "prompt" in outcome.err


ENDS = [7, 8, 9, 10, 11, 12]
SEARCHES: dict[str, tuple[dict, dict]] = {
    "greedy": ({}, {}),
    "4 beams": ({"beams": 4}, {"num_beams": 4}),
    "3 beams, longer texts": ({"beams": 3, "penalty": 2.0}, {"num_beams": 3, "length_penalty": 2.0}),
    "4 beams, until there are 4": ({"beams": 4, "early": True}, {"num_beams": 4, "early_stopping": True}),
}
ASKED = {
    "forced_bos_token_id": 21,
    "forced_eos_token_id": 7,
    "bad_words_ids": [[22], [23]],
    "begin_suppress_tokens": [24],
    "no_repeat_ngram_size": 2,
}


@pytest.mark.parametrize("asked", [{}, ASKED], ids=["free", "constrained"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if spec_of(kind).encoder is not None])
def test_targets_are_the_references(kind: str, asked: dict, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, GenerationConfig

    ours = lineage.from_pretrained(write_tiny(kind, tmp_path), dtype="fp32")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    pad = ours.spec.encoder.embed.padding or 0
    draw, start = torch.Generator().manual_seed(6), torch.full((50, 1), 4)
    source = torch.randint(13, 80, (50, 8), generator=draw)
    keep = torch.ones_like(source)
    keep[::2, 6:] = 0
    source = torch.where(keep.bool(), source, pad)
    fixed = {"tokens": 15, "stop": ENDS, "fill": 3, "constraints": Constraints.of(asked)}
    usual = {"max_new_tokens": 15, "pad_token_id": 3, "eos_token_id": ENDS, "decoder_start_token_id": 4}
    usual["use_cache"] = not kind.endswith("t5")  # whose cache fails where the decoder is deeper than the encoder
    for mine, its in SEARCHES.values():
        theirs.generation_config = GenerationConfig(do_sample=False, **usual, **asked, **its)
        want = theirs.generate(source, attention_mask=keep)
        run = beam_search if mine else generate
        assert torch.equal(run(ours, source, keep, start=start, **fixed, **mine), want)


def test_beams_of_a_decoder(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    ours = lineage.from_pretrained(write_tiny("llama", tmp_path), dtype="fp32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.randint(13, 90, (20, 6), generator=torch.Generator().manual_seed(7))
    keep = torch.ones_like(ids)
    keep[::2, :2] = 0
    theirs.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=10, pad_token_id=3, eos_token_id=ENDS, num_beams=4
    )
    want = theirs.generate(ids, attention_mask=keep)
    assert torch.equal(beam_search(ours, ids, keep, beams=4, tokens=10, stop=ENDS, fill=3), want)


def test_what_a_generation_config_asks_for_and_is_not_understood() -> None:
    with pytest.raises(UsageError, match="sequence_bias"):
        Constraints.of({"sequence_bias": [[[3], 1.0]]})
    with pytest.raises(UsageError, match="bad_words_ids"):
        Constraints.of({"bad_words_ids": [[3, 4]]})


def test_no_more_tokens_than_places() -> None:
    model = model_of("gpt2")
    places = model.spec.embed.positions.reach
    ids = torch.arange(5, 5 + 8)[None]
    made = model.generate(ids, tokens=places)
    assert made.shape == (1, places + 1)  # the last one is read by nobody
    assert torch.equal(made, model.generate(ids, tokens=places + 1 - 8))
    with pytest.raises(UsageError, match=f"{places + 1} tokens"):
        model.generate(torch.full((1, places + 1), 5), tokens=1)


def test_padding_stands_on_the_left() -> None:
    model = model_of("gpt2")
    with pytest.raises(UsageError, match="ends in padding"):
        model.generate(torch.arange(5, 9)[None], torch.tensor([[1, 1, 1, 0]]), tokens=2)
