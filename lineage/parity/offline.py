"""The level `bytes` of a converted directory by its record alone: no reference, no network, and no torch."""

from pathlib import Path

import lineage
from lineage.integrity import damaged
from lineage.parity.report import Report, passed
from lineage.record import read_manifest


def verify_bytes(directory: Path) -> Report:
    """Every file and tensor against its recorded sha256, ours and the source's made again. Raises FileDamaged for what
    cannot be read at all.
    """
    manifest = read_manifest(directory)
    problems = damaged(directory, manifest)
    tensors, files = manifest["tensors"], {**manifest["files"], **manifest["source"]["files"]}
    hashed = sum("sha256" in entry for entry in tensors.values())
    summary = f"{hashed}/{len(tensors)} tensors and {len(files)} files against their recorded sha256"
    level = passed("bytes", not problems, summary, problems[:20])
    return Report(str(directory), "its record", (level,), {"lineage": lineage.__version__}, damaged=bool(problems))
