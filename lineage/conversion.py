"""A conversion from start to end: source -> config -> spec -> proved plan -> unified checkpoint -> parity."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lineage import catalog, config
from lineage.checkpoint import target
from lineage.checkpoint.casting import CASTS
from lineage.checkpoint.encoded import Encoded
from lineage.checkpoint.files import read_json
from lineage.checkpoint.gguf import SUFFIX, read_gguf
from lineage.checkpoint.hub import Access, Fetch
from lineage.checkpoint.journal import Journal
from lineage.checkpoint.source import Source, locate
from lineage.checkpoint.weights import Weights, open_weights
from lineage.config import Reading
from lineage.errors import ArchitectureError, FileDamaged, TensorMismatch, UsageError
from lineage.plan import Plan, Resolved, make_plan, resolve, unproved
from lineage.rules import Dialect
from lineage.values import Value
from lineage.writing import Options, Progress, Work, dump, holds, reading


class Checkpoint(Value):
    """A source that was understood: its plan is proved, its weights are not read."""

    source: Source
    model_type: str
    dialect: Dialect
    reading: Reading
    resolved: Resolved
    weights: Weights
    plan: Plan

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know."""
        unknown = self.reading.unknown
        place = self.resolved.place
        listed = (f"{place}: {len(unknown)} keys that nobody reads: {', '.join(unknown)[:300]}",) if unknown else ()
        kinds = Counter((e.encoding, e.exact) for e in self.weights.values() if isinstance(e, Encoded))
        decoded = [
            f"{count} tensors decoded from {kind}, {'exactly' if exact else 'rounded'}"
            for (kind, exact), count in kinds.items()
        ]
        remote = ("read from the hub by parts: sha256s of its files are its word",) if self.weights.remote else ()
        return (*self.resolved.notes, *decoded, *listed, *remote)


def open_checkpoint(
    model: str,
    access: Access,
    *,
    allow_pickle: bool = False,
    strict: bool = False,
    drop_head: bool = False,
    fetch: Callable[[Source], Fetch | None] = lambda source: None,
) -> Checkpoint:
    """Find a model, read its config and headers, and fit it to a spec. Raises any of the project's errors.

    drop_head: take the backbone alone. fetch: what to fetch of a hub's; asked when the config is understood, and
    nothing else is fetched yet.
    """
    source = locate(model, access)
    dialect, reading, model_type = read_config(source.config, strict)
    source = source.with_weights(fetch(source) or Fetch(allow_pickle))
    weights = open_weights(source.directory, allow_pickle, source.file, source.remote).decoded(reading.storage)
    resolved = resolve(
        dialect, reading.arguments, weights, weights.same, lambda name, value: holds(weights, name, value),
        reading.named, drop_head,
    )  # fmt: skip
    resolved = replace(resolved, place=source.config.name)
    plan = make_plan(dialect, resolved, weights)
    if faulty := unproved(plan):
        raise TensorMismatch("a rule is not a bijection of elements", facts=faulty)
    return Checkpoint(source, model_type, dialect, reading, resolved, weights, plan)


def read_config(path: Path, strict: bool = False) -> tuple[Dialect, Reading, str]:
    """A config.json, or a file that speaks for itself, and the dialect that understands it.

    Raises FileDamaged or ArchitectureError.
    """
    if path.suffix == SUFFIX:
        return _read_keys(path, strict)
    if (path.parent / "adapter_config.json").exists():
        raise ArchitectureError(
            f"{path.parent} is an adapter (adapter_config.json), not a whole model",
            hint="merge it into its base model first",
        )
    if (path.parent / target.MANIFEST).exists() and not path.exists():
        raise UsageError(
            f"{path.parent} is a converted directory, not a public checkpoint",
            hint="lineage verify checks it; lineage.from_pretrained loads it",
        )
    data = read_json(path, limit=10_000_000)
    if not isinstance(data, dict):
        raise FileDamaged(f"{path.name}: holds a {type(data).__name__}, expected an object")
    dialect = catalog.dialect(data.get("model_type"), data.get("architectures"))
    return dialect, config.read(dialect.config, data, strict), data["model_type"]


def _read_keys(path: Path, strict: bool) -> tuple[Dialect, Reading, str]:
    data = read_gguf(path).config()
    kind = data["model_type"]
    dialect = catalog.dialect(kind, form="gguf")
    known = {spelling for entry in dialect.config for spelling in entry.spellings()}
    aside = ("general.", "tokenizer.")  # what a file says of itself and of its tokens
    data = {key: value for key, value in data.items() if key in known or not key.startswith(aside)}
    reading = config.read(dialect.config, data, strict, path.name)
    if own := [key for key in reading.unknown if key.startswith(f"{kind}.")]:  # its writer's word on the architecture
        raise ArchitectureError(f"{path.name}: {len(own)} keys are not understood", facts=own)
    return dialect, reading, kind


class Conversion(Value):
    """What was converted, and what is known of it. report: the parity report, if there was a check.

    preview: of a dry run, the bytes that it would take (`Work.preview`).
    """

    output: Path
    checkpoint: Checkpoint
    manifest: dict[str, Any]
    report: Any = None
    preview: dict[str, int] | None = None


def convert(
    model: str,
    output: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    verify: bool = True,
    force: bool = False,
    strict: bool = False,
    allow_pickle: bool = False,
    drop_head: bool = False,
    device: str = "cpu",
    dtype: str = "keep",
    hashes: bool | None = None,
    max_shard_size: int | None = None,
    sync: bool = True,
    dry_run: bool = False,
    stream: bool = False,
    progress: Progress = lambda done, total: None,
) -> Conversion:
    """Convert a public checkpoint to a directory of unified names, and compare it with the reference.

    model: a hub id with or without @revision, a directory, a weights file, a GGUF file. output: else `NAME-lineage`.
    drop_head: leave out the heads, which are then lost. device: where the comparison runs, cpu, cuda or cuda:N. The
    output appears whole or not at all, after the comparison. A comparison that ran and failed raises nothing: see
    `report.passed`; the output is there to look at.

    dtype: keep, fp32, bf16 or fp16. hashes: record the sha256 of every tensor and file; by default if there is a
    comparison. max_shard_size: bytes of a file; else files are the source's. sync: wait until all lies on the disk, so
    that the output is whole even after a loss of power. progress: told how many bytes are done, by any thread. Files
    that an interrupted run has finished are not written again, unless with force. dry_run: only see whether all fits,
    and say what it takes; nothing is written, and of a hub's weights only headers are fetched. stream: read a hub's
    weights in place and keep none of them; a comparison is with what the output gives back.
    """
    if dtype not in ("keep", *CASTS):
        raise UsageError(f"dtype {dtype[:40]!r} is not known", hint=f"known: keep, {', '.join(CASTS)}")
    device = _found(device) if verify else device
    options = Options(CASTS.get(dtype), verify if hashes is None else hashes, max_shard_size, sync)
    access = Access(revision, token, Path(cache_dir) if cache_dir else None, local_files_only)

    def fetch(source: Source) -> Fetch:
        if stream and source.revision is None:
            raise UsageError(f"{source.origin} is here: --stream is for what is on a hub", hint="leave out --stream")
        return Fetch(allow_pickle, stream, dry_run, _place(source, output, force).parent)

    checkpoint = open_checkpoint(
        model, access, allow_pickle=allow_pickle, strict=strict, drop_head=drop_head, fetch=fetch
    )
    final = _place(checkpoint.source, output, force)
    work = Work(checkpoint, options)
    if dry_run:
        manifest, figures = work.preview(final)
        return Conversion(final, checkpoint, manifest, preview=figures)

    check = partial(target.check_output, final, checkpoint.source.folder, force)
    compare = partial(_verified, allow_pickle=allow_pickle, device=device) if verify else None
    return _written(work, final, check, None if force else work.journal, progress, compare)


def _place(source: Source, output: str | Path | None, force: bool) -> Path:
    """Where the output goes. Raises UsageError if it may not."""
    found = Path(output) if output else default_output(source)
    target.check_output(found, source.folder, force)
    return found


def _written(
    work: Work,
    final: Path,
    check: Callable[[], None],
    journal: Journal | None,
    progress: Progress,
    compare: Callable[[Conversion, Path], Conversion] | None,
) -> Conversion:
    """The output in its place, whole and compared, or nothing there."""
    checkpoint = work.checkpoint
    source = checkpoint.source
    with target.staged(final, check, journal, work.options.sync) as folder, reading(source.directory):
        target.check_space(final, work.needed())
        done = Conversion(final, checkpoint, work.write(folder, progress))
        if work.options.hashes and source.remote:
            _check_arrived(folder, done.manifest)
        if compare:
            done = compare(done, folder)
        checkpoint.weights.check_unchanged()
    return done


def _found(device: str) -> str:
    from lineage.parity.device import find

    return find(device)


def _check_arrived(folder: Path, manifest: dict[str, Any]) -> None:
    """Raises FileDamaged if the source, made again from what was written, has not the sha256s that the hub tells."""
    from lineage.integrity import damaged  # and what exports, which other conversions do without

    if problems := damaged(folder, manifest):
        raise FileDamaged("what came is not what the hub says its files are", facts=problems[:20], code="checksum")


def default_output(source: Source) -> Path:
    """`NAME-lineage` in the present folder."""
    name = source.file.stem if source.file else source.origin.rstrip("/").split("/")[-1]
    return Path(f"{name if name not in ('', '.', '..') else source.directory.resolve().name}-lineage")


def _verified(done: Conversion, folder: Path, allow_pickle: bool, device: str) -> Conversion:
    """The conversion with its report, which its record keeps too; by its output alone if the source is not here."""
    from lineage.parity.verification import verify

    checkpoint = done.checkpoint
    report = verify(
        str(folder),
        against="transformers" if checkpoint.source.remote else checkpoint.source,
        allow_pickle=allow_pickle,
        drop_head=checkpoint.resolved.bare and not checkpoint.source.remote,
        device=device,
    )
    report = replace(report, subject=str(done.output))
    (folder / target.MANIFEST).write_bytes(dump(done.manifest | {"parity": report.to_dict()}))
    return replace(done, report=report)
