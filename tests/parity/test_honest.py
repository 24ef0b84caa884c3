"""No false alarm: honest models pass whatever the seed, the length, the number of threads or the attention path."""

import random

import pytest
import torch

from lineage import catalog
from lineage.checkpoint.source import Access
from lineage.parity import levels
from lineage.parity.probes import given_probes, usable_length
from lineage.parity.session import Session, threads
from lineage.parity.subject import subject

KINDS = sorted(catalog.dialects())
RUNS, LENGTHS = 200, 7


@pytest.mark.parametrize("kind", KINDS)
def test_no_false_alarm(tiny, kind):
    """Each family's share of the runs: other tokens and lengths every time, other weights and threads every seventh."""
    draw = random.Random(kind)
    for run in range(-(-RUNS // (len(KINDS) * LENGTHS))):
        made = subject(tiny(kind, seed=run), Access())
        lengths = [draw.randint(2, min(150, usable_length(made.spec))) for _ in range(LENGTHS)]
        vocabulary = range(2, made.spec.embed.vocab)
        probes = given_probes(made.spec, [draw.choices(vocabulary, k=length) for length in lengths])
        with made.material() as material, threads(draw.choice((1, 2))):
            session = Session(made, material, tuple(probes))
            replayed, _ = levels.replay(session)
            found = [replayed, levels.fp64(session), levels.fp32(session)]
            session.pair(torch.float32)[0].attention = "eager"
            found.append(levels.fp32(session))
        assert all(level.verdict == "passed" for level in found), (run, lengths, [level.to_dict() for level in found])
