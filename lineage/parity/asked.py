"""`lineage verify` as it was asked for: which of the ways to verify, on what, and what to keep of it.

What is wrong about the question is told before torch and transformers are loaded, which takes seconds, and if it can be
before anything is.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lineage.checkpoint.target import MANIFEST
from lineage.errors import SourceError, UsageError
from lineage.parity.device import find
from lineage.parity.report import Report, check_levels


def asked(
    model: str | None,
    *,
    tiny: str | None = None,
    levels: Sequence[str] = (),
    blocks: bool = False,
    prompts: Path | None = None,
    golden: Path | None = None,
    save_golden: Path | None = None,
    trace: Path | None = None,
    against: str = "transformers",
    device: str = "cpu",
    **options: Any,
) -> Report:
    """Verify in the way that the options say, and write the files that they name. Raises the project's errors."""
    if (model is None) == (tiny is None):
        raise UsageError("give a MODEL, or --tiny FAMILY, not both", hint="lineage verify --help")
    if golden is not None and (levels or blocks or prompts or against != "transformers"):
        raise UsageError(
            "--golden compares with that file alone", hint="leave out --against, --level, --blocks, --prompts"
        )
    check_levels(levels)
    _check_files((prompts, golden), (trace, save_golden))
    if trace is not None and trace.suffix not in (".html", ".json"):
        raise UsageError(f"--trace {trace}: the name says the form, .html or .json")
    more = any((tiny, blocks, prompts, golden, save_golden, trace)) or against != "transformers"
    if tuple(levels) == ("bytes",) and not more and (Path(str(model)) / MANIFEST).is_file():
        from lineage.parity.offline import verify_bytes

        return verify_bytes(Path(str(model)))
    options["device"] = find(device)
    for name in (model, None if against == "transformers" else against):
        if name is not None:
            _check_model(name, options)
    report = (
        _tiny(tiny, levels, device)
        if tiny
        else _model(str(model), levels, blocks, prompts, golden, save_golden, against, options)
    )
    if trace is not None:
        from lineage.render.page import trace_page

        data = report.to_dict()
        trace.write_text(trace_page(data) if trace.suffix == ".html" else json.dumps(data, indent=1), encoding="utf-8")
    return report


def _check_files(read: Iterable[Path | None], written: Iterable[Path | None]) -> None:
    for file in read:
        if file is not None and not file.is_file():
            raise UsageError(f"there is no file {file}")
    for file in written:
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {file.parent}")


def _check_model(model: str, options: dict[str, Any]) -> None:
    """Refuse what the disk alone shows to be no model; what the hub has to say comes later."""
    if model.startswith((".", "/", "~")) and not Path(model).exists():  # no hub id: told before numpy is loaded
        raise SourceError(f"{model!r}: no such file or directory")
    from lineage.checkpoint.source import Access, locate
    from lineage.conversion import read_config

    if (Path(model) / MANIFEST).is_file():
        return
    try:
        source = locate(model, Access(options["revision"], None, options["cache_dir"], local_files_only=True))
    except SourceError as error:
        if error.code != "offline" or options["local_files_only"]:
            raise
    else:
        if source.revision is None:
            read_config(source.config)


def _tiny(family: str, levels: Sequence[str], device: str) -> Report:
    from lineage import catalog

    if family not in (known := {**catalog.families(), **catalog.dialects()}):
        raise catalog.unknown(family, known)
    from lineage.parity.tiny import write_tiny
    from lineage.parity.verification import verify

    with tempfile.TemporaryDirectory(prefix="lineage-") as name:
        report = verify(write_tiny(family, Path(name)), only=levels, device=device)
    return replace(report, subject=f"tiny {family}")


def _model(
    model: str, levels: Sequence[str], blocks: bool, prompts: Path | None, golden: Path | None, keep: Path | None,
    against: str, options: dict[str, Any],
) -> Report:  # fmt: skip
    from lineage.parity.blocks import verify_blocks
    from lineage.parity.golden import check_golden, save_golden
    from lineage.parity.prompts import read_prompts
    from lineage.parity.verification import verify

    if golden is not None:
        return check_golden(_loaded(model, options), golden)
    if blocks:
        report = verify_blocks(
            model, **{name: options[name] for name in ("local_files_only", "allow_pickle", "drop_head", "device")}
        )
    else:
        ids = read_prompts(prompts, _tokenizer(model, options)) if prompts else ()
        report = verify(model, against, only=levels, prompts=ids, **options)
    if keep is not None:
        save_golden(_loaded(model, options), keep)
    return report


def _loaded(model: str, options: dict[str, Any]) -> Any:
    from lineage.modules.loading import from_pretrained

    return from_pretrained(model, dtype="fp32", **{name: value for name, value in options.items() if name != "rtol"})


def _tokenizer(model: str, options: dict[str, Any]) -> Path:
    """The folder with the tokenizer's files."""
    from lineage.checkpoint.source import Access, locate

    if (Path(model) / MANIFEST).is_file():
        return Path(model) / "source"
    access = Access(options["revision"], options["token"], options["cache_dir"], options["local_files_only"])
    return locate(model, access).with_weights().directory
