"""What happens to people who train for the first time: folders taken by another run, files that are not what they seem,
runs that go on elsewhere, few texts of a class."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import cutaway
from cutaway import schema
from cutaway.data.clean import DropReport
from cutaway.data.tables import rows
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.seeing.render.alignment import alignment
from cutaway.training import run
from cutaway.training.config import Data, ModelChoice, TrainConfig
from cutaway.training.corpus import PairCorpus
from cutaway.training.folder import RunFolder
from cutaway.training.loop import Progress
from cutaway.training.metrics import ACCURACY, BLEU, LOSS
from cutaway.training.run import resume, train
from cutaway.training.setup import prepare
from cutaway.training.toml import with_settings, write_config
from cutaway.training.watch import Watch
from tests.support import commands
from tests.support import small_models as small
from tests.support import toy_runs as toy


@pytest.fixture
def data(tmp_path: Path) -> toy.Corpus:
    return toy.corpus(tmp_path / "data", 60)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".claim"}


# A folder for two


def test_two_runs_that_begin_at_once(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second was prepared before the first had begun, and finds the folder taken: it leaves it as it is."""
    config = toy.config(data)
    prepared = prepare(config, Watch())
    first = RunFolder(tmp_path / "out")

    def overtaken(*_: object) -> object:
        with first.claimed(anew=True):
            first.begin(prepared.model, "")
        return prepared

    monkeypatch.setattr(run, "prepare", overtaken)
    with pytest.raises(CheckpointError, match="holds another run, at its beginning"):
        train(config, first.path)
    left = contents(first.path)
    with first.claimed(), pytest.raises(CheckpointError, match="another process is training in .*out now"):
        train(config, first.path, force=True)
    assert contents(first.path) == left


def test_a_folder_that_can_t_be_made(tmp_path: Path, data: toy.Corpus) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file is a file, so .* can't be a folder in it; choose another --out"):
        train(toy.config(data), tmp_path / "file" / "out")


def test_a_folder_that_can_t_be_written(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before anything is read."""
    monkeypatch.setattr("cutaway.training.folder.os.access", lambda *_: False)  # root may write anywhere
    monkeypatch.setattr(run, "prepare", lambda *_: pytest.fail("the data was read"))
    for out in (tmp_path, tmp_path / "out"):
        config = toy.config(data)
        with pytest.raises(CheckpointError, match="(can't write into .*|holds something else); choose another --out"):
            train(config, out)


def test_a_run_that_can_t_begin_leaves_no_folder(
    tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cutaway.training.state.write_whole", full)
    with pytest.raises(CheckpointError, match="can't write .*out: No space left on device; choose another --out"):
        train(toy.config(data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Going on


def test_a_run_of_an_older_version_goes_on() -> None:
    """A key that it did not know has its default."""
    whole = schema.to_json(TrainConfig())
    old = {name: dict(value) if isinstance(value, dict) else value for name, value in whole.items()}
    del old["validation"]["tune"]
    assert run._completed(old) == whole
    old["gone"] = 1
    assert run._completed(old) == old


def test_from_another_folder(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "data")
    train(toy.config(toy.Corpus(Path(data.source.name), Path(data.target.name))), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="train.toy, which .*run.toml names, is not here; resume the run from the"):
        resume(tmp_path / "out")


@pytest.mark.parametrize("ema", ["0.9", "0"])
def test_stopped_before_its_first_validation(
    tmp_path: Path, data: toy.Corpus, ema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has weights, so it is a model; whoever loads it is told how far it was."""
    out, config = tmp_path / "out", toy.config(data, "validation.every=12", f"averaging.ema={ema}")
    train(config, out, stop=lambda: "SIGINT")
    model = cutaway.load(out)
    told = (
        f"{out}: its training stopped after step 1 of 12, before its first validation; go on with cutaway resume {out}"
    )
    assert caplog.messages == [told]
    kept = load_file(toy.newest(out) / ("average.safetensors" if ema == "0.9" else "weights.safetensors"))
    assert all(torch.equal(weight, kept[name]) for name, weight in model.network.named_parameters())
    assert "None: stopped after step 1, before its first validation." in (out / "README.md").read_text()
    done = commands.run(["translate", "pa ku", "--model", str(out), "--max-tokens", "4"])
    assert (done.code, done.err) == (0, f"{told}\n")
    assert commands.run(["info", str(out)]).err == f"{told}\n"
    caplog.clear()
    resume(out)
    train(config, tmp_path / "whole")
    toy.same_run(out, tmp_path / "whole")
    cutaway.load(out)
    assert caplog.messages == []


def test_killed_before_there_is_a_model(tmp_path: Path, data: toy.Corpus) -> None:
    config, folder = toy.config(data), RunFolder(tmp_path / "out")
    with folder.claimed(anew=True):
        folder.begin(prepare(config, Watch()).model, write_config(config, ""))
    with pytest.raises(CheckpointError, match="holds no model yet: .* go on with cutaway resume .*out"):
        cutaway.load(tmp_path / "out")


def test_time_counts_looks() -> None:
    assert Progress(seconds=60.0, validation_seconds=30.0).time == 90.0


# Data


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("id\tenglish\tfrench", r"line 1 of .* has 3 columns \(id, english, french\), expected 2; say which are the"),
        ("Source\ttarget", r"looks like a header \(Source, target\); name the columns: --columns Source,target; or"),
        ("en\tfr", "looks like a header"),
    ],
)
def test_tables_of_which_nobody_said_what_is_meant(tmp_path: Path, first: str, said: str) -> None:
    table = tmp_path / "table.tsv"
    table.write_text(first + "\n" + "\t".join(["a word"] * (first.count("\t") + 1)) + "\n")
    with pytest.raises(InputError, match=said):
        list(rows(table))
    assert len(list(rows(table, ["0", "1"]))) == 2
    names = [name for name in first.split("\t") if name != "id"]
    assert len(list(rows(table, names))) == 1


def test_words_that_are_no_header(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text("text\ttexte\n")
    assert len(list(rows(tmp_path / "table.tsv"))) == 1


def test_a_tenth_is_held_out_of_texts_that_occur_often(tmp_path: Path) -> None:
    texts = toy.sentences(40, longest=9) * 20
    (tmp_path / "a").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "b").write_text("".join(f"{toy.translate(text)} {i}\n" for i, text in enumerate(texts)))
    data = Data(source=(str(tmp_path / "a"),), target=(str(tmp_path / "b"),))
    corpus = PairCorpus(data, 9.0)
    train_texts, valid_texts = (
        [pair.source for pair in corpus.pairs(which, DropReport())] for which in ("train", "valid")
    )
    assert len(train_texts) + len(valid_texts) == 800
    assert 20 <= len(valid_texts) <= 80
    assert not set(train_texts) & set(valid_texts)


def test_half_of_the_validation_data() -> None:
    with pytest.raises(InputError, match="--valid-source and --valid-target go together: give both"):
        PairCorpus(Data(source=("a",), target=("b",), valid_source=("c",)), 9.0)


def test_a_class_with_one_text_is_not_held_out(tmp_path: Path) -> None:
    rows_ = [f"text number {i}\t{i % 2}\n" for i in range(100)] + [f"a rare text {i}\trare{i}\n" for i in range(26)]
    (tmp_path / "texts.tsv").write_text("".join(rows_))
    config = TrainConfig(task="classify", data=Data(pairs=(str(tmp_path / "texts.tsv"),)))
    prepared = prepare(with_settings(config, ["model.preset=bert-tiny", "tokenizer.vocabulary=300"]), Watch())
    assert {"0", "1"} < set(prepared.model.usage.labels)
    assert len(prepared.task.valid) > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("task", "given"), [("translate", "text"), ("classify", "text"), ("complete", "source")])
def test_data_of_another_task(task: str, given: str) -> None:
    with pytest.raises(ConfigError, match=f"data.{given} is not for the task {task}; leave it out"):
        TrainConfig(task=task, data=Data(**{given: ("a",)}))  # type: ignore[arg-type]


# Models to go on from


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "classifier"
    small.headed("bert-tiny", small.tokenizer()).save(folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "model.start='.*' has encoder; the task translate needs encoder and decoder"),
        (["tokenizer.vocabulary=500"], r"tokenizer.vocabulary can't be given together with model.start \(--from"),
        (["tokenizer.kind=character"], "tokenizer.kind can't be given together with model.start"),
    ],
)
def test_a_model_that_can_t_be_gone_on_from(
    tmp_path: Path, data: toy.Corpus, classifier: Path, settings: list[str], said: str
) -> None:
    plain = TrainConfig(data=Data(source=(str(data.source),), target=(str(data.target),)))
    with pytest.raises(ConfigError, match=said):
        train(with_settings(plain, [f"model.start={classifier}", *settings]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_elisions_are_of_one_kind_of_tokenizer() -> None:
    with pytest.raises(ConfigError, match='tokenizer.elisions is for tokenizer.kind = "bpe", not for "unigram"'):
        with_settings(TrainConfig(), ["tokenizer.kind=unigram", "tokenizer.elisions=true"])
    with pytest.raises(ConfigError, match="tokenizer.vocabulary can't be given together with tokenizer.start"):
        with_settings(TrainConfig(), ["tokenizer.vocabulary=500", "tokenizer.start=folder"])


# How good it is


def test_the_loss_decides_where_bleu_is_noise() -> None:
    early, late = {"loss": 5.6, "bleu": 0.02}, {"loss": 3.9, "bleu": 0.004}
    assert BLEU.better(late, early)
    assert not BLEU.better(early, late)
    assert BLEU.better({"loss": 9.0, "bleu": 2.0}, late)
    assert ACCURACY.better({"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.5})
    assert LOSS.better({"loss": 1.0}, {"loss": 2.0})


def test_the_card_says_what_was_scored_and_changed(tmp_path: Path, data: toy.Corpus) -> None:
    train(toy.config(data), tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "(transformer-tiny, changed)" in text
    assert "On the validation examples, translated greedily:" in text


def refused(command: list[str]) -> str:
    done = commands.run(command)
    assert done.out == ""
    return commands.one_sentence(done)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (lambda out: ["evaluate", "en-fr", "--out", f"{out}/no/x"], "no/x: its folder is not there"),
        (lambda out: ["evaluate", "en-fr", "--out", out], "it is a folder"),
        (lambda out: ["compare", "en-fr", "en-fr", "--png", f"{out}/no/x.png"], "no/x.png: its folder is not there"),
        (
            lambda out: ["compare", "en-fr", "en-fr", "--png", f"{out}/x.xyz"],
            "x.xyz is not the name of a picture; end it",
        ),
        (lambda out: ["compare", "en-fr"], "compare two models or more; `cutaway evaluate` judges one"),
    ],
)
def test_known_before_anything_is_translated(
    tmp_path: Path, data: toy.Corpus, command: Callable[[str], list[str]], said: str
) -> None:
    assert said in refused([*command(str(tmp_path)), *data.options()])


# What it looked at


def test_attention_of_bahdanau_is_drawn() -> None:
    found = alignment(small.model("bahdanau-gru"), "The cat sat.", "Le chat")
    assert found.weights.shape == (len(found.written), len(found.source))
    assert found.weights.sum(1).tolist() == pytest.approx([1.0] * len(found.written), abs=1e-5)  # a softmax in float32


# Told before, not after


def test_judged_by_what_it_learns_from(data: toy.Corpus) -> None:
    class Heard(Watch):
        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, text: str) -> None:
            self.warnings.append(text)

    heard, config = Heard(), toy.config(data)
    prepare(config, heard)
    assert heard.warnings == []
    same = {"valid_source": config.data.source, "valid_target": config.data.target}
    prepare(replace(config, data=replace(config.data, **same)), heard)
    assert len(heard.warnings) == 1
    assert heard.warnings[0].startswith("it is judged by what it learns from")


@pytest.mark.parametrize(
    ("setting", "said"),
    [("validation.metric=accuracy", "no metric of translate"), ("model.n_heads=3", "n_heads=3"),
     ("model.preset=gpt2", "needs encoder and decoder")],
)  # fmt: skip
def test_what_the_settings_alone_show_is_told_before_the_data_is_read(
    tmp_path: Path, data: toy.Corpus, setting: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PairCorpus, "count", lambda _: pytest.fail("it was counted"))
    with pytest.raises(ConfigError, match=said):
        train(toy.config(data, "model.preset=transformer-tiny", setting), tmp_path / "out")


def test_what_is_not_judged_by_is_told(tmp_path: Path, data: toy.Corpus) -> None:
    (tmp_path / "valid.tsv").write_text("pa ku\tUK AP\npa\t\n" + "pa " * 40 + "\t" + "AP " * 40 + "\n")
    said: list[str] = []

    class Told(Watch):
        def say(self, text: str) -> None:
            said.append(text)

    prepare(toy.config(data, f"data.valid_pairs={tmp_path / 'valid.tsv'}", "data.held_out=100"), Told())
    told = next(text for text in said if text.startswith("1 to judge by: "))
    assert "kept 2 of 3 pairs" in told
    assert "left out 1 of more than data.max_tokens tokens" in told


def test_an_lstm_in_bfloat16_where_there_is_none(
    tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutaway.machine.processor.has_bfloat16", lambda: False)
    given = toy.config(data, "machine.precision=bfloat16")
    given = replace(given, model=ModelChoice(preset="lstm-seq2seq", d_model=8, d_hidden=8))
    with pytest.raises(ConfigError, match="bfloat16, in which torch has no LSTM on this processor; choose auto or"):
        train(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()
