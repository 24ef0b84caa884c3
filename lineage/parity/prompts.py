"""A user's own prompts: a line each, token ids as a JSON list or text for the model's tokenizer."""

import json
from pathlib import Path
from typing import Any

from lineage.checkpoint.source import whole_file
from lineage.errors import UsageError


def read_prompts(file: Path, tokenizer: Path) -> list[list[int]]:
    """Token ids of every line of a file. tokenizer: the folder that holds its files.

    Raises UsageError: no such file, nothing in it, text without a tokenizer.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompts: {error}") from None
    if not lines:
        raise UsageError(f"prompts {file}: nothing in it", hint="a line a prompt: text, or token ids as [1, 2, 3]")
    return [prompt_ids(line, tokenizer, f"{file}, line {number}")[0] for number, line in enumerate(lines, start=1)]


def prompt_ids(line: str, folder: Path, where: str) -> tuple[list[int], Any]:
    """Token ids of one prompt, and the tokenizer that gave them, if it was text. where: for the message.

    Raises UsageError as `read_prompts` does.
    """
    if line.lstrip().startswith("["):
        try:
            ids = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where}: not a list of token ids ({error})") from None
        if not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise UsageError(f"{where}: not a list of token ids")
        return list(ids), None
    from transformers import AutoTokenizer

    try:
        whole = whole_file(folder)
        place = {"gguf_file": whole.name} if whole else {}
        tokenizer = AutoTokenizer.from_pretrained(whole.parent if whole else folder, local_files_only=True, **place)
    except Exception as error:  # whatever a folder without a tokenizer provokes
        raise UsageError(f"{where}: text, and no tokenizer in {folder}", hint="give token ids as [1, 2, 3]") from error
    try:
        ids = tokenizer(line)["input_ids"]
    except Exception as error:  # characters that it does not know, as its library says it
        raise UsageError(f"{where}: the tokenizer does not take this text ({str(error)[:100]})") from error
    if not ids:
        raise UsageError(f"{where}: the tokenizer gives no tokens")
    return list(ids), tokenizer
