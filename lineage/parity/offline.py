"""The level `bytes` of a converted directory by its record alone: no reference, no network, and no torch."""

from pathlib import Path

import lineage
from lineage.errors import UsageError
from lineage.integrity import damaged
from lineage.parity.report import Report, passed
from lineage.record import read_manifest


def verify_bytes(directory: Path) -> Report:
    """Every file and tensor against its recorded sha256, ours and the source's made again. Raises FileDamaged for what
    cannot be read at all, UsageError if the record has no hashes.
    """
    manifest = read_manifest(directory)
    tensors, sources = manifest["tensors"], manifest["source"]["files"]
    files = manifest["files"] | {name: entry.get("sha256") for name, entry in sources.items()}
    hashed, known = sum("sha256" in entry for entry in tensors.values()), sum(map(bool, files.values()))
    if not hashed:
        raise UsageError(f"the record of {directory} has no hashes of tensors", hint="convert again, with --hash")
    problems = damaged(directory, manifest)
    summary = f"{hashed}/{len(tensors)} tensors and {known}/{len(files)} files against their recorded sha256"
    level = passed("bytes", not problems, summary, problems[:20])
    return Report(str(directory), "its record", (level,), {"lineage": lineage.__version__}, damaged=bool(problems))
