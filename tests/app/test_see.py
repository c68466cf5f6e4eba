"""`cutaway see` as a person uses it."""

import json
import re
from pathlib import Path

import pytest
import torch

import cutaway
from tests.support import commands
from tests.support import hf_models as tiny
from tests.support import small_models as small

TEXT = "The animal didn't cross the street because it was too tired."


def see(*words: object, **environment: str) -> commands.Done:
    return commands.run(["see", *map(str, words)], environment={"COLUMNS": "100", **environment})


@pytest.fixture(scope="module")
def gru(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.model("gru-seq2seq").save(tmp_path_factory.mktemp("see") / "gru")


def test_heads_are_drawn() -> None:
    done = see(TEXT)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == cutaway.load("en-fr").translate(TEXT)
    assert [f"head {head}" for head in range(6)] == re.findall(r"head \d", "".join(filter(_is_title, lines)))
    assert max(map(len, lines)) <= 100
    assert "says most: --head" in done.out
    assert "█" in done.out
    links = lines[lines.index("strongest") + 1 :]
    assert len(links) == 8
    assert all("→" in line for line in links)


def _is_title(line: str) -> bool:
    """Of the line above heads: `head 0    head 1`"""
    return set(line.split()) <= {"head", *"0123456789"} and "head" in line


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("text", ["The cat", TEXT, f"{TEXT} {TEXT} {TEXT}"])
@pytest.mark.parametrize("kind", ["cross", "encoder"])
def test_what_is_drawn_fits(width: int, text: str, kind: str) -> None:
    """Keys are words with a gap between them, or numbers: never two letters of each."""
    lines = see(text, "--kind", kind, COLUMNS=str(width)).out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("Than" in line or "Thca" in line for line in lines)
    assert any(re.match(r" *0 1 2 |.*0 +5 +10|.*│ |.*The +cat", line) for line in lines)


def test_an_alignment_fits_too() -> None:
    for width in (60, 80):
        done = commands.run(["translate", "--attention", TEXT], environment={"COLUMNS": str(width)})
        drawing = done.out.splitlines()[1:]
        assert max(map(len, drawing)) <= width
        assert any("animal" in line for line in drawing)


def test_the_sink_is_named_and_does_not_compete(tmp_path: Path) -> None:
    model = tiny_sink(tmp_path)
    done = see("the cat sat on the mat", "-m", model)
    assert (done.code, done.err) == (0, "")
    said = " ".join(done.out.split())
    assert re.search(r"sink: the first token, <s>, gets most of the attention of [0-9]+ of 12 decoder heads", said)
    links = done.out.partition("strongest\n")[2].splitlines()
    assert len(links) == 8
    assert not any("→ <s>" in link for link in links)
    data = json.loads(see("the cat sat on the mat", "-m", model, "--json").out)
    assert (data["sink"]["key"], data["sink"]["of"]) == (0, 12)
    assert len(data["strongest"]) == 8
    assert all(link["query"] > 0 and link["key"] > 0 for link in data["strongest"])


def tiny_sink(folder: Path) -> Path:
    """A decoder in which the first position is a long vector, and every query has a part that looks for it."""
    model = cutaway.load(tiny.gpt2(folder / "gpt2"))
    decoder = model.network.decoder
    with torch.no_grad():
        decoder.embedding.positions.weight[0] = 0
        decoder.embedding.positions.weight[0, 0] = 50
        for block in decoder.blocks:
            block.self_attention.q.bias += 0.5
            block.self_attention.k.weight[:, 0] = 1
    return model.save(folder / "sink")


def test_a_token_alone_has_nothing_to_choose() -> None:
    from cutaway.cli.display.heads import Shown

    shown = Shown("decoder.blocks.0.self_attention", "decoder", torch.ones(2, 1, 1), ["cat"], ["cat"], None)
    assert shown.links([0, 1]) == []


@pytest.mark.parametrize("text", ["", " \n"])
def test_there_is_nothing_to_see_in_an_empty_text(text: str) -> None:
    said = 'the text is empty, so there is nothing to see; give one: cutaway see "The cat sat."'
    assert commands.one_sentence(see(text)) == said


def test_one_head_is_drawn_with_its_tokens() -> None:
    done = see("The cat sat.", "--kind", "encoder", "--layer", "1", "--head", "2")
    assert "encoder.blocks.1.self_attention.weights, head 2" in done.out
    assert "│ cat" in done.out
    assert "(head 2)" in done.out


def test_json_holds_the_networks_weights() -> None:
    data = json.loads(see("The cat sat.", "--kind", "decoder", "--layer", "0", "--json").out)
    trace = cutaway.load("en-fr").trace("The cat sat.")
    weights = trace["decoder.blocks.0.self_attention.weights"][0]
    assert data["attention"] == "decoder.blocks.0.self_attention"
    assert data["queries"] == data["keys"] == list(trace.words.target)
    assert [each["weights"] for each in data["heads"]] == [head.tolist() for head in weights]
    best = data["strongest"][0]
    assert best["weight"] == weights[:, 1:].max().item() == weights[best["head"], best["query"], best["key"]].item()


def test_json_explains_too() -> None:
    words = ("The cat sat.", "--kind", "cross", "--layer", "2", "--head", "4", "--explain", "Le,cat", "--json")
    explained = json.loads(see(*words).out)["explained"]
    assert [each["name"].rpartition(".")[2] for each in explained] == [
        "scores", "scaled_scores", "masked_scores", "weights"
    ]  # fmt: skip
    assert explained[-1]["at"] == [0, 4, 1, 1]


def test_a_weight_is_explained() -> None:
    done = see("The cat sat.", "--kind", "cross", "--layer", "2", "--head", "4", "--explain", "Le,cat")
    steps = [line.split(",")[0].rpartition(".")[2] for line in done.out.splitlines() if line.startswith("decoder.")]
    assert steps == ["scores", "scaled_scores", "masked_scores", "weights"]
    assert done.out.count("the network has the same") == 4
    by_number = see("The cat sat.", "--kind", "cross", "--layer", "2", "--head", "4", "--explain", "1, 1")
    assert by_number.out == done.out


def test_a_page_and_a_picture(tmp_path: Path) -> None:
    done = see("The cat sat.", "--html", tmp_path / "out.html", "--png", tmp_path / "out.png")
    assert (done.code, done.err) == (0, "")
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    data = page.partition('id="cutaway-data">')[2].partition("</script>")[0]
    assert json.loads(data)["traces"][0]["info"]["written"] == "Le chat s'est assis."
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.png"]


def test_every_half_has_its_attention(tmp_path: Path) -> None:
    for name, path, text in (
        ("decoder.blocks", tiny.gpt2(tmp_path / "gpt2"), "the cat sat"),
        ("encoder.blocks", tiny.bert(tmp_path / "bert", "BertForMaskedLM"), "the cat sat"),
        ("decoder.attention", small.model("bahdanau-gru").save(tmp_path / "gru"), "The cat"),
    ):
        done = see(text, "-m", path)
        assert (done.code, done.err) == (0, "")
        assert f"{name}" in done.out
        assert "strongest" in done.out


def test_an_image(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (40, 30), (200, 80, 40)).save(tmp_path / "red.png")
    done = see(tmp_path / "red.png", "-m", tiny.vit(tmp_path / "vit"))
    assert (done.code, done.err) == (0, "")
    assert "[class]" in done.out


def test_a_model_without_attention_says_so(gru: Path, tmp_path: Path) -> None:
    done = see("The cat", "-m", gru, "--html", tmp_path / "x.html")
    assert done.code == 0
    assert "has no attention" in done.out
    assert (tmp_path / "x.html").is_file()
    assert "nothing to draw" in commands.one_sentence(see("The cat", "-m", gru, "--json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layer", "9"], "no cross layer '9' (known: 0, 1, 2)"),
        (["--head", "9"], "has 6 heads, counted from 0; there is no head 9"),
        (["--explain", "3"], "give a query and a key"),
        (["--explain", "dog,0"], "there is no query 'dog'; choose one of 0:<s> 1:"),
        (["--html", "out.txt"], "give it a name that ends in .html"),
        (["--png", "out.jpg"], "give it a name that ends in .png"),
        (["--html", "/nowhere/out.html"], "can't write /nowhere/out.html"),
        (["--png", "/nowhere/out.png"], "can't write /nowhere/out.png"),
        (["--model", "nowhere/at-all"], "nowhere/at-all"),
        (["--kind", "side"], "'side' is not one of"),
    ],
)
def test_mistakes(words: list[str], said: str) -> None:
    assert said in commands.one_sentence(see("The cat sat.", *words, HF_HUB_OFFLINE="1"))
