"""`lineage verify`'s arguments: what is wrong about them is told before anything heavy is loaded."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lineage import cli
from lineage.checkpoint import hub
from lineage.errors import ArchitectureError, LineageError, SourceError, UsageError

ROOT = Path(__file__).parents[2]
ADDITION = "examples/addition/model"
WRONG = {  # arguments -> exit code, part of the message
    "": (2, "give a MODEL"),
    "x --tiny gpt2": (2, "give a MODEL"),
    "--tiny bob": (2, "no spec or model 'bob'"),
    f"{ADDITION} --level fp16": (2, "no level fp16"),
    f"{ADDITION} --level fp16 --golden x": (2, "compares with that file alone"),
    f"{ADDITION} --prompts no-such": (2, "there is no file no-such"),
    f"{ADDITION} --golden no-such": (2, "there is no file no-such"),
    f"{ADDITION} --save-golden no-such/file": (2, "there is no folder no-such"),
    f"{ADDITION} --trace page.pdf": (2, "the name says the form"),
    f"{ADDITION} --against ./no-such": (4, "no such file or directory"),
    f"{ADDITION} --device gpu": (8, "device 'gpu' is not known"),
    f"{ADDITION} --rtol -1": (2, "-1"),
    "./no-such": (4, "no such file or directory"),
    "examples": (4, "no config.json in examples"),
    "README.md": (2, "neither a directory nor a weights file"),
    "no-such/model --offline": (4, "not in the cache"),
}
ASK_ALL = """
import json, sys
from click.testing import CliRunner
from lineage import cli
print(json.dumps([getattr((done := CliRunner().invoke(cli.cli, ["verify", *arguments.split()])).exception, "message",
                          done.output) for arguments in json.loads(sys.argv[1])]))
print(*({"torch", "transformers"} & set(sys.modules)))
"""


def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, **options)


def test_each_is_told_and_nothing_heavy_is_loaded_for_it():
    said, loaded = run("-c", ASK_ALL, json.dumps(list(WRONG))).stdout.splitlines()
    for message, (arguments, (_, part)) in zip(json.loads(said), WRONG.items(), strict=True):
        assert part in message, arguments
    assert loaded == ""


@pytest.mark.parametrize("arguments", WRONG)
def test_exit_codes(arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(cli.cli, ["verify", *arguments.split()])
    code = done.exception.exit_code if isinstance(done.exception, LineageError) else done.exit_code
    assert code == WRONG[arguments][0]


def test_an_answer_takes_half_a_second():
    def spent():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    for arguments, code in (((ADDITION, "--level", "fp16"), 2), (("./no-such",), 4)):
        costs = []
        for _ in range(3):  # the first may compile, and a busy machine disturbs
            before = spent()
            assert run("-m", "lineage", "verify", *arguments).returncode == code
            costs.append(spent() - before)
        assert min(costs) < 0.5


def test_what_only_the_hub_knows_is_left_to_later(monkeypatch, tmp_path):
    """An id that is in no cache is no mistake yet: the hub is asked, after the imports."""
    asked = []

    class Hub(Exception):
        pass

    def reach(self):
        if self.access.local_files_only:
            return usual(self)
        asked.append(self.name)
        raise Hub

    usual = hub.Repository.reached
    monkeypatch.setattr(hub.Repository, "reached", reach)
    arguments = ["verify", "someone/something", "--cache-dir", str(tmp_path)]
    assert isinstance(CliRunner().invoke(cli.cli, arguments).exception, Hub)
    assert asked == ["someone/something"]
    done = CliRunner().invoke(cli.cli, [*arguments, "--offline"])
    assert isinstance(done.exception, SourceError)
    assert len(asked) == 1


def test_a_config_that_is_not_understood_is_told_at_once(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nobody"}')
    done = CliRunner().invoke(cli.cli, ["verify", str(tmp_path)])
    assert isinstance(done.exception, ArchitectureError)


def test_two_revisions(tmp_path):
    done = CliRunner().invoke(cli.cli, ["verify", "a/b@main", "--revision", "other"])
    assert isinstance(done.exception, UsageError)
