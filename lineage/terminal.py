"""What the commands share: options, text or JSON on stdout, complaints, signals, exit codes."""

import atexit
import contextlib
import errno
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from lineage.errors import LineageError, ResourceError, SourceError, UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def source_options(function: Function) -> Function:
    """The options by which a public checkpoint is found and read."""
    for option in reversed(
        (
            click.option("--revision", help="Branch, tag or commit of a hub repository."),
            click.option("--token", envvar="HF_TOKEN", help="Hub token (default: the stored one)."),
            click.option("--cache-dir", type=click.Path(path_type=Path), help="Where hub files are kept."),
            click.option("--offline", "local_files_only", is_flag=True, help="Use cached and local files alone."),
            click.option(
                "--allow-pickle", is_flag=True, help="Read pytorch_model.bin, with torch's weights-only reader."
            ),
        )
    ):
        function = option(function)
    return function


def say(lines: Iterable[str]) -> None:
    """Print lines to stdout; a reader that has gone away is no error. Raises ResourceError if there is no room."""
    from lineage.render.text import plain

    try:
        for line in lines:
            print(plain(line, sys.stdout.encoding or "utf-8").replace("\n", "\\n"))
        sys.stdout.flush()
    except (ValueError, OSError) as error:
        lost = _unwritten(error)
        if lost is not None:
            raise lost from None


def _unwritten(error: Exception) -> ResourceError | None:
    """What to say of an output that takes no more; nothing if nobody reads it. Nothing more is written to it."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (kept open until exit, so that the flush there finds it)
    if not isinstance(error, OSError) or error.errno in (errno.EPIPE, errno.EBADF):
        return None
    return ResourceError(f"the output cannot be written: {error.strerror}")


def say_json(data: Mapping[str, Any]) -> None:
    """Print one JSON document to stdout."""
    say(json.dumps(data, indent=2, ensure_ascii=True).splitlines())


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click
    """A number of bytes: 5GB, 500MB; `keep` is None."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(kB|MB|GB|TB)", str(value))
        count = int(float(found[1]) * 1000 ** (1 + ("kB", "MB", "GB", "TB").index(found[2]))) if found else 0
        if value == "keep" or isinstance(value, int):
            return None if value == "keep" else value
        if not count:
            self.fail(f"{value!r:.40} is not a size such as 5GB or 500MB, nor keep", param, ctx)
        return count


def quiet() -> bool:
    """Whether nobody looks on: no terminal, a CI job, or JSON is wanted."""
    return json_wanted() or "CI" in os.environ or not sys.stderr.isatty()


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Bytes, rate and time left, on stderr while somebody looks on; it is gone when all is done."""
    from lineage.render.text import bytes_text

    start, shown, silent = time.monotonic(), 0.0, quiet()

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if silent or now < shown + 0.1 or now < start + 0.3:
            return
        shown, rate = now, done / (now - start)
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        filled = "#" * (20 * done // max(total, 1))
        line = f"[{filled:20}] {bytes_text(done)} of {bytes_text(total)}, {bytes_text(rate)}/s{left}"
        sys.stderr.write(f"\r{line:70.70}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write(f"\r{'':70}\r")
            sys.stderr.flush()


def _stopper() -> Callable[[int, FrameType | None], None]:
    """Ends the run by an exception. Signals of haste, two seconds or less apart, do not disturb the clean-up."""
    last = -float("inf")

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        patient = time.monotonic() > last + 2
        last = time.monotonic()
        if patient:
            raise SystemExit(128 + number)

    return stop


def json_wanted() -> bool:
    """Whether the user asked for JSON, in either spelling: an error is JSON then too."""
    return bool({"--json", "--format=json"} & set(sys.argv)) or ("--format", "json") in pairwise(sys.argv)


def _complain(error: LineageError) -> int:
    """An error as text on stderr, or as JSON on stdout where that was asked for. Returns its exit code."""
    if json_wanted() and getattr(sys.stdout, "name", "") != os.devnull:
        say_json({"error": error.to_dict()})
        return error.exit_code
    from lineage.render.text import plain

    facts = (*error.facts, *_notes(error))
    lines = [f"error[{error.code}]: {error.message} (exit {error.exit_code})", *(f"  {fact}" for fact in facts)]
    if error.hint:
        lines.append(f"help: {error.hint}")
    for line in lines:
        click.echo(plain(line, sys.stderr.encoding or "utf-8").replace("\n", "\\n"), err=True)
    return error.exit_code


def _notes(error: BaseException) -> list[str]:
    """What was said of an exception on its way: which finished files wait for another run."""
    return getattr(error, "__notes__", [])


def _outcome(command: click.Command) -> int:
    """Run the command line; every outcome has its exit code (see `lineage --help`)."""
    try:
        return command(standalone_mode=False) or 0
    except LineageError as error:
        return _complain(error)
    except click.ClickException as error:
        if json_wanted():
            return _complain(UsageError(error.format_message()))
        error.show()
        return error.exit_code
    except MemoryError:
        return _complain(ResourceError("not enough memory"))
    except Exception as error:
        if os.environ.get("LINEAGE_DEBUG"):
            import traceback

            traceback.print_exc()
        if isinstance(error, OSError) and error.filename:  # the user's files, not our fault
            return _complain(SourceError(f"{error.filename}: {error.strerror}"))
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and (lost := _unwritten(error)):
            return _complain(lost)
        fault = f"{type(error).__name__}: {str(error)[:200]}"
        return _complain(LineageError(fault, hint="a fault of lineage; LINEAGE_DEBUG=1 shows where"))


def run(command: click.Command) -> None:
    """Run the command and exit. A signal that asks it to stop lets it clean up first; one that is ignored stays so."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before we began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (kept open until exit)
    heeded = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    stop = _stopper()
    for number in heeded:
        signal.signal(number, stop)
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # numpy starts threads when it is loaded, which nothing here uses
    if quiet():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        code = _outcome(command)
    except SystemExit as ending:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)  # all is done; impatience shall not change the exit code
        if isinstance(ending.code, int) and ending.code > 128:
            click.echo("; ".join(["interrupted", "nothing was left half-written", *_notes(ending)]), err=True)
        raise
    sys.exit(code)


def leave(command: Callable[[], None]) -> None:
    """Run a command that ends by SystemExit, and end the process as it says: at once, as far as nothing is pending.

    Python takes its modules apart one by one first, 25 to 75 ms of every command.
    """
    try:
        command()
    except SystemExit as ending:
        watched = sys.getprofile() or sys.gettrace()
        if not isinstance(ending.code, int) or threading.active_count() > 1 or watched:
            raise
        ending.__traceback__ = None  # with it go the frames, and files that they hold
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads what is left: Python has its own way to say so
            raise ending from None
        os._exit(ending.code)
