"""Where a converted model comes from, by its record: as text, as a model card, in the standards that others read.

slsa: an in-toto Statement (v1) with a SLSA provenance predicate (v1): what was written, from which files, by what. All
of it is taken from the record and nothing is added, so that the same record gives the same document to the byte.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lineage.checkpoint.files import digest_of, read
from lineage.checkpoint.target import MANIFEST
from lineage.errors import UsageError
from lineage.record import SOURCE, digest, read_manifest

HUB = "https://huggingface.co"
TOOL = "pkg:pypi/lineage-models"
Record = Mapping[str, Any]


def document(directory: Path, form: str) -> str:
    """The record of a converted directory in one of FORMS. Raises UsageError where it lacks hashes that are needed."""
    return FORMS[form](directory, read_manifest(directory))


def save(output: Path, directory: Path, text: str) -> None:
    """Write a document to a file, whole or not at all. Raises UsageError for a place that is not to be written."""
    if not output.absolute().parent.is_dir() or output.is_dir():
        raise UsageError(f"{output}: " + ("a folder" if output.is_dir() else f"there is no folder {output.parent}"))
    if directory.resolve() in output.resolve().parents:
        raise UsageError(f"{output} lies in {directory}, which holds what was converted and nothing else")
    partial = output.parent / f".{output.name[:200]}.partial"
    try:
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"cannot write {output}: {error.strerror}") from error


def repository(manifest: Record) -> str | None:
    """The hub's repository that the source is, as ORG/NAME; None for files from elsewhere."""
    source = manifest["source"]
    return source["origin"].removeprefix("hf://") if source["revision"] else None


def text(directory: Path, manifest: Record) -> str:
    """What a person asks first: from where, by which rules, with what, and what it was found to be worth."""
    source, plan = manifest["source"], manifest["plan"]
    lossy = [drop["name"] for drop in plan["dropped"] if drop["lossy"]]
    lines = [f"source    {source['origin']}" + (f"@{source['revision']}" if source["revision"] else "")]
    lines += [f"          {entry.get('sha256', 'no sha256'):64}  {name}" for name, entry in source["files"].items()]
    lines.append(f"family    {manifest['family']}, spelled {source['model_type']}")
    lines += [f"rules     {one['sha256']}  {one['module']}" for one in manifest.get("rules", {}).values()]
    lines += [f"spec      {manifest['spec_sha256']}"] if "spec_sha256" in manifest else []
    lines.append("made by   " + ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()))
    counts = f"{len(source['tensors'])} of the source, {len(manifest['tensors'])} of the model"
    dropped = f"{len(plan['dropped'])} dropped, {len(lossy)} of these for good"
    lines.append(f"tensors   {counts}, {len(plan['copies'])} copies, {dropped}")
    lines += [f"written   {said or 'no sha256':64}  {name}" for name, said in manifest["files"].items()]
    lines += [f"parity    {name:10} {verdict:8} {summary}" for name, verdict, summary in _levels(manifest)]
    return "\n".join(lines if _levels(manifest) else [*lines, "parity    not compared with the reference"])


def _levels(manifest: Record) -> list[tuple[str, str, str]]:
    levels = (manifest.get("parity") or {}).get("levels", [])
    return [(str(one.get("name")), str(one.get("verdict")), str(one.get("summary"))) for one in levels]


def card(directory: Path, manifest: Record) -> str:
    """A model card: the hub's metadata, then the facts."""
    source, base, license = manifest["source"], repository(manifest), _license(directory)
    told: dict[str, Any] = {"library_name": "lineage", "tags": ["lineage", manifest["family"]]}
    told |= {"base_model": base} if base else {}
    told |= {"license": license} if license else {}
    at = f" at revision `{source['revision']}`" if source["revision"] else ""
    rows = [f"| {name} | {verdict} | {summary} |" for name, verdict, summary in _levels(manifest)]
    parity = ["## Compared with the reference", "", "| level | verdict | |", "|---|---|---|", *rows, ""] if rows else []
    notes = [f"- {note}" for note in manifest.get("notes", [])]
    count = f" ({manifest['parameters']:,} parameters)" if "parameters" in manifest else ""
    lines = [
        "---", *(f"{name}: {json.dumps(value)}" for name, value in told.items()), "---", "",
        f"# {source['origin']}, in lineage's names", "",
        f"Converted from `{source['origin']}`{at}: the same numbers under unified names; nothing was trained.", "",
        f"- family: {manifest['family']}{count}",
        "- record of the conversion: `lineage.json`; the original's small files: `source/`",
        "- load: `lineage.from_pretrained(DIR)`; check: `lineage verify DIR`; back: `lineage export DIR --to hf`",
        *notes, "", *parity,
    ]  # fmt: skip
    return "\n".join(lines)


def _license(directory: Path) -> str | None:
    """What the source's own card says."""
    path = directory / SOURCE / "README.md"
    head = path.read_bytes()[:10_000].decode("utf-8", "replace") if path.is_file() else ""
    block = re.match(r"---\r?\n(.*?)\n---", head, re.DOTALL)
    found = re.search(r"^license: *[\"']?([\w.+-]+)", block[1], re.MULTILINE) if block else None
    return found[1] if found else None


def slsa(directory: Path, manifest: Record) -> str:
    """An in-toto Statement of the files that were written, with SLSA provenance."""
    source = manifest["source"]
    record = {"name": MANIFEST, "digest": {"sha256": digest_of(read(directory / MANIFEST))}}
    levels = {name: verdict for name, verdict, _ in _levels(manifest)}
    internal = {name: manifest[name] for name in ("rules", "spec_sha256", "cast") if name in manifest}
    return _json({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": said}} for name, said in _hashed(manifest).items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{TOOL}#convert/1",
                "externalParameters": {"model": source["origin"], "revision": source["revision"]},
                "internalParameters": {"family": manifest["family"], "model_type": source["model_type"], **internal},
                "resolvedDependencies": list(_materials(manifest)),
            },
            "runDetails": {
                "builder": {"id": f"{TOOL}@{manifest['versions']['lineage']}", "version": manifest["versions"]},
                "byproducts": [record | ({"annotations": {"parity": levels}} if levels else {})],
            },
        },
    })  # fmt: skip


def _materials(manifest: Record) -> Iterator[dict[str, Any]]:
    """The source's files, and the commit that they are of."""
    source, base = manifest["source"], repository(manifest)
    if base:
        yield {"uri": f"git+{HUB}/{base}@{source['revision']}", "digest": {"gitCommit": source["revision"]}}
    for name, entry in source["files"].items():
        found: dict[str, Any] = {"name": name}
        if base:
            found["uri"] = f"{HUB}/{base}/resolve/{source['revision']}/{name}"
        yield found | ({"digest": {"sha256": entry["sha256"]}} if "sha256" in entry else {})


def _hashed(manifest: Record) -> dict[str, str]:
    if lacking := [name for name, said in manifest["files"].items() if not said]:
        raise UsageError(f"the record has no sha256 of {', '.join(lacking[:5])}", hint="convert again, with --hash")
    return dict(manifest["files"])


def cyclonedx(directory: Path, manifest: Record) -> str:
    """A bill of materials (CycloneDX 1.7) of one machine-learning model, with the source as its ancestor."""
    source, base, versions = manifest["source"], repository(manifest), manifest["versions"]
    name, license = directory.resolve().name, _license(directory)
    licensed = {"licenses": [{"license": {"name": license}}]} if license else {}
    ancestor = {
        "type": "machine-learning-model", "bom-ref": "source", "name": base or source["origin"], **licensed,
        **({"version": source["revision"], "purl": f"pkg:huggingface/{base}@{source['revision']}"} if base else {}),
        "components": [_file(f"source/{n}", n, e.get("sha256")) for n, e in source["files"].items()],
    }  # fmt: skip
    metrics = [
        {"type": f"parity: {level}", "value": f"{verdict}: {told}"} for level, verdict, told in _levels(manifest)
    ]
    properties = {"parameters": manifest.get("parameters"), "spec_sha256": manifest.get("spec_sha256")}
    properties |= {
        f"rules:{what}": f"{one['module']} {one['sha256']}" for what, one in manifest.get("rules", {}).items()
    }
    model = {
        "type": "machine-learning-model", "bom-ref": "model", "name": name, **licensed,
        "description": f"{source['origin']} under unified names; nothing was trained",
        "pedigree": {"ancestors": [ancestor], "notes": "the same numbers; names and layout are others"},
        "modelCard": {
            "modelParameters": {"architectureFamily": manifest["family"], "modelArchitecture": source["model_type"],
                                "inputs": [{"format": "token ids"}], "outputs": [{"format": "tensors"}]},
            **({"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}),
        },
        "properties": [{"name": f"lineage:{n}", "value": str(v)} for n, v in properties.items() if v is not None],
    }  # fmt: skip
    files = [_file(f"model/{n}", n, said) for n, said in manifest["files"].items()]
    tool = {
        "type": "application",
        "name": "lineage-models",
        "version": versions["lineage"],
        "purl": f"{TOOL}@{versions['lineage']}",
    }
    libraries = [
        {"type": "library", "bom-ref": f"library/{n}", "name": n, "version": v}
        for n, v in versions.items()
        if n != "lineage"
    ]
    return _json({
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.7", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest(manifest))}",
        "metadata": {"tools": {"components": [tool, *libraries]}, "component": model},
        "components": files,
        "dependencies": [{"ref": "model", "dependsOn": [file["bom-ref"] for file in files]}],
    })  # fmt: skip


def _file(reference: str, name: str, sha256: str | None) -> dict[str, Any]:
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    return {"type": "file", "bom-ref": reference, "name": name, **hashes}


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=True)


FORMS: Mapping[str, Callable[[Path, Record], str]] = {"text": text, "slsa": slsa, "cyclonedx": cyclonedx, "card": card}
