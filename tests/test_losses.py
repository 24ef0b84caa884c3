"""The losses of 2017 and of BERT through whole models: value and gradients are the reference's, in double precision.

The reference's smoothed loss is its Trainer's; its masked one is what its class returns for labels.
"""

from pathlib import Path

import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from lineage.checkpoint.source import Access
from lineage.modules.losses import masked_loss, smoothed_loss
from lineage.parity import reference
from lineage.parity.islands import lifted
from lineage.parity.probes import Probe, sources, tokens
from lineage.parity.session import Session
from lineage.parity.subject import subject
from lineage.parity.tiny import write_tiny
from lineage.parity.training import _gaps

LIMIT = 1e-10


def gaps(kind: str, loss: str, place: Path) -> tuple[float, dict[str, float]]:
    """How far ours are from the reference's: the loss, and the gradient of each of the file's tensors."""
    made = subject(write_tiny(kind, place), Access())
    with made.material() as material:
        session = Session(made, material, ())
        ours, theirs = session.pair(torch.float64)
        ids = tokens(made.spec, 3, 11, torch.Generator().manual_seed(1))
        probe = Probe("loss", ids, source_BS=sources(made.spec, 3, 11, torch.Generator().manual_seed(2)))
        labels = ids.roll(-1, 1)
        labels[0, 7:] = labels[:, ::4] = -100
        own = (smoothed_loss if loss == "smoothed" else masked_loss)(ours(**probe.arguments()).logits, labels)
        own.backward()
        with lifted(), reference.quiet():
            if loss == "smoothed":
                outputs = theirs(**reference.accepted(theirs, probe.arguments()))
                its = LabelSmoother(epsilon=0.1)({"logits": outputs.logits}, labels.clone())
            else:
                its = theirs(**reference.accepted(theirs, {**probe.arguments(), "labels": labels})).loss
            its.backward()
        return abs((own - its).item() / its.item()), _gaps(session, ours, theirs)


@pytest.mark.parametrize("loss", ["smoothed", "masked"])
@pytest.mark.parametrize("kind", ["fsmt", "marian", "bert"])
def test_loss_and_gradients_are_the_references(kind: str, loss: str, tmp_path: Path) -> None:
    apart, found = gaps(kind, loss, tmp_path / "tiny")
    assert apart <= 1e-12
    assert len(found) > 20
    assert max(found.values()) <= LIMIT


def test_another_smoothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "smoothed_loss", lambda logits, labels: smoothed(logits, labels, 0.11))
    apart, found = gaps("marian", "smoothed", tmp_path / "tiny")
    assert apart > 1e-4
    assert max(found.values()) > LIMIT


smoothed = smoothed_loss
