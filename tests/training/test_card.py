"""The card that a run leaves: what it was made of, how, how good it is, and whom to thank."""

import hashlib
import json
from pathlib import Path

from cutaway.training.folder import RunFolder
from cutaway.training.run import resume, train
from cutaway.training.setup import prepare
from cutaway.training.watch import Watch
from tests.support import toy_runs as toy


def test_a_card_says_it_all(tmp_path: Path) -> None:
    data = toy.corpus(tmp_path / "data")
    out = tmp_path / "backwards"
    outcome = train(toy.config(data, "card.title=Toy", "card.licence=cc0-1.0", "card.data_licence=mine"), out)
    card = (out / "README.md").read_text(encoding="utf-8")
    front = card.split("---\n")[1]
    assert front == 'license: "cc0-1.0"\nlibrary_name: "cutaway"\npipeline_tag: "translation"\n'
    facts = json.loads((toy.newest(out) / "facts.json").read_text())
    for words in (
        "# Toy\n", "(transformer-tiny, changed)", "from scratch on 380 examples", "cutaway translate",
        "--model backwards", "12 steps (all steps)", "seed 1", f"train `{facts['data']['train'][:16]}…`",
        "Model: cc0-1.0. Data: mine.",
        f"- bleu {outcome.scores['bleu']:.2f} (`nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:",
        f"- loss {outcome.scores['loss']:.2f}\n", "- baseline (the source, copied): bleu 0.00, chrf ",
        "![loss and score against steps](curves.png)",
    ):  # fmt: skip
        assert words in card, words
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(hashlib.sha256().hexdigest()) == len(facts["data"]["train"])


def test_a_card_says_why_a_run_ended(tmp_path: Path) -> None:
    """Also when the run is asked to go on once more."""
    data, out = toy.corpus(tmp_path / "data", 60), tmp_path / "out"
    assert train(toy.config(data, "validation.patience=1", "optimizer.rate=1e-12"), out).reason == "patience"
    ended = "steps (until nothing better was found)"
    assert ended in (out / "README.md").read_text(encoding="utf-8")
    assert resume(out).reason == "done already"
    assert ended in (out / "README.md").read_text(encoding="utf-8")


def test_a_run_that_starts_over_has_no_card_of_the_old_one(tmp_path: Path) -> None:
    data, out = toy.corpus(tmp_path / "data", 60), tmp_path / "out"
    train(toy.config(data), out)
    prepared = prepare(toy.config(data), Watch())
    RunFolder(out).begin(prepared.model, "")
    assert not {"README.md", "curves.png", "model.safetensors", "metrics.jsonl"} & {path.name for path in out.iterdir()}
