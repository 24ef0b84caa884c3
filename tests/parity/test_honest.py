"""No false alarm: honest models pass whatever the seed, the length, the number of threads or the attention path."""

import random

import pytest
import torch

from lineage.checkpoint.source import Access
from lineage.parity import levels
from lineage.parity.probes import default_probes, given_probes, pad_token, usable_length
from lineage.parity.session import Session, threads
from lineage.parity.subject import subject
from tests.published import JUDGED

KINDS = JUDGED
RUNS, LENGTHS, LONGEST = 200, 7, 150


@pytest.mark.parametrize("kind", KINDS)
def test_no_false_alarm(tiny, kind):
    """Each family's share of the runs: other tokens and lengths every time; every seventh other weights, another
    number of threads, another attention path, and a padded batch besides."""
    draw = random.Random(kind)
    for seed in range(-(-RUNS // (len(KINDS) * LENGTHS))):
        made = subject(tiny(kind, seed=seed), Access())
        lengths = [draw.randint(2, min(LONGEST, usable_length(made.spec))) for _ in range(LENGTHS)]
        stacks = [stack for stack in (made.spec, made.spec.encoder) if stack]
        pads = {pad_token(stack) for stack in stacks}  # what a reference takes for padding wherever it stands
        vocabulary = [token for token in range(2, min(stack.embed.vocab for stack in stacks)) if token not in pads]
        probes = given_probes(made.spec, [draw.choices(vocabulary, k=length) for length in lengths])
        probes += [probe for probe in default_probes(made.spec, seed) if probe.keep_BT is not None]
        count, path = draw.choice((1, 2)), draw.choice(("eager", "sdpa"))
        with made.material() as material, threads(count):
            session = Session(made, material, tuple(probes))
            found = [levels.replay(session)[0], levels.fp64(session)]
            session.pair(torch.float32)[0].attention = path
            found.append(levels.fp32(session))
        wrong = [level.to_dict() for level in found if level.verdict != "passed"]
        assert wrong == [], (seed, lengths, count, path)
        assert {row["probe"] for row in found[2].figures} == {probe.name for probe in probes}
