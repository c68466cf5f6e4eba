"""run.toml: written with a sentence about every key, read back the same, and a run by itself."""

import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from cutaway.errors import ConfigError
from cutaway.training import optimizer, schedule
from cutaway.training.config import Batches, Data, ModelChoice, TokenizerChoice, TokenizerKind, TrainConfig, Validation
from cutaway.training.defaults import network_config, shares_of, with_steps
from cutaway.training.run import train
from cutaway.training.toml import config_of, read_config, with_settings, write_config
from tests.support import commands
from tests.support import toy_runs as toy

SECTIONS = [field.name for field in fields(TrainConfig) if is_dataclass(get_type_hints(TrainConfig)[field.name])]
KEYS = [(section, field) for section in SECTIONS for field in fields(get_type_hints(TrainConfig)[section])]
KEYS += [("", field) for field in fields(TrainConfig) if field.name not in SECTIONS]


def other(hint: Any, default: Any) -> Any:
    """A value that is not the default."""
    name = str(hint)
    if "Literal" in name:
        options = [option for each in (hint, *get_args(hint)) for option in get_args(each) if isinstance(option, str)]
        return next(option for option in options if option != default)
    if isinstance(default, bool):
        return not default
    if "tuple" in name:
        return ('a "quoted" \\ name', "é\n")
    if "str" in name:
        return "x = # [y]"
    return 7 if "int" in name else 0.3


APART = {
    "data": ("text", "valid_text"),
    "tokenizer": ("start", "elisions"),
    "model": ("start",),
    "validation": ("metric",),
}
"""Keys that can't go with others, or that only take what another key allows."""


def everything_else() -> TrainConfig:
    """A run in which every key has another value than its default, but for those that can't go with them."""
    config = TrainConfig()
    for section in SECTIONS:
        table = getattr(config, section)
        hints = get_type_hints(type(table))
        changes = {field.name: other(hints[field.name], getattr(table, field.name)) for field in fields(table)}
        for name in APART.get(section, ()):
            del changes[name]
        config = replace(config, **{section: replace(table, **changes)})
    return replace(config, seed=-3)


OTHERS = [
    everything_else(),
    TrainConfig(task="complete", data=Data(text=("é\n",), valid_text=("a", "b")), model=ModelChoice(start="x = # [y]")),
    TrainConfig(tokenizer=TokenizerChoice(start="x = # [y]")),
    TrainConfig(tokenizer=TokenizerChoice(elisions=True)),
    TrainConfig(validation=Validation(metric="chrf")),
]


@pytest.mark.parametrize("config", [TrainConfig(), *OTHERS])
def test_written_and_read_again(tmp_path: Path, config: TrainConfig) -> None:
    (tmp_path / "run.toml").write_text(write_config(config, "About this run.\nTwo lines."), encoding="utf-8")
    assert read_config(tmp_path / "run.toml") == config


RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_run_that_says_its_command(recipe: Path) -> None:
    config = read_config(recipe)
    text = recipe.read_text(encoding="utf-8")
    assert f"cutaway train recipes/{recipe.name}" in text
    if config.model.preset is not None:
        network_config(config.task, config.model, (config.tokenizer.vocabulary or 1000,) * 2)


@pytest.mark.parametrize(
    ("tokens", "workers", "shares"),
    [(2048, 1, 2), (2048, 2, 2), (2048, 3, 2), (2048, 4, 4), (2048, 9, 4), (9000, 2, 16), (9000, 99, 16), (256, 8, 2)],
)  # fmt: skip
def test_shares(tokens: int, workers: int, shares: int) -> None:
    """Work for every core and rank, of 512 tokens or more; and never more than 1024 at once."""
    assert shares_of(tokens, workers) == shares


@pytest.mark.parametrize(
    ("preset", "longest", "on_cpu", "shares"),
    [
        ("transformer-base", 256, True, 32),
        ("transformer-base", 256, False, 8),  # a GPU wants much at a time
        ("gru-seq2seq", 256, True, 8),  # and so does what reads word after word
        ("transformer-base", 3000, True, 16),  # the longest example must fit
    ],
)
def test_shares_fit_the_machine_and_the_model(preset: str, longest: int, on_cpu: bool, shares: int) -> None:
    config = TrainConfig(model=ModelChoice(preset=preset), batches=Batches(tokens=25_000))
    found = with_steps(config, 10_000, 1_000_000, lambda _: None, longest=longest, workers=2, on_cpu=on_cpu)
    assert found.batches.micro_batches == shares


@pytest.mark.parametrize(("ranks", "shares"), [(1, 2), (2, 2), (3, 3), (6, 6), (8, 8), (16, 16)])
def test_ranks_divide_the_shares(ranks: int, shares: int) -> None:
    config = TrainConfig(model=ModelChoice(preset="transformer-tiny"), batches=Batches(tokens=2048))
    found = with_steps(config, 29_000, 400_000, lambda _: None, longest=50, workers=ranks, ranks=ranks, on_cpu=False)
    assert found.batches.micro_batches == shares


@pytest.mark.parametrize("joint", [True, False])
def test_two_vocabularies_have_two_tables(joint: bool) -> None:
    """Of as many words, too."""
    choice = ModelChoice(preset="transformer-tiny")
    assert network_config("translate", choice, (6000, 6000), joint=joint).share_embeddings == joint


def test_every_key_of_the_others_is_another() -> None:
    for section, field in KEYS:
        default, *others = ((getattr(each, section) if section else each) for each in (TrainConfig(), *OTHERS))
        assert any(getattr(other, field.name) != getattr(default, field.name) for other in others), (
            section,
            field.name,
        )


def test_every_key_is_explained_right_before_it() -> None:
    lines = write_config(TrainConfig()).splitlines()
    assert max(map(len, lines)) <= 120
    found, section = [], ""
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("["):
            section = line.strip("[]")
        elif match := re.match(r"(?:# )?(\w+) = ", line):
            found.append((section, match[1]))
            assert before.startswith("# "), line
            assert len(before) > 8, line
    assert sorted(found) == sorted((section, field.name) for section, field in KEYS)


def test_every_default_is_in_the_file() -> None:
    text = write_config(TrainConfig())
    table = tomllib.loads(text)
    for section, field in KEYS:
        given = (table[section] if section else table).get(field.name)
        default = field.default
        assert given == (list(default) if isinstance(default, tuple) else default), (section, field.name)
        if default is None:
            assert f"\n# {field.name} =   (chosen by the size of the data)\n" in text


def test_sections_are_explained() -> None:
    lines = write_config(TrainConfig()).splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("[")]
    assert [lines[i].strip("[]") for i in heads] == SECTIONS
    assert all(lines[i + 1].startswith("# ") for i in heads)


@pytest.mark.parametrize(
    ("section", "kinds"),
    [
        ("optimizer", get_args(optimizer.Kind)),
        ("schedule", get_args(schedule.Kind)),
        ("tokenizer", get_args(TokenizerKind)),
    ],
)
def test_kinds_are_read(section: str, kinds: tuple[str, ...]) -> None:
    """`kind` also tells apart the dataclasses of a model's config, and was once passed over here."""
    for kind in kinds:
        assert getattr(config_of({section: {"kind": kind}}, "run.toml"), section).kind == kind
        assert getattr(with_settings(TrainConfig(), [f"{section}.kind={kind}"]), section).kind == kind
    with pytest.raises(ConfigError, match=f"run.toml: {section}.kind: no choice 'x'"):
        config_of({section: {"kind": "x"}}, "run.toml")


def test_a_kind_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="run.toml: model: no key 'kind'"):
        config_of({"model": {"kind": "transformer"}}, "run.toml")


def test_settings() -> None:
    config = with_settings(
        everything_else(),
        ["optimizer.rate=1e-3", "seed = 4", "data.source=a.en", 'data.target=["a.fr", "b.fr"]', "model.preset=none",
         "averaging.of=none", "tokenizer.joint=false", "card.title=Two words", "schedule.steps=12"],
    )  # fmt: skip
    assert (config.optimizer.rate, config.seed, config.schedule.steps) == (0.001, 4, 12)
    assert (config.data.source, config.data.target) == (("a.en",), ("a.fr", "b.fr"))
    assert (config.model.preset, config.averaging.of) == (None, "none"), "left open, and a word"
    assert (config.tokenizer.joint, config.card.title) == (False, "Two words")


def test_one_text_will_do_where_a_list_is_expected() -> None:
    assert config_of({"data": {"source": "a.en"}}, "run.toml").data.source == ("a.en",)


def test_a_written_config_is_a_run(tmp_path: Path) -> None:
    """From --write-config to a model, and its run.toml to the same model once more."""
    data, toml = toy.corpus(tmp_path / "data", 60), tmp_path / "run.toml"
    command = toy.arguments(data, tmp_path / "unused", "schedule.steps=4")
    done = commands.run([*command, "--write-config", str(toml)], tmp_path / "log")
    assert (done.code, done.out) == (0, f"{toml}\n")
    assert not (tmp_path / "unused").exists()
    head = toml.read_text().replace("\n# ", " ")  # it is as long as the file's name
    assert head.startswith(f"# A training run of cutaway: cutaway train {toml} --out")
    assert commands.run(["train", str(toml), "--out", str(tmp_path / "one")], tmp_path / "log").code == 0
    left = tmp_path / "one" / "run.toml"
    assert None not in [getattr(read_config(left).schedule, name) for name in ("steps", "warmup", "kind")]
    assert commands.run(["train", str(left), "--out", str(tmp_path / "two")], tmp_path / "log").code == 0
    toy.same_run(tmp_path / "one", tmp_path / "two")


def test_the_run_toml_that_is_left_has_every_choice(tmp_path: Path) -> None:
    data = toy.corpus(tmp_path / "data", 60)
    given = with_settings(toy.config(data), ["batches.tokens=none", "schedule.warmup=none", "validation.every=none"])
    train(given, tmp_path / "out")
    left = read_config(tmp_path / "out" / "run.toml")
    assert None not in vars(left.batches).values()
    assert None not in vars(left.schedule).values()
    assert None not in vars(left.validation).values()
    assert None not in vars(left.optimizer).values()
    assert left.optimizer == replace(given.optimizer, decay=left.optimizer.decay)
