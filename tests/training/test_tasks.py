"""The other tasks of the one loop, and what a translator's data can be made of: pieces cut anew, joined pairs, two
vocabularies. Each is learnt, not only run."""

import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway.cli.compare import compare
from cutaway.cli.display.training import report
from cutaway.cli.evaluate import EvaluationOptions
from cutaway.cli.evaluate import evaluate as evaluate_command
from cutaway.data.clean import DropReport, clean, join_neighbours
from cutaway.data.encoding import EncodedTexts
from cutaway.data.pairs import Pair, read_pairs
from cutaway.decoding.windows import Materialized
from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation
from cutaway.models.usage import Usage
from cutaway.progress import Pace
from cutaway.seeing.render.alignment import alignment
from cutaway.text import bpe_dropout
from cutaway.text.bpe_dropout import BPEDropout
from cutaway.text.files import load_tokenizer
from cutaway.text.source_target import TwoTokenizers
from cutaway.text.train import train_tokenizer
from cutaway.training import tuning
from cutaway.training.config import Data, TrainConfig
from cutaway.training.corpus import PairCorpus
from cutaway.training.evaluate import by_length, evaluate
from cutaway.training.metrics import tokenized_bleu, translation_scores
from cutaway.training.run import resume, train
from cutaway.training.setup import prepare
from cutaway.training.tasks import translate
from cutaway.training.tasks.classify import Classification
from cutaway.training.tasks.complete import Completion
from cutaway.training.tasks.translate import Pairs, Translation
from cutaway.training.toml import with_settings
from cutaway.training.watch import Watch
from tests.support import toy_runs as toy

LEARNER = ["schedule.steps=60", "batches.tokens=256", "optimizer.rate=0.01", "validation.every=30", "model.n_blocks=1"]


def test_a_writer_learns_what_comes_next(tmp_path: Path) -> None:
    """A text that counts to ten and begins again: after a minute's learning every word but the first is certain."""
    text = tmp_path / "count.txt"
    text.write_text("one two three four five six seven eight nine ten\n" * 200)
    config = TrainConfig(task="complete", data=Data(text=(str(text),), max_tokens=16))
    settings = [*LEARNER, "tokenizer.vocabulary=300", "model.preset=gpt2-tiny", "model.d_model=32", "model.d_ff=64",
                "model.n_heads=2", "model.dropout=0.0", "regularization.smoothing=0.0"]  # fmt: skip
    outcome = train(with_settings(config, settings), tmp_path / "out")
    assert outcome.scores["perplexity"] < 1.5  # over five seeds, in either precision: 1.096 to 1.164
    written = cutaway.load(tmp_path / "out").complete("one two three four", max_new_tokens=8)
    assert written.startswith(" five")


@pytest.mark.parametrize("n", [1, 12])
def test_a_short_text_is_enough_by_default(tmp_path: Path, n: int) -> None:
    """A step is not smaller than an example."""
    (tmp_path / "poem.txt").write_text("A rule of wood\nmeasures the shelf\nand then itself\n" * n)
    config = TrainConfig(task="complete", data=Data(text=(str(tmp_path / "poem.txt"),)))
    small = ["schedule.steps=2", "model.d_model=32", "model.d_ff=64", "model.n_heads=2", "tokenizer.vocabulary=300"]
    assert train(with_settings(config, small), tmp_path / "out").reason == "done"


def test_a_classifier_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which of two words is in a text."""
    draw, rows = random.Random(0), []
    for _ in range(300):
        words = draw.choices(["the", "a", "very", "film", "was", "this"], k=5)
        label = draw.choice(("good", "bad"))
        words[draw.randrange(5)] = {"good": "wonderful", "bad": "terrible"}[label]
        rows.append(f"{' '.join(words)}\t{label}\n")
    (tmp_path / "texts.tsv").write_text("".join(rows))
    config = TrainConfig(task="classify", data=Data(pairs=(str(tmp_path / "texts.tsv"),)))
    settings = [*LEARNER, "tokenizer.vocabulary=300", "model.preset=bert-tiny", "model.d_model=32", "model.d_ff=64",
                "optimizer.rate=0.003"]  # fmt: skip
    outcome = train(with_settings(config, settings), tmp_path / "out")
    assert outcome.scores["accuracy"] > 95  # over five seeds, in either precision: 100
    model = cutaway.load(tmp_path / "out")
    assert model.usage.labels == ("bad", "good")
    assert model.usage.task == "classify"
    assert model.classify("this film was wonderful")[0].label == "good"
    step = next(line for line in toy.metrics(tmp_path / "out") if "loss" in line)
    assert step["texts_per_second"] > 0
    assert "tokens_per_second" not in step
    assert f"60 steps (all steps), {outcome.progress.tokens:,} texts, " in (tmp_path / "out" / "README.md").read_text()
    report(outcome, tmp_path / "out", as_json=True)
    assert json.loads(capsys.readouterr().out)["texts"] == outcome.progress.tokens


def test_long_texts_are_cut_and_learnt(tmp_path: Path) -> None:
    """What makes their class is said first; none is left out."""
    words = {"good": "wonderful", "bad": "terrible"}
    rows = [f"{words[label]} {i} {'word ' * 3000}\t{label}\n" for label in words for i in range(20)]
    (tmp_path / "texts.tsv").write_text("".join(rows))
    config = TrainConfig(task="classify", data=Data(pairs=(str(tmp_path / "texts.tsv"),), max_tokens=12))
    small = ["schedule.steps=2", "model.preset=bert-tiny", "model.d_model=32", "model.d_ff=64", "model.n_heads=2"]
    prepared = prepare(with_settings(config, [*small, "tokenizer.vocabulary=300"]), Watch())
    task = prepared.task
    assert isinstance(task, Classification)
    assert set(task.train.lengths.tolist()) == {12}
    assert prepared.model.tokenizer is not None
    special = prepared.model.tokenizer.special
    assert all(ids[0] == special.start and ids[-1] == special.end for ids in task.train)
    assert len(task.train) + len(task.valid) == 40


def test_evaluation_is_shown_as_it_is_made() -> None:
    """Longest first, as a search begins with them: answers in the order asked would wait for those made last."""
    given: list[str] = []

    class Echo:
        def translate(self, texts: Iterator[str], **_: object) -> Iterator[str]:
            assert isinstance(texts, Materialized), "the first windows of a stream are small, and slow"
            for text in texts:
                given.append(text)
                yield text.upper()

    def seen(texts: Iterator[str], sizes: Sequence[int]) -> Iterator[str]:
        assert list(sizes) == [7 + 3, 5 + 3, 1 + 3, 1 + 3], "their lengths, and the mean"
        return texts

    sources = ["a", "b b b", "c", "d d d d"]
    found = evaluate(Echo(), sources, [["A", "B B B", "C", "D D D D"]], show_progress=seen)  # type: ignore[arg-type]
    assert given == ["d d d d", "b b b", "a", "c"]
    assert found.written == ["A", "B B B", "C", "D D D D"]
    assert found.scores["chrf"].value == 100


class Wordy:
    """Translates into too few words, the right ones or too many, by the length penalty."""

    usage = Usage(generation=Generation(beams=5))

    def __init__(self, best: float) -> None:
        self.best = best

    def translate(
        self, texts: Iterator[str], *, beams: int, length_penalty: float, max_new_tokens: int, **_: object
    ) -> list[str]:
        assert beams == 5
        assert max_new_tokens == 14, "twice the longest target: what never ends costs no more"
        n = round(6 + 5 * (length_penalty - self.best))
        return [" ".join("abcdefghijklmnop"[:n]) for _ in texts]


@pytest.mark.parametrize("best", [0.6, 1.0, 1.4, 1.8])
def test_the_length_penalty_is_chosen_by_bleu(best: float) -> None:
    none, valid = (
        Pairs(EncodedTexts.of([]), EncodedTexts.of([])),
        Pairs(EncodedTexts.of([[1]]), EncodedTexts.of([[1] * 7])),
    )
    task = Translation(none, valid, [("x", "a b c d e f")] * 1501, start=2, pad=0)
    seen: list[str] = []
    usage = task.tuned(Wordy(best), lambda pace: seen.append(str(pace)))  # type: ignore[arg-type]
    assert usage == Usage(generation=Generation(beams=5, length_penalty=best))
    assert (seen[0], seen[-1]) == ("1 of 1,504", "1,504 of 1,504"), "every fourth pair with each penalty"


def test_a_trained_model_searches_as_was_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    train(tunable(tmp_path, monkeypatch), tmp_path / "out", watch=heard)
    usage = cutaway.load(tmp_path / "out").usage
    assert (usage.length_penalty, usage.task) == (1.8, "translate")
    assert "It searches with 5 beams, length penalty 1.8." in (tmp_path / "out" / "README.md").read_text()
    assert heard.said[-2:] == [
        "choosing the length penalty on validation pairs, 0:15 at most (validation.tune)",
        "with 5 beams, a length penalty of 1.8 is best: kept in config.json",
    ]
    assert heard.shown[-2:] == ["choosing the length penalty: 20 of 20", ""], "what is over is cleared"
    monkeypatch.setattr(Translation, "tuned", lambda *_: pytest.fail("it was tuned twice"))
    assert resume(tmp_path / "out").reason == "done already"


class Heard(Watch):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def busy(self, text: str, pace: Pace | None = None) -> None:
        self.shown.append(text if pace is None else f"{text}: {pace}")


def tunable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """A run of a second, after which a penalty of 1.8 is the best."""
    monkeypatch.setattr(translate, "PENALTIES", (1.8,))
    monkeypatch.setattr(translate, "NOISE", 0.0)
    return toy.config(toy.corpus(folder / "data"), "validation.tune=true", "schedule.steps=2")


def test_a_model_that_has_learnt_nothing_is_not_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write until it is stopped: minutes for nothing."""
    monkeypatch.setattr(Translation, "tuned", lambda *_: pytest.fail("it was tuned"))
    config = toy.config(toy.corpus(tmp_path / "data"), "validation.tune=true", "schedule.steps=2")
    outcome = train(config, tmp_path / "out")
    assert outcome.scores["bleu"] < 1


def test_tuning_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MOST", 0.0)
    heard, out = Heard(), tmp_path / "out"
    train(tunable(tmp_path, monkeypatch), out, watch=heard)
    assert heard.said[-1] == "0:00 were not enough: the length penalty stays 1"
    assert heard.shown[-2:] == ["choosing the length penalty: 1 of 20", ""]
    assert cutaway.load(out).usage.length_penalty == 1.0


@pytest.mark.parametrize("at_once", [False, True])
def test_tuning_that_is_stopped_leaves_a_finished_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    class Stopped(Heard):
        """Ctrl-C, once or twice, while it is tuned."""

        def busy(self, text: str, pace: Pace | None = None) -> None:
            super().busy(text, pace)
            if at_once and text.startswith("choosing"):
                raise KeyboardInterrupt

    heard, out = Stopped(), tmp_path / "out"

    def stop() -> str | None:
        return "SIGINT" if any(text.startswith("choosing") for text in heard.shown) else None

    config = tunable(tmp_path, monkeypatch)
    if at_once:
        with pytest.raises(KeyboardInterrupt):
            train(config, out, watch=heard, stop=stop)
    else:
        assert train(config, out, watch=heard, stop=stop).reason == "done"
    assert heard.said[-1] == (
        f"stopped before the length penalty was chosen: it stays 1. The model is finished; `cutaway resume {out}` "
        f"chooses it"
    )
    assert heard.shown[-1] == ""
    assert cutaway.load(out).usage.length_penalty == 1.0
    assert "2 steps (all steps)" in (out / "README.md").read_text()
    resume(out)
    assert cutaway.load(out).usage.length_penalty == 1.8


def test_a_language_model_has_nothing_to_tune(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two three four five six seven eight\n" * 200)
    config = TrainConfig(task="complete", data=Data(text=(str(tmp_path / "text"),), max_tokens=8))
    small = ["schedule.steps=2", "model.preset=gpt2-tiny", "model.d_model=32", "model.d_ff=64", "model.n_heads=2"]
    heard = Heard()
    train(
        with_settings(config, [*small, "tokenizer.vocabulary=300", "machine.device=cpu"]), tmp_path / "out", watch=heard
    )
    assert not [text for text in (*heard.said, *heard.shown) if "penalty" in text or "search" in text]
    assert heard.shown[-1] == "", "what is over is cleared"


def test_a_class_that_was_never_learnt(tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("".join(f"text {i}\t{i % 2}\n" for i in range(40)))
    (tmp_path / "valid.tsv").write_text("a text\t7\nanother\t1\n")
    files = {"pairs": (str(tmp_path / "texts.tsv"),), "valid_pairs": (str(tmp_path / "valid.tsv"),)}
    config = with_settings(TrainConfig(task="classify", data=Data(**files)), [*LEARNER, "tokenizer.vocabulary=300"])
    with pytest.raises(InputError, match="the class '7' is of a text to validate on, but of none to learn from"):
        train(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("task", "preset", "said"), [
    ("complete", "bert-tiny", "model.preset='bert-tiny' has encoder; the task complete needs decoder"),
    ("classify", "gpt2-tiny", "model.preset='gpt2-tiny' has decoder; the task classify needs encoder"),
    ("classify", "vit-tiny", "model.preset='vit-tiny' reads images, and classify reads text"),
])  # fmt: skip
def test_presets_of_other_tasks(tmp_path: Path, task: str, preset: str, said: str) -> None:
    (tmp_path / "texts.tsv").write_text("".join(f"text {i}\t{i % 2}\n" for i in range(40)))
    file = (str(tmp_path / "texts.tsv"),)
    data = Data(text=file) if task == "complete" else Data(pairs=file)
    config = with_settings(TrainConfig(task=task, data=data), ["tokenizer.vocabulary=300", f"model.preset={preset}"])
    with pytest.raises(ConfigError, match=said):
        train(config, tmp_path / "out")


def test_baselines() -> None:
    """What is scored without having learnt, by hand: the commonest class, the tokens by their frequency, a copy."""
    texts = EncodedTexts.of([[1]] * 4)
    accuracy = Classification(texts, [0, 1, 1, 2], texts, [1, 0, 1, 2], pad=0).baseline().scores
    assert accuracy == {"accuracy": 50.0}
    scores = Completion(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 0, 1, 2]), 2).baseline().scores
    nll = -sum(math.log(n / 4.5) for n in (3, 1, 0.5)) / 3  # token 2 does not occur: half an occurrence
    assert scores == pytest.approx({"loss": nll, "perplexity": math.exp(nll)})
    pairs = Pairs(texts, texts)
    same = Translation(pairs, pairs, [("a b c d e", "a b c d e")], start=2, pad=0).baseline().scores
    assert same == pytest.approx({"bleu": 100.0, "chrf": 100.0})


TEXTS = ["the cat sat on the mat.", "the dogs sat on the mats, sadly!", "a cat, a dog and the mat"] * 20


def test_words_cut_anew_are_the_same_words() -> None:
    tokenizer = train_tokenizer(TEXTS, "bpe", 330, frame="end")
    sampled = BPEDropout(tokenizer, 0.3, seed=1)
    plain = tokenizer.encode_ids(TEXTS[:3])
    drawn = [[sampled(ids, random.Random(i)) for i in range(20)] for ids in plain]
    for text, ids, ways in zip(TEXTS, plain, drawn, strict=False):
        assert {tokenizer.decode(way) for way in ways} == {text}
        assert len({tuple(way) for way in ways}) > 5
        assert all(len(way) >= len(ids) and way[-1] == ids[-1] for way in ways)
    again = BPEDropout(tokenizer, 0.3, seed=1)
    assert [[again(ids, random.Random(i)) for i in range(20)] for ids in plain] == drawn
    assert BPEDropout(tokenizer, 0.0, seed=1)(plain[0], random.Random(0)) == plain[0]  # nothing left out: BPE itself


def test_only_bpe_can_be_cut_anew() -> None:
    with pytest.raises(ConfigError, match="bpe_dropout needs a byte-level BPE vocabulary, and this one is unigram"):
        BPEDropout(train_tokenizer(TEXTS, "unigram", 60), 0.1, seed=1)


@pytest.mark.parametrize("setting", ["regularization.bpe_dropout=0.1", "tokenizer.joint=false", "data.joined=3",
                                     "regularization.r_drop=1.0"])  # fmt: skip
def test_translators_of_every_making_go_on_bit_for_bit(tmp_path: Path, setting: str) -> None:
    """Stopped in the middle and resumed: the same weights as in one go, whatever the batches are made of."""
    config = toy.config(toy.corpus(tmp_path), setting, "schedule.steps=6", "validation.every=3")
    train(config, tmp_path / "whole")
    asked = iter(range(100))
    train(config, tmp_path / "halves", stop=lambda: "SIGINT" if next(asked) >= 2 else None)
    resume(tmp_path / "halves")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "halves")]
    assert weights[0] == weights[1]
    assert isinstance(cutaway.load(tmp_path / "whole").translate("pa ku"), str)


def test_two_vocabularies_survive_a_folder(tmp_path: Path) -> None:
    source, target = (
        train_tokenizer(TEXTS, "bpe", 320, frame="end"),
        train_tokenizer(["le chat"] * 9, "bpe", 270, frame="end"),
    )
    TwoTokenizers(source, target).save(tmp_path)
    both = load_tokenizer(tmp_path)
    assert isinstance(both, TwoTokenizers)
    assert both.encode("the cat").ids == source.encode("the cat").ids
    assert both.encode_target("le chat").ids == target.encode("le chat").ids != both.encode("le chat").ids
    assert both.decode(both.encode_target("le chat").ids) == "le chat"
    assert both.vocabulary_size == max(source.vocabulary_size, target.vocabulary_size)


def test_cutting_anew_remembers_so_many_words_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(TEXTS, "bpe", 330, frame="end")
    rows = tokenizer.encode_ids(TEXTS)
    all_known, few_known = BPEDropout(tokenizer, 0.3, seed=1), BPEDropout(tokenizer, 0.3, seed=1)
    found = [all_known(row, random.Random(i)) for i, row in enumerate(rows)]
    monkeypatch.setattr(bpe_dropout, "_MOST", 2)
    assert [few_known(row, random.Random(i)) for i, row in enumerate(rows)] == found
    assert len(few_known._known) <= 2 < len(all_known._known)


def test_long_texts_are_kept_where_many_tokens_are_allowed(tmp_path: Path) -> None:
    rows = [f"{'word ' * 500}{i}\t{'good' if i % 2 else 'bad'}\n" for i in range(30)]
    (tmp_path / "texts.tsv").write_text("".join(rows))
    for max_tokens, n in ((100, 0), (1000, 30)):
        corpus = PairCorpus(Data(pairs=(str(tmp_path / "texts.tsv"),), max_tokens=max_tokens), max_ratio=0.0)
        kept = list(clean(read_pairs(corpus.spec), corpus.rules, DropReport()))
        assert len(kept) == n


def test_neighbours_are_joined() -> None:
    pairs = [Pair(f"s{i}", f"t{i}", f"f:{i}") for i in range(8)]
    found = [pair.source for pair in join_neighbours(pairs, 3)]
    assert found[:6] == ["s0", "s1", "s0 s1", "s2", "s0 s1 s2", "s3"]
    for size in (1, 2, 3):
        of_size = [text for text in found if len(text.split()) == size]
        assert " ".join(of_size) == " ".join(f"s{i}" for i in range(8 // size * size)), "each in its turn, once"
    assert [pair.target for pair in join_neighbours(pairs, 1)] == [f"t{i}" for i in range(8)]


def test_scores_by_length() -> None:
    sources = ["a b c", "a " * 15, "b " * 15, "c " * 120]
    references = [["x y z w", "r s t u", "k l m n", "d e f g"]]
    written = ["x y z w", "r s t u", "wrong here all over", "d e f g"]
    buckets = by_length(sources, references, written)
    assert [(str(b), b.n, b.words) for b in buckets] == [("1–9", 1, 3.0), ("10–19", 2, 15.0), ("100+", 1, 120.0)]
    assert buckets[0].bleu == pytest.approx(100.0)
    assert 0 < buckets[1].bleu < 100


def test_compared_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two models on neighbours joined: scores of each, their signatures, by length, and a picture."""
    data = toy.corpus(tmp_path / "data", 60)
    names = [str(tmp_path / name) for name in ("one", "two")]
    for name, steps in zip(names, (2, 4), strict=True):
        train(toy.config(data, f"schedule.steps={steps}"), name)
    given = {"source": [str(data.source)], "target": [str(data.target)], "joined": 3, "beams": 1, "device": "cpu"}
    assert len(EvaluationOptions(**given).texts()[0]) == 60 + 30 + 20
    compare(names, png=tmp_path / "curve.png", **given)
    shown = capsys.readouterr().out
    for words in (
        "bleu: nrefs:1|",
        "chrf: nrefs:1|",
        f"BLEU of {names[0]}",
        f"BLEU of {names[1]} against words",
        "1–9",
    ):
        assert words in shown.replace("\n", " "), words
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    compare(names, as_json=True, **given)
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == names
    assert [row["n"] for row in facts[names[0]]["by_length"]] == [row["n"] for row in facts[names[1]]["by_length"]]
    assert all(each["seconds_an_epoch"] > 0 for each in facts.values())
    evaluate_command(names[0], **given)
    assert "chrF" in capsys.readouterr().out


def test_trained_further_with_another_dropout(tmp_path: Path) -> None:
    data = toy.corpus(tmp_path / "data", 60)
    train(toy.config(data, "schedule.steps=2"), tmp_path / "first")
    before = cutaway.load(tmp_path / "first")
    assert before.config.decoder.dropout == 0.1
    given = TrainConfig(data=Data(source=(str(data.source),), target=(str(data.target),)))
    still = ["schedule.steps=1", "optimizer.rate=1e-12", "averaging.ema=0", "model.attention_dropout=0.2"]
    train(
        with_settings(given, [f"model.start={tmp_path / 'first'}", "model.dropout=0.35", *still]), tmp_path / "second"
    )
    after = cutaway.load(tmp_path / "second")
    assert (after.config.encoder.dropout, after.config.decoder.attention_dropout) == (0.35, 0.2)
    for one, other in zip(before.network.parameters(), after.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)  # the rate


@pytest.mark.parametrize("missing", ["sacrebleu", "sacremoses"])
def test_evaluate_says_what_is_missing_before_it_works(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = cutaway.load("en-fr")
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(cutaway.Model, "translate", lambda *_, **__: pytest.fail("it was translated first"))
    with pytest.raises(InputError, match=f"{missing}, which is not installed: pip install 'cutaway"):
        evaluate(model, ["a"], [["b"]], tokenized="fr")


def test_evaluate_asks_for_as_many() -> None:
    model = cutaway.Model(cutaway.build("transformer-tiny"))
    with pytest.raises(InputError, match="there are 2 sentences and 1 translations; give as many"):
        evaluate(model, ["a", "b"], [["c"]])


def test_papers_count_words_otherwise() -> None:
    """Capital letters, curly quotation marks and the space before a full stop are nothing; a wrong word is."""
    same = ["ein Mann hält ein Schild : „ komm jetzt “ ."], [['Ein Mann hält ein Schild: "Komm jetzt".']]
    assert tokenized_bleu(*same, "de").value == pytest.approx(100.0)
    assert translation_scores(*same)["bleu"].value < 60
    # of ten words one is wrong in the middle: 9/10, 7/9, 5/8 and 3/7 of the 1- to 4-grams are right
    written, reference = "a b c d X f g h i j", "A b c d e f g h i j"
    expected = 100 * (9 / 10 * 7 / 9 * 5 / 8 * 3 / 7) ** 0.25
    assert tokenized_bleu([written], [[reference]], "de").value == pytest.approx(expected)


def test_the_alignment_adds_up(tmp_path: Path) -> None:
    """Each written word's attention, over the words of the source, sums to 1; the pieces are put together."""
    train(toy.config(toy.corpus(tmp_path), "schedule.steps=2", "validation.every=2"), tmp_path / "out")
    model = cutaway.load(tmp_path / "out")
    found = alignment(model, "pa ku to", "OT UK AP")
    assert found.source == ["pa", "ku", "to", "</s>"]
    assert found.written == ["OT", "UK", "AP", "</s>"]
    torch.testing.assert_close(found.weights.sum(1), torch.ones(4), rtol=0, atol=1e-5)  # float32 sums
    assert str(found).splitlines()[-1].strip().startswith("</s>")
