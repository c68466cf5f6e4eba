"""Every mistake in a run is one sentence and exit code 2, told before anything is written where it can be known."""

import json
import os
import re
from pathlib import Path

import pytest

import cutaway
from cutaway.cli.display.training import report
from cutaway.errors import CheckpointError
from cutaway.text.source_target import TwoTokenizers
from cutaway.training import loop as loop_module
from cutaway.training.loop import ANOTHER_RANK, Outcome, Progress, TrainingError
from cutaway.training.run import resume, train
from cutaway.training.task import Seen
from cutaway.training.tasks.translate import Translation
from cutaway.training.watch import Watch
from tests.support import commands
from tests.support import toy_runs as toy


@pytest.fixture
def data(tmp_path: Path) -> toy.Corpus:
    return toy.corpus(tmp_path / "data", 60)


def all_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.stem != "log"}


def refused(tmp_path: Path, command: list[str]) -> str:
    """The sentence; nothing was written."""
    before = all_of(tmp_path)
    sentence = commands.refused(command, tmp_path / "log")
    assert not (tmp_path / "out").exists(), "the mistake was known before training"
    assert all_of(tmp_path) == before
    return sentence


HERE = Path("HERE")  # in place of a test's folder
OUT = ["--out", "HERE/out"]
RUN = ["train", "HERE/run.toml", *OUT]
TOY = ["train", "translate", "--source", "HERE/a", "--target", "HERE/b"]
SIDES = toy.arguments(toy.Corpus(HERE / "a", HERE / "b"), HERE / "out")
MISTAKES: dict[str, tuple[dict[str, str], list[str], str]] = {
    "unequal files": (
        {"a": "a\nb\nc\n", "b": "x\ny\n"}, SIDES, "HERE/a has 3 lines and HERE/b has 2; expected as many of each…",
    ),
    "an empty file": ({"a": "", "b": ""}, SIDES, "HERE/a is empty: it has no lines"),
    "the same text on both sides": (
        dict.fromkeys("ab", "one\ntwo\n" * 9), SIDES,
        "source and target are the same text in 18 of the first 18 pairs; give the other language…",
    ),
    "the same file twice": (
        {"a": "pa ku\n" * 60}, toy.arguments(toy.Corpus(HERE / "a", HERE / "a"), HERE / "out"),
        "--source and --target are the same file, HERE/a…",
    ),
    "lines of nothing": ({"a": " \n\n", "b": "x\ny\n"}, SIDES, "the data holds no usable pair"),
    "a missing file": ({"b": "x\n" * 60}, SIDES, "…HERE/a…"),
    "no data": ({}, ["train", "translate", *OUT], "there are no pairs: give --source and --target (sentences…"),
    "no tabs": (
        {"a.tsv": "one sentence\nanother\n"}, ["train", "translate", "--pairs", "HERE/a.tsv", *OUT],
        "…HERE/a.tsv…column…",
    ),
    "no task": (
        {}, ["train", "transalte", *OUT],
        "no task 'transalte'; did you mean 'translate'? (known: classify, complete, translate); or give a .toml file",
    ),
    "no run.toml": ({}, RUN, "HERE/run.toml can't be read: No such file or directory"),
    "nowhere to go": ({}, TOY, "--out is missing: name a folder for the model, as in --out my-model"),
    "nowhere to write the settings": (
        {}, [*TOY, "--write-config", "HERE/gone/run.toml"], "can't write HERE/gone/run.toml: No such file or directory",
    ),
    "settings that exist": (
        {"run.toml": "mine"}, [*TOY, "--write-config", "HERE/run.toml"],
        "HERE/run.toml exists; choose another name, or write over it with --force",
    ),
    "toml: an unknown key": (
        {"run.toml": "[optimizer]\nrat = 1.0\n"}, RUN, "…run.toml: optimizer: no key 'rat'; did you mean 'rate'?…",
    ),
    "toml: an unknown section": (
        {"run.toml": "[optimiser]\nrate = 1.0\n"}, RUN, "…run.toml: no key 'optimiser'; did you mean 'optimizer'?…",
    ),
    "toml: no value": ({"run.toml": "[optimizer]\nrate = \n"}, RUN, "…run.toml is not TOML: …"),
    "toml: no task": (
        {"run.toml": "task = 'translat'\n"}, RUN, "…run.toml: no task 'translat'; did you mean 'translate'?…",
    ),
    "toml: no section": ({"run.toml": "optimizer = 3\n"}, RUN, "…run.toml: optimizer is 3 (int); expected an object…"),
    "toml: a text for a number": (
        {"run.toml": "[schedule]\nsteps = '12'\n"}, RUN, "…run.toml: schedule.steps is '12' (str); expected int…",
    ),
    "toml: a number for a list": (
        {"run.toml": "[data]\nsource = 3\n"}, RUN, "…run.toml: data.source is 3 (int); expected a list…",
    ),
    "toml: no UTF-8": ({"run.toml": "\xff"}, RUN, "…run.toml is not TOML: …"),
}  # fmt: skip
"""Files, command, and the sentence; … stands for any text."""


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_before_anything_is_written(tmp_path: Path, case: str) -> None:
    files, command, said = MISTAKES[case]
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    sentence = refused(tmp_path, [word.replace("HERE", str(tmp_path)) for word in command])
    pattern = ".*".join(re.escape(part) for part in said.replace("HERE", str(tmp_path)).split("…"))
    assert re.fullmatch(pattern, sentence), sentence


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer.rat=0.1", "--set optimizer.rat=0.1: no key 'rat'; did you mean 'rate'? (known: beta1, beta2,"),
        ("optimiser.rate=0.1", "no section 'optimiser'; did you mean 'optimizer'? (known: averaging, batches, card,"),
        ("rate=0.1", "--set rate=0.1: no key 'rate'"),
        ("seed.x=1", "no section 'seed'"),
        ("optimizer.rate", "--set optimizer.rate: expected section.key=value, like optimizer.rate=0.001"),
        ("optimizer.rate=fast", "--set: optimizer.rate is 'fast' (str); expected float"),
        ("optimizer.rate=-1", "rate=-1.0 must be above 0"),
        ("optimizer.rate=nan", "rate=nan"),
        ("optimizer.beta1=1.5", "beta1=1.5 must be at least 0 and below 1"),
        ("optimizer.kind=adm", "no choice 'adm'; did you mean 'adamw'?"),
        ("schedule.steps=0", "steps=0 must be at least 1"),
        ("schedule.steps=1.5", "--set: schedule.steps is 1.5 (float); expected int"),
        ("model.dropout=1", "dropout=1.0 must be at least 0 and below 1"),
        ("seed=99999999999", "seed=99999999999 must be a whole number of at most 32 bits"),
        ("model.preset=transformer-tny", "no preset 'transformer-tny'; did you mean 'transformer-tiny'?"),
        ("model.preset=gpt2", "model.preset='gpt2' has decoder; the task translate needs encoder and decoder"),
        ("model.preset=bert-base", "model.preset='bert-base' has encoder; the task translate needs encoder and"),
        ("model.n_heads=3", "n_heads=3"),
        ("model.d_hidden=8", "model.d_hidden was given, but transformer-tiny has nothing of that kind; leave it out"),
        ("tokenizer.vocabulary=20", "vocabulary=20 is too small; kind='bpe' needs at least 261 tokens"),
        ("batches.tokens=16", "an example has 9 tokens, and a micro-batch holds 8: raise batches.tokens,"),
        ("data.max_tokens=1", "no example is left to learn from: kept 60 of 60 pairs; left out 54 of more than"),
        ("validation.metric=accuracy", "validation.metric='accuracy' is no metric of translate; choose loss,"),
        ("data.held_out=0", "held_out=0 must be at least 1"),
        ("model.start=en-fr", "model.d_ff and tokenizer.vocabulary can't be given together with model.start (--from"),
        ("machine.device=gpu", "machine.device='gpu' is no device; choose auto, cpu, cuda (of several GPUs cuda:1,"),
        ("machine.device=cuda:7", "machine.device='cuda:7', but torch sees "),
    ],
)  # fmt: skip
def test_settings(tmp_path: Path, data: toy.Corpus, setting: str, said: str) -> None:
    assert said in refused(tmp_path, toy.arguments(data, tmp_path / "out", setting))


@pytest.mark.parametrize("key", ["r_drop", "bpe_dropout"])
@pytest.mark.parametrize("task", ["complete", "classify"])
def test_keys_of_another_task(tmp_path: Path, task: str, key: str) -> None:
    command = ["train", task, "--out", str(tmp_path / "out"), "--set", f"regularization.{key}=0.5"]
    assert refused(tmp_path, command) == (
        f"--set: regularization.{key} is for the task translate, not for {task}; leave it out"
    )


# --------------------------------------------------------------------------------------------------------- folders


def test_an_output_folder_that_is_not_free(tmp_path: Path, data: toy.Corpus) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("mine")
    sentence = commands.refused(toy.arguments(data, tmp_path / "file"))
    assert sentence == f"{tmp_path / 'file'} is a file; --out names a folder to make"
    for force in ([], ["--force"]):
        sentence = commands.refused([*toy.arguments(data, tmp_path / "notes"), *force])
        assert sentence == f"{tmp_path / 'notes'} exists and holds something else; choose another --out"
    assert all_of(tmp_path / "notes") == {str(tmp_path / "notes" / "README.md"): b"mine"}


def test_an_output_folder_that_holds_a_run(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=3"), out)
    (out / "mine.txt").write_text("mine")
    before = all_of(out)
    command = toy.arguments(data, out, "schedule.steps=2", "seed=5")
    sentence = commands.refused(command)
    assert sentence == (
        f"{out} holds another run, at step-00000003: resume it (cutaway resume {out}), choose another --out, or "
        f"start over with --force"
    )
    assert all_of(out) == before
    commands.refused([*command, "--force", "--set", "model.n_heads=3"])
    assert all_of(out) == before, "a mistake costs nothing, even with --force"
    assert commands.run([*command, "--force"], tmp_path / "log").code == 0
    assert toy.newest(out).name == "step-00000002"
    assert (out / "mine.txt").read_text() == "mine"


def test_a_folder_killed_as_it_began(tmp_path: Path, data: toy.Corpus) -> None:
    (tmp_path / "out" / "training").mkdir(parents=True)
    command = toy.arguments(data, tmp_path / "out", "schedule.steps=2")
    sentence = commands.refused(command)
    assert sentence == f"{tmp_path / 'out'} holds a run that ended before it began; start over with --force"
    assert commands.run([*command, "--force"], tmp_path / "log").code == 0


def test_resume_where_there_is_no_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        sentence = commands.refused(["resume", str(folder)])
        assert sentence == f"{folder} holds no run: it has no run.toml; begin one with cutaway train"


def test_resume_with_other_settings(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=4"), out)
    toml = (out / "run.toml").read_text()
    assert "\nrate = 0.005\n" in toml
    (out / "run.toml").write_text(
        toml.replace("\nrate = 0.005\n", "\nrate = 0.001\n").replace("steps = 4", "steps = 6")
    )
    before = all_of(out)
    sentence = commands.refused(["resume", str(out)])
    assert sentence == (
        f"{out / 'run.toml'} has changed since step-00000004: optimizer.rate (0.005, now 0.001), schedule.steps (4, "
        f"now 6); set it back, or go on all the same with --force"
    )
    assert all_of(out) == before
    assert commands.run(["resume", str(out), "--force"], tmp_path / "log").code == 0
    assert toy.newest(out).name == "step-00000006"
    (out / "run.toml").write_text((out / "run.toml").read_text().replace("keep = 2", "keep = 3"))
    assert commands.run(["resume", str(out)], tmp_path / "log").code == 0, (
        "how often it saves changes nothing it learns"
    )


def test_resume_with_a_key_taken_out(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=4"), out)
    (out / "run.toml").write_text((out / "run.toml").read_text().replace("\nevery = 3\n", "\n"))
    assert "validation.every (3, now 4)" in commands.refused(["resume", str(out)])
    assert commands.run(["resume", str(out), "--force"], tmp_path / "log").code == 0


def test_resume_with_other_data(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    valid = toy.corpus(tmp_path / "valid", 9, seed=8)
    given = [f"data.valid_source={valid.source}", f"data.valid_target={valid.target}", "schedule.steps=4"]
    train(toy.config(data, *given), out)
    for change, which in ((data, "the training data"), (valid, "the validation data")):
        old = change.source.read_text()
        change.source.write_text(old.replace("pa", "pe"))
        sentence = commands.refused(["resume", str(out)])
        assert sentence == (
            f"{which} of {out} changed since step-00000004; put the old files back, or go on with the new ones with "
            f"--force"
        )
        change.source.write_text(old)
    os.utime(data.source)
    assert commands.run(["resume", str(out)], tmp_path / "log").code == 0, "a file's date says nothing"
    data.source.write_text(data.source.read_text().replace("pa", "pe"))
    assert commands.run(["resume", str(out), "--force"], tmp_path / "log").code == 0


def change(out: Path, before: str, after: str) -> None:
    """A line of run.toml."""
    text = (out / "run.toml").read_text()
    assert f"\n{before}\n" in text
    (out / "run.toml").write_text(text.replace(f"\n{before}\n", f"\n{after}\n"))


def test_resume_with_less_data(tmp_path: Path, data: toy.Corpus) -> None:
    """The place in the epoch is beyond its end: the next one begins."""
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=2"), out)
    assert json.loads((toy.newest(out) / "facts.json").read_text())["place"] > 1
    for path in (data.source, data.target):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:15]))
    change(out, "steps = 2", "steps = 4")
    change(out, "held_out = 20", "held_out = 1")
    change(out, "tokens = 128", "tokens = 256")
    assert resume(out, force=True).progress.step == 4


def test_resume_with_another_average(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=3", "averaging.ema=0"), out)
    change(out, "ema = 0.0", "ema = 0.9")
    change(out, "steps = 3", "steps = 4")
    assert resume(out, force=True).reason == "done"
    assert (toy.newest(out) / "average.safetensors").is_file()


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw")])
def test_resume_with_another_optimizer(tmp_path: Path, data: toy.Corpus, before: str, after: str) -> None:
    out, heard = tmp_path / "out", Heard()
    train(toy.config(data, "schedule.steps=3", f"optimizer.kind={before}"), out)
    change(out, f'kind = "{before}"', f'kind = "{after}"')
    change(out, "steps = 3", "steps = 4")
    assert resume(out, force=True, watch=heard).reason == "done"
    assert heard.warnings == [f"the optimiser was {before} and is {after} now: it starts without its moments"]


class Heard(Watch):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("dropout = 0.1", "dropout = 0.3", "model.dropout (0.1, now 0.3)"),
        ('kind = "bpe"', 'kind = "unigram"', "tokenizer.kind (bpe, now unigram)"),
    ],
)
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "forced"])
def test_resume_with_another_model(
    tmp_path: Path, data: toy.Corpus, before: str, after: str, said: str, force: tuple[str, ...]
) -> None:
    """It lies in the folder: another one in run.toml would not be what is trained."""
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=3"), out)
    change(out, before, after)
    sentence = commands.refused(["resume", str(out), *force])
    assert sentence == (
        f"{out / 'run.toml'} asks for another model or tokenizer than step-00000003 has: {said}; set it back, or train "
        f"anew with cutaway train {out / 'run.toml'} --out another"
    )


def test_a_restart_goes_on_with_the_run_that_was_asked_for(
    tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun starts a command again that was refused, too."""
    out = tmp_path / "out"
    asked = toy.config(data, "schedule.steps=3")
    train(asked, out)
    before = {path: content for path, content in all_of(out).items() if path.endswith(".safetensors")}
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(CheckpointError, match="holds another run, at step-00000003"):
        train(toy.config(data, "schedule.steps=4"), out)
    assert train(asked, out).reason == "done already"
    assert {path: content for path, content in all_of(out).items() if path.endswith(".safetensors")} == before


def test_started_over_with_one_vocabulary_instead_of_two(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    train(toy.config(data, "schedule.steps=1", "tokenizer.joint=false"), out)
    network = cutaway.load(out).network
    assert network.encoder.embedding.tokens.weight is not network.decoder.embedding.tokens.weight
    train(toy.config(data, "schedule.steps=1"), out, force=True)
    assert not isinstance(cutaway.load(out).tokenizer, TwoTokenizers)


@pytest.mark.parametrize(("reason", "code"), [("SIGINT", 130), ("SIGTERM", 143), (ANOTHER_RANK, 143)])
def test_a_stopped_run_is_no_run_that_is_done(tmp_path: Path, reason: str, code: int) -> None:
    """For a scheduler, whichever rank was told to stop."""
    with pytest.raises(SystemExit) as ended:
        report(Outcome(reason, Progress(step=3), {}, {}, ()), tmp_path, as_json=False)
    assert ended.value.code == code


def test_stopped_before_the_first_look(tmp_path: Path, data: toy.Corpus) -> None:
    """Nothing was measured yet, so there is nothing to draw, and no score."""
    outcome = train(toy.config(data, "validation.every=12"), tmp_path / "out", stop=lambda: "SIGTERM")
    assert (outcome.reason, outcome.progress.step) == ("SIGTERM", 1)
    assert "None: stopped after step 1, before its first validation." in (tmp_path / "out" / "README.md").read_text()
    assert resume(tmp_path / "out").reason == "done"


# --------------------------------------------------------------------------------------------------- on the way


def test_learning_that_breaks_down(tmp_path: Path, data: toy.Corpus) -> None:
    """A rate of 1e30 makes weights whose products are infinite."""
    out = tmp_path / "out"
    wild = ["optimizer.rate=1e30", "optimizer.clip=0", "schedule.warmup=0", "validation.every=12", toy.EVERY_STEP]
    done = commands.run(toy.arguments(data, out, *wild), tmp_path / "log")
    sentence = commands.one_sentence(done)
    assert sentence.startswith("the loss is nan at step 2, so learning has broken down; the state of step-00000001 is ")
    assert sentence.endswith("Lower optimizer.rate (now 1e+30), or raise schedule.warmup (now 0)")
    assert toy.newest(out).name == "step-00000001", "the last good state stays"
    assert "the loss is nan at step 2" in commands.refused(["resume", str(out)])


def test_a_validation_that_breaks_down(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Translation.validate
    looks: list[int] = []

    def broken(self: Translation, model: cutaway.Model, seen: Seen) -> dict[str, float]:
        looks.append(1)
        return real(self, model, seen) | ({"loss": float("nan")} if len(looks) == 2 else {})

    monkeypatch.setattr(Translation, "validate", broken)
    with pytest.raises(TrainingError, match="the validation loss is nan after step 6, so learning has broken down"):
        train(toy.config(data, toy.EVERY_STEP), tmp_path / "out")
    assert [line["step"] for line in toy.metrics(tmp_path / "out")] == [3]
    monkeypatch.undo()
    assert resume(tmp_path / "out").reason == "done"


@pytest.mark.parametrize("where", ["step", "look"])
def test_memory_is_out(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    text = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    calls: list[int] = []
    name, at = ("loss", 9) if where == "step" else ("validate", 2)
    real = getattr(Translation, name)

    def greedy(self: Translation, *rest: object) -> object:
        calls.append(1)
        if len(calls) == at:
            raise RuntimeError(text)
        return real(self, *rest)

    monkeypatch.setattr(Translation, name, greedy)
    settings = ["validation.every=2" if where == "look" else "validation.every=12", toy.EVERY_STEP]
    with pytest.raises(loop_module.TrainingError) as error:
        train(toy.config(data, *settings), tmp_path / "out")
    step = 4 if where == "step" else 3  # 2 shares a step; a look comes before the state
    assert str(error.value) == (
        "out of memory: lower batches.tokens (now 128), data.max_tokens (now 24), or choose a smaller model.preset; "
        f"the state of step-{step:08} is kept"
    )
    monkeypatch.undo()
    assert resume(tmp_path / "out").reason == "done"


def test_memory_is_out_before_there_is_a_model(
    tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cutaway.training.setup.build", greedy)
    with pytest.raises(loop_module.TrainingError, match=r"out of memory: .* smaller model\.preset; no state was saved"):
        train(toy.config(data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_errors_are_not_called_memory(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Translation, "loss", broken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(toy.config(data), tmp_path / "out")
