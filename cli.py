"""The command line: parse, call lineage, print."""

import os
import sys
from pathlib import Path
from typing import Any

import click

import lineage
from lineage.designs import COMMANDS
from lineage.terminal import Size, json_option, progress_bar, run, say, say_json, source_options

EXIT_CODES = """\b
Exit codes
  0    done, and what was asked for is true
  1    a fault of lineage itself
  2    wrong use; the output exists; a pickle that was not allowed
  3    the check ran and the answer is no
  4    the source cannot be obtained: network, offline, not found
  5    no access: gated, private, bad token
  6    an architecture, or an option of its config, that is not described
  7    a damaged file: cut, LFS pointer, bad header, checksum
  8    not enough disk, memory or device
  9    tensors do not fit; or the reference did not load truly
  130  interrupted; nothing is half-written, and finished files wait for the same command
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=EXIT_CODES)
@click.version_option(lineage.__version__, prog_name="lineage")
def cli() -> None:
    """Convert transformer checkpoints to unified modules, prove the result, and show what they are made of."""


for command in COMMANDS:
    cli.add_command(command)


PATH = click.Path(path_type=Path)
head_option = click.option(
    "--drop-head", is_flag=True, help="Take the backbone alone: heads, also such as are not described, are lost."
)
device_option = click.option("--device", default="cpu", show_default=True, help="Where models run: cpu, cuda, cuda:N.")


@cli.command()
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write (default: NAME-lineage).")
@click.option(
    "--verify", type=click.Choice(["full", "none"]), default="full", show_default=True, help="Against transformers."
)
@click.option("--dtype", default="keep", show_default=True, help="Cast to fp32, bf16 or fp16, rounded to nearest.")
@click.option(
    "--max-shard-size",
    type=Size(),
    default="keep",
    show_default=True,
    help="Of a file: 5GB, 500MB; keep: as the source.",
)
@click.option(
    "--hash/--no-hash", "hashes", default=None, help="Record sha256s of tensors and files (default: if verified)."
)
@click.option("--sync/--no-sync", default=True, help="Wait until all lies on the disk, safe from a loss of power.")
@click.option("--dry-run", is_flag=True, help="Write nothing, fetch but headers: see whether all fits, what it takes.")
@click.option("--stream", is_flag=True, help="Read a hub's weights in place, keep none: room for the output is enough.")
@click.option(
    "--force", is_flag=True, help="Replace an output that lineage made, once the new one is complete; begin afresh."
)
@click.option("--strict", is_flag=True, help="Refuse config keys that the reference does not know either.")
@head_option
@device_option
@source_options
@json_option
def convert(model: str, verify: str, as_json: bool, **options: Any) -> None:
    """Convert MODEL and compare it with the reference.

    MODEL is a hub id (ORG/NAME or ORG/NAME@REVISION), a directory, a weights file beside its config.json, or a GGUF
    file. The output is a directory with model.safetensors under unified names, lineage.json (the record) and source/
    (config and tokenizer, untouched). It appears whole or not at all. If it is interrupted or the disk fills, the files
    that are finished wait beside it, and the same command goes on from there.

    With --stream nothing of a hub's weights is kept here. The comparison is then with what the output gives back, after
    its bytes agreed with the sha256s that the hub tells.
    """
    from lineage.render import text

    with progress_bar() as progress:
        done = lineage.convert(model, verify=verify == "full", progress=progress, **options)
    if as_json:
        say_json({"schema": "lineage.convert/1", "output": str(done.output), "manifest": done.manifest,
                  "preview": done.preview, "report": done.report.to_dict() if done.report else None})  # fmt: skip
    else:
        verdict = "nothing was written to" if done.preview else "converted"
        if done.report:
            verdict = "verified" if done.report.passed else "NOT EQUAL"
        say([*text.converted(done), *(done.report.lines() if done.report else []), f"{verdict} {done.output}/"])
    if done.report:
        _judge(done.report)


@cli.command()
@click.argument("model", required=False)
@click.option("--tiny", metavar="FAMILY", help="Verify a tiny model of a family or model type, with spread weights.")
@click.option("--level", "levels", multiple=True, metavar="LEVEL", help="This level alone (repeatable).")
@click.option(
    "--blocks", is_flag=True, help="One module's weights in memory at a time: for what is larger than memory."
)
@click.option("--prompts", type=PATH, help="A line a prompt: text, or token ids as [1, 2, 3].")
@click.option("--golden", type=PATH, help="Compare with this file, without transformers.")
@click.option("--save-golden", type=PATH, help="Write the results to this file, for --golden.")
@click.option("--trace", type=PATH, help="Write every component's figures: FILE.html or FILE.json.")
@click.option(
    "--against", default="transformers", show_default=True, help="The reference's checkpoint: hub id or folder."
)
@click.option(
    "--rtol", type=click.FloatRange(min=0), help="Limit on the fp32 relative difference, for the measured one."
)
@head_option
@device_option
@source_options
@json_option
def verify(model: str | None, as_json: bool, **options: Any) -> None:
    """Compare MODEL, converted or not, with transformers, level by level.

    A converted directory needs nothing else: its mapping is undone, the result must be the source's tensors bit for
    bit, and transformers is given those. Exit code 3 if they differ; the components at fault are named.

    \b
    Levels
      static     names, shapes and indices fit; the mapping is a bijection
      bytes      the mapping undone gives the source's tensors bit for bit; alone, of a converted directory, every
                 file against its recorded sha256, offline and without torch (exit 7 if one is damaged)
      reference  transformers holds the file's numbers in memory
      replay     each component, fed the reference's own input, gives its output
      fp64       the results in double precision, free of noise
      fp32       the results against the reference's measured noise
      behaviour  padding, batches, prefixes, causality, greedy tokens
      training   the loss and every gradient
      bf16       our error against the fp64 truth next to the reference's own
    """
    from lineage.parity.asked import asked

    report = asked(model, **options)
    if as_json:
        say_json(report.to_dict())
    else:
        verdict = "verified" if report.passed else "NOT EQUAL"
        say([*report.lines(), f"{verdict} {report.subject}   against {report.against}"])
    _judge(report)


@cli.command()
@click.argument("model")
@click.argument("prompt")
@click.option("--tokens", default=100, show_default=True, type=click.IntRange(1), help="How many, at most.")
@click.option("--temperature", type=float, help="Draw tokens, flatter above 1 (default: take the likeliest).")
@click.option("--top-k", type=click.IntRange(1), help="Draw from so many likeliest tokens.")
@click.option("--top-p", type=float, help="Draw from the fewest tokens that make up this probability.")
@click.option("--repetition", default=1.0, show_default=True, help="Above 1: tokens that were there are less likely.")
@click.option("--seed", type=int, help="Of the draws, to repeat them.")
@click.option("--beams", default=1, show_default=True, type=click.IntRange(1), help="Search so many texts at once.")
@click.option("--dtype", default="keep", show_default=True, help="keep (as stored), fp32, bf16, fp16 or fp64.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, …")
@source_options
@json_option
def generate(
    model: str, prompt: str, tokens: int, dtype: str, device: str, as_json: bool, repetition: float, **options: Any
) -> None:
    """Go on from PROMPT with MODEL, converted or not. PROMPT is text, or token ids as [1, 2, 3].

    The text appears as it is made; how fast that was is said on stderr. With an encoder, PROMPT is what it reads. What
    the model's generation config forces or suppresses is heeded.
    """
    from lineage.modules.generation import Choice
    from lineage.parity.device import find
    from lineage.parity.writing import Written, write
    from lineage.render.text import plain

    drawn, beams = {key: options.pop(key) for key in ("temperature", "top_k", "top_p", "seed")}, options.pop("beams")
    choice, written = Choice(repetition=repetition, **drawn), Written([])
    loaded = lineage.from_pretrained(model, dtype=dtype, device=find(device), **options)
    for piece in write(loaded, Path(model), prompt, tokens, choice, written, beams):
        if not as_json:
            sys.stdout.write("\n".join(plain(line, sys.stdout.encoding or "utf-8") for line in piece.split("\n")))
            sys.stdout.flush()
    if as_json:
        say_json({"schema": "lineage.generate/1", **written.to_dict()})
    else:
        sys.stdout.write("\n")
        click.echo(f"{len(written.tokens)} tokens in {written.seconds:.2f} s, {written.rate:.1f} a second", err=True)


@cli.command()
@click.argument("directory", type=PATH)
@click.option("--to", type=click.Choice(["hf"]), required=True, help="The layout: Hugging Face's.")
@click.option("--as", "family", metavar="FAMILY", help="As another family spells the same function, or not at all.")
@click.option("-o", "--output", type=PATH, help="Where to write (default: NAME-hf).")
@click.option("--check", is_flag=True, help="Tell whether it is the original to the bit; writes only under -o.")
@click.option("--force", is_flag=True, help="Replace an output that holds this same export.")
@json_option
def export(directory: Path, check: bool, as_json: bool, **options: Any) -> None:
    """Write a converted DIRECTORY in the layout that it came from, bit for bit.

    Every safetensors file has its original sha256, and index, config and tokenizer are as they were; of a pickle, or
    where something was decoded or dropped for good, the same tensors come in safetensors, and it is said. Exit code 3
    under --check if that is not the original, 7 if DIRECTORY is damaged.

    With --as, a model whose function another family can say too is written in that family's config and names (a
    Mistral without window as llama): only if the two specs are proved equal, else the differences are told (exit 6).
    """
    from lineage.render import text

    done = lineage.export(directory, check=check, **options)
    say_json(done.to_dict()) if as_json else say(text.exported(done))
    if check and not done.same:
        raise click.exceptions.Exit(3)


@cli.command()
@click.argument("directory", type=PATH)
@click.option("--format", "form", type=click.Choice(["text", "slsa", "cyclonedx", "card"]), default="text")
@click.option("-o", "--output", type=PATH, help="Write it to this file.")
@json_option
def provenance(directory: Path, form: str, output: Path | None, as_json: bool) -> None:
    """Tell where a converted DIRECTORY comes from, by its record: source, sha256s, rules, versions, parity.

    slsa is an in-toto Statement with SLSA provenance (v1), cyclonedx a bill of materials (CycloneDX 1.7), card a model
    card. --json is the record itself, lineage.json.
    """
    from lineage.provenance import document, save
    from lineage.record import read_manifest

    if as_json:
        say_json(read_manifest(directory))
    elif output:
        save(output, directory, document(directory, form))
        say([f"wrote {output}"])
    else:
        say(document(directory, form).split("\n"))


@cli.command()
@click.argument("directory", type=PATH)
@click.argument("tensor")
@json_option
def trace(directory: Path, tensor: str, as_json: bool) -> None:
    """Name the file, the bytes and the operations that a tensor of a converted DIRECTORY was made of.

    TENSOR is its name, or a part of it in numpy's notation: "blocks.0.attention.body.q.weight[0:2, ::3]".
    """
    from lineage.tracing import traced

    found = traced(directory, tensor)
    say_json(found.to_dict()) if as_json else say(found.lines())


def _judge(report: Any) -> None:
    if not report.passed:
        raise click.exceptions.Exit(report.exit_code)


@cli.command()
@click.argument("name", required=False)
@json_option
def families(name: str | None, as_json: bool) -> None:
    """List what is known: specs, their sizes, and the public model types that are understood."""
    from lineage import catalog
    from lineage.render import text

    if name and name not in catalog.families():
        raise catalog.unknown(name, catalog.families())
    found = catalog.summary(name)
    say_json({"schema": "lineage.families/1", "families": found}) if as_json else say(text.family_list(found))


@cli.command()
@json_option
def env(as_json: bool) -> None:
    """Print the versions and the machine, for a report of a fault."""
    import platform

    from lineage.render import text
    from lineage.writing import versions

    found = {**versions(), "platform": platform.platform(), "cpus": os.cpu_count(), "encoding": sys.stdout.encoding}
    say_json({"schema": "lineage.env/1", **found}) if as_json else say(text.environment(found))


def main() -> None:
    """The command line, to its end by SystemExit."""
    run(cli)


if __name__ == "__main__":
    main()
