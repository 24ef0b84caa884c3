"""The pages that a browser opens: a gallery, and models with names and depths that a page could stumble over."""

from pathlib import Path

import lineage
from lineage.describe import Described
from lineage.design import compare
from lineage.lines import Branch
from lineage.render.diff_page import diff_page
from lineage.render.gallery import gallery
from lineage.render.model_page import model_page
from lineage.render.page import save, trace_page
from lineage.render.tree_page import tree_page

HOSTILE = {
    "script": "</script><script>document.title = 'taken'</script>",
    "image": "<img src=x onerror=\"document.title = 'taken'\">",
    "comment": "<!--<script>${alert(1)}&amp;'\"`",
    "right": "\u202etfel ot thgir\u202c אבגד \u0000\u0007",
    "long": "x" * 200,
}
OF_MODELS = ("script", "long")
OF_GALLERY = ("index", "tree", "configurator", "models/transformer", "models/falcon", "models/deepseek_v3",
              "diffs/gpt--gpt2", "diffs/gpt2--llama-3-8b", "diffs/transformer--gpt", "diffs/gemma--gemma2")  # fmt: skip
STRANGE = (*(f"diff-{name}" for name in HOSTILE), *(f"model-{name}" for name in OF_MODELS), "tree-hostile", "none",
           "deep", "trace")  # fmt: skip
PAGES = (*OF_GALLERY, *STRANGE)


def write_pages(place: Path) -> Path:
    gallery(place / "gallery")
    for name in OF_GALLERY:
        (place / name).parent.mkdir(exist_ok=True)
        (place / f"{name}.html").write_bytes((place / "gallery" / f"{name}.html").read_bytes())
    one, other = lineage.spec("gpt2"), lineage.spec("llama-3-8b")
    for key, name in HOSTILE.items():
        save(place / f"diff-{key}.html", diff_page(compare(one, other, (name, f"{name} 2")), f"lineage diff {name}"))
        if key in OF_MODELS:
            save(place / f"model-{key}.html", model_page(Described(name, name, one, name), f"lineage show {name}"))
    save(place / "tree-hostile.html", tree_page([hostile_tree()], "lineage tree"))
    save(place / "none.html", diff_page(compare(one, one, ("one", "the same")), "lineage diff one one"))
    deep = lineage.spec("gemma2", layers=100)
    save(place / "deep.html", diff_page(compare(lineage.spec("gpt2-xl"), deep, ("gpt2-xl", "deep")), ""))
    save(place / "trace.html", trace_page(REPORT))
    return place


def hostile_tree() -> Branch:
    root = Branch("root", 2017, HOSTILE["script"])
    for year, name in enumerate(HOSTILE.values(), start=2017):
        root.children.append(Branch(name, year, changes=(name, "and another")))
        root.children[-1].children.append(Branch(name, changes=(name,)))
    return root


REPORT = {
    "subject": "mine", "against": "theirs", "result": "failed", "likely": "the scale", "reference_faults": ["one"],
    "notes": ["a note"], "conditions": {"torch": "2"},
    "levels": [{"name": "replay", "verdict": "failed", "summary": "1 of 2", "details": ["off by 1"]}],
    "nodes": [{"ours": f"blocks.{i}.mlp", "theirs": f"h.{i}.mlp", "inherited": i, "local": i} for i in (0, 1)],
    "guilty": [{"ours": "blocks.1.mlp"}],
}  # fmt: skip
