"""The commands that read designs, run as users run them: what they fetch, how they fail, what they cost."""

import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lineage
from lineage import graph
from lineage.record import SCHEMA
from tests import handmade
from tests.fakehub import Hub, Repository, serving
from tests.handmade import Outcome, command, config, safetensors, tensors

Run = Callable[..., Outcome]
FILES = {"config.json": json.dumps(config()).encode(), "model.safetensors": safetensors(tensors())}
COMMANDS = [
    ("show", "org/model"),
    ("diff", "gpt2", "org/model"),
    ("params", "org/model"),
    ("path", "org/model", "gpt2"),
    ("tree", "--of", "hf://org/model"),
]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    commit = "1" * 40
    repositories = {
        "org/model": Repository({commit: FILES}, {"main": commit}),
        "org/gated": Repository({commit: FILES}, {"main": commit}, gated=True),
    }
    with serving(Hub(repositories)) as hub:
        yield hub


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    hub.asked.clear()

    def run(*arguments: str | Path) -> Outcome:
        environment = handmade.environment(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
        return command(*arguments, cwd=tmp_path, env=environment)

    return run


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_of_a_hub_only_the_config_is_fetched(arguments: tuple[str, ...], run: Run, hub: Hub) -> None:
    outcome = run(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert set(hub.files()) == {"config.json"}


def test_tensors_are_told_by_the_files(run: Run, hub: Hub) -> None:
    outcome = run("show", "org/model", "--tensors")
    assert outcome.code == 0
    assert "model.safetensors" in hub.files()
    assert "h.0.attn.c_attn.weight" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("diff", "gpt2", "org/gated"), 5, "gated"),
        (("params", "org/nothing"), 4, "not_found"),
        (("path", "gpt2", "org/model", "--offline"), 4, "offline"),
        (("diff", "gpt2", "lama"), 2, "usage"),
        (("tree", "lama"), 2, "usage"),
        (("params", "gpt2", "--kv-dtype", "fp17"), 2, "usage"),
        (("diff", "gpt2", "broken"), 7, "file"),
        (("show", "strange"), 6, "architecture"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, kind: str, run: Run, tmp_path: Path) -> None:
    for name, said in (("broken", "{"), ("strange", '{"model_type": "gpt99"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(said)
    outcome = run(*arguments)
    assert outcome.code == code, outcome.text
    assert outcome.err.startswith(f"error[{kind}]: ")
    as_json = run(*arguments, "--format", "json")
    assert (as_json.code, json.loads(as_json.out)["error"]["code"]) == (code, kind)


def test_folders_and_records_are_compared(run: Run, tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    for name, data in FILES.items():
        (tmp_path / "public" / name).write_bytes(data)
    assert run("diff", "public", "public/config.json", "--exit-code").code == 0
    (tmp_path / "made").mkdir()
    record = {"schema": SCHEMA, "family": "gpt2", "spec": graph.to_json(lineage.spec("gpt2"))}
    (tmp_path / "made" / "lineage.json").write_text(json.dumps(record))
    assert run("diff", "./made", "gpt2", "--exit-code").code == 0
    assert run("diff", "./made", "public", "--exit-code", "--only", "design").code == 0
    assert run("diff", "./made", "public", "--exit-code").code == 3


CHEAP = ("show gpt2", "diff gpt2 llama-3-8b", "params mixtral", "path gpt2 llama", "tree", "tree --of gpt2")
LIMIT = 0.4
"""CPU seconds on a core on which `yardstick` takes YARD."""
YARD = 0.15


def yardstick() -> float:
    """What a sum costs here and now, in CPU seconds."""
    start = time.process_time()
    sum(range(10**7))
    return time.process_time() - start


@pytest.mark.parametrize("words", CHEAP)
def test_commands_are_cheap(words: str, tmp_path: Path) -> None:
    """The least of several runs in turns with a sum that a busy machine slows down too; compiled as once installed."""
    environment = handmade.environment(PYTHONPYCACHEPREFIX=str(tmp_path), PYTHONDONTWRITEBYTECODE="")
    spent, sums = [], []
    for _ in range(24):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert command(*words.split(), cwd=tmp_path, env=environment).code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        sums.append(yardstick())
        if min(spent) / min(sums) < LIMIT / YARD:
            return
    raise AssertionError(f"{min(spent):.2f} s, {min(spent) / min(sums) * YARD:.2f} s on an idle core: {spent}")
