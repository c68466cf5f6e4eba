"""The card that a run leaves: what it was made of, how, how good it is, and whom to thank."""

import hashlib
import json
from pathlib import Path

from cutaway.training.run import train
from tests.training import toy


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
        f"- loss {outcome.scores['loss']:.2f}\n", "![loss and score against steps](curves.png)",
    ):  # fmt: skip
        assert words in card, words
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(hashlib.sha256().hexdigest()) == len(facts["data"]["train"])
