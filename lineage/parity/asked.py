"""`lineage verify` as it was asked for: which of the ways to verify, on what, and what to keep of it."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lineage.checkpoint.source import Access, locate
from lineage.checkpoint.target import MANIFEST
from lineage.errors import UsageError
from lineage.parity.blocks import verify_blocks
from lineage.parity.golden import check_golden, save_golden
from lineage.parity.prompts import read_prompts
from lineage.parity.report import Report
from lineage.parity.tiny import write_tiny
from lineage.parity.verification import verify
from lineage.render.page import trace_page


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
    **options: Any,
) -> Report:
    """Verify in the way that the options say, and write the files that they name. Raises the project's errors."""
    if (model is None) == (tiny is None):
        raise UsageError("give a MODEL, or --tiny FAMILY, not both", hint="lineage verify --help")
    if golden is not None and (levels or blocks or prompts or against != "transformers"):
        raise UsageError(
            "--golden compares with that file alone", hint="leave out --against, --level, --blocks, --prompts"
        )
    for file in (trace, save_golden):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {file.parent}")
    if trace is not None and trace.suffix not in (".html", ".json"):
        raise UsageError(f"--trace {trace}: the name says the form, .html or .json")
    report = (
        _tiny(tiny, levels)
        if tiny
        else _model(str(model), levels, blocks, prompts, golden, save_golden, against, options)
    )
    if trace is not None:
        data = report.to_dict()
        trace.write_text(trace_page(data) if trace.suffix == ".html" else json.dumps(data, indent=1), encoding="utf-8")
    return report


def _tiny(family: str, levels: Sequence[str]) -> Report:
    with tempfile.TemporaryDirectory(prefix="lineage-") as name:
        report = verify(write_tiny(family, Path(name)), only=levels)
    return replace(report, subject=f"tiny {family}")


def _model(
    model: str, levels: Sequence[str], blocks: bool, prompts: Path | None, golden: Path | None, keep: Path | None,
    against: str, options: dict[str, Any],
) -> Report:  # fmt: skip
    if golden is not None:
        return check_golden(_loaded(model, options), golden)
    if blocks:
        report = verify_blocks(
            model, local_files_only=options["local_files_only"], allow_pickle=options["allow_pickle"]
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
    if (Path(model) / MANIFEST).is_file():
        return Path(model) / "source"
    access = Access(options["revision"], options["token"], options["cache_dir"], options["local_files_only"])
    return locate(model, access).with_weights().directory
