"""The walls: who may import whom, how long a file or a function may be, and that the engine names no family.

`offences` judges one file by its path and source alone, so that each rule can also be shown a breach of it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = ("cli.py", "lineage/designs.py", "lineage/terminal.py")
PATHS = [
    ROOT / "cli.py",
    *(path for top in ("lineage", "specs", "converters") for path in (ROOT / top).rglob("*.py")),
]
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PATHS)}
SPOKEN = ("PUBLISHED", "Dialect(", "spelled(")  # what only a family's own file says, and no file that several share
STEMS = {
    Path(path).stem
    for path, source in SOURCES.items()
    if path.startswith(("specs/", "converters/")) and any(word in source for word in SPOKEN)
}
FAMILIES = {stem for stem in STEMS - {"__init__", "common"} if len(stem) > 2}

MAY_IMPORT = {  # specs and converters also their siblings, by relative import
    "specs": {"lineage.components", "math", "typing", "dataclasses", "collections.abc"},
    "converters": {"lineage.config", "lineage.rules", *sys.stdlib_module_names},
    **{name: {"lineage", "click", *sys.stdlib_module_names} for name in COMMAND},
}
TENSORS = {"modules", "parity"}  # parts of lineage that load torch when imported
MAY_LOAD = {"torch": TENSORS, "lineage.modules": TENSORS, "lineage.parity": TENSORS, "huggingface_hub": {"checkpoint"}}
MAY_LOAD_LATE = {"torch": {"checkpoint"}, "transformers": {"parity"}}  # in a function
FILE_LINES, FAMILY_LINES, FUNCTION_LINES, ENGINE_LINES = 300, 99, 60, 13_100


def within(name: str, packages: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def imports(node: ast.AST, package: list[str], late: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Each import's full name, the level of a relative one, and whether it waits for a call (or a type checker)."""
    late |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    late |= isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0, late) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        start += [node.module] if node.module else []
        yield from ((".".join([*start, alias.name]), node.level, late) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, package, late)


def forbidden(path: str, name: str, level: int, late: bool) -> bool:
    top, _, rest = path.partition("/")
    if re.match(r"lineage\.(specs|converters)\.", name):  # only the catalog finds them, and by looking
        return True
    rules = path if path in COMMAND else top
    if rules in MAY_IMPORT:
        return not (within(name, MAY_IMPORT[rules]) if level == 0 else level == 1 and path not in COMMAND)
    part = rest.partition("/")[0]
    if late and within(name, {key for key, parts in MAY_LOAD_LATE.items() if part in parts} | {"lineage"}):
        return False
    barred = {key for key, parts in MAY_LOAD.items() if part not in parts}
    return within(name, barred | {"transformers", "cli", "specs", "converters"})


def words(text: str) -> str:
    """Lower case, taken apart where a word ends inside: ``load_GPT2LMHead`` is " load gpt2 lmhead "."""
    return f" {re.sub(r'(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+', ' ', text).lower()} "


def spoken(tree: ast.AST) -> str:
    """The words of every identifier and string, docstrings apart: prose decides nothing."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    fields = (value for node in ast.walk(tree) if id(node) not in prose for _, value in ast.iter_fields(node))
    return "\n".join(words(value) for value in fields if isinstance(value, str))


def offences(path: str, source: str, families: set[str]) -> list[str]:
    tree, top = ast.parse(source), path.partition("/")[0]
    found = [
        f"may not import {name}{' at once' * (not late)}"
        for name, level, late in imports(tree, path.split("/")[:-1])
        if forbidden(path, name, level, late)
    ]
    if top == "lineage":
        said = spoken(tree)
        found += [f"names {family}" for family in sorted(families) if words(family) in said]
    cap, lines = FAMILY_LINES if top in ("specs", "converters") else FILE_LINES, source.count("\n")
    found += [f"has {lines} lines, over {cap}"] * (lines > cap)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            found += [f"{node.name} has {lines} lines, over {FUNCTION_LINES}"] * (lines > FUNCTION_LINES)
    return [f"{path}: {offence}" for offence in found]


def test_walls_stand() -> None:
    assert FAMILIES
    assert [offence for path, source in SOURCES.items() for offence in offences(path, source, FAMILIES)] == []


def code_lines(source: str) -> int:
    """How many lines hold code: blank ones, comments and docstrings apart (docs/decisions/005)."""
    prose = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in silent]
    return len({line for one in tokens for line in range(one.start[0], one.end[0] + 1)} - prose)


def test_engine_stays_small() -> None:
    engine = [source for path, source in SOURCES.items() if path.startswith("lineage/")]
    every = sum(source.count("\n") for source in engine)
    assert sum(map(code_lines, engine)) <= ENGINE_LINES, f"{every} lines in all"


def test_lines_of_code_are_told_from_prose() -> None:
    assert (
        code_lines('"""Prose\nof two lines."""\n\n# a comment\nx = """not\nprose"""  # said\ny = (\n    1,\n)\n') == 5
    )


def test_command_line_loads_nothing_heavy() -> None:
    command = [sys.executable, "-c", "import sys, lineage.cli; print(*sys.modules)"]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "lineage.cli" in loaded
    assert not {"torch", "transformers", "huggingface_hub"} & set(loaded)


BREACHES = [
    ("cli.py", "import rich"),
    ("cli.py", "from lineage.specs import bob"),
    ("cli.py", "from .specs import bob"),
    ("cli.py", "class C:\n    async def f(self):\n" + "        pass\n" * 60),
    ("specs/bob.py", "import os"),
    ("specs/bob.py", "import collections"),
    ("specs/bob.py", "import lineage"),
    ("specs/bob.py", "from lineage.rules import Rule"),
    ("specs/bob.py", "from lineage.specs.eve import eve"),
    ("specs/bob.py", "from ..components import Model"),
    ("converters/bob.py", "import torch"),
    ("converters/bob.py", "from lineage.components import Model"),
    ("converters/bob.py", "\n" * 100),
    ("lineage/graph.py", "import torch"),
    ("lineage/graph.py", "def f():\n    from torch.nn import functional"),
    ("lineage/graph.py", "if TYPE_CHECKING:\n    import torch"),
    ("lineage/graph.py", "from .modules import build"),
    ("lineage/render/text.py", "from ..modules import build"),
    ("lineage/render/text.py", "from .. import parity"),
    ("lineage/catalog.py", "import lineage.specs.bob"),
    ("lineage/catalog.py", "from .converters import bob"),
    ("lineage/catalog.py", "import specs"),
    ("lineage/checkpoint/read.py", "import torch"),
    ("lineage/checkpoint/read.py", "def f():\n    import transformers"),
    ("lineage/modules/norm.py", "def f():\n    import huggingface_hub"),
    ("lineage/parity/run.py", "from transformers import AutoConfig"),
    ("lineage/parity/run.py", "class C:\n    import transformers"),
    ("lineage/plan.py", "if name == 'ada-7b': pass"),
    ("lineage/plan.py", "x = f'{y}.Ada'"),
    ("lineage/plan.py", "def load_ada(): pass"),
    ("lineage/plan.py", "class AdaAttention: pass"),
    ("lineage/plan.py", "f(ada=1)"),
    ("lineage/plan.py", "open_eve = None"),
    ("lineage/plan.py", "\n" * 301),
    ("lineage/plan.py", "def f():\n" + "    pass\n" * 60),
]

KEPT = [
    ("cli.py", "import click, json, lineage\nfrom lineage.errors import LineageError"),
    (
        "specs/bob.py",
        "from collections.abc import Sequence\nfrom lineage.components import Model\nfrom .eve import eve",
    ),
    ("converters/bob.py", "import re\nfrom lineage.rules import Rule\nfrom lineage import config\nfrom . import eve"),
    ("converters/bob.py", "\n" * 99),
    ("lineage/catalog.py", "import lineage.specs\nfrom lineage import converters\nfrom .components import Model"),
    ("lineage/convert.py", "if TYPE_CHECKING:\n    from .modules import build"),
    ("lineage/convert.py", "def f():\n    from lineage.parity import verify"),
    ("lineage/checkpoint/read.py", "import huggingface_hub\ndef f():\n    import torch"),
    ("lineage/modules/norm.py", "import torch\nfrom . import registry"),
    ("lineage/parity/run.py", "import torch\ndef f():\n    import transformers"),
    ("lineage/plan.py", "'''As Ada does.'''\nadapt = 'adapted'\n"),
    ("lineage/plan.py", "def f():\n" + "    pass\n" * 59 + "\n" * 240),
]


@pytest.mark.parametrize(("path", "source"), BREACHES)
def test_a_breach_is_seen(path: str, source: str) -> None:
    assert len(offences(path, source, {"ada", "open_eve"})) == 1


@pytest.mark.parametrize(("path", "source"), KEPT)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert offences(path, source, {"ada", "open_eve"}) == []
