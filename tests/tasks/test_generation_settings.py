"""A folder's generation_config.json and the options of a task: who goes before whom, and what bad ones are told."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cutaway
from cutaway.checkpoint_info import read_info
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.generation import Generation
from cutaway.model import Model
from cutaway.models.usage import Usage
from cutaway.tasks.options import Options
from cutaway.tasks.writer import Writer
from tests.support import small_models as small

FILE = "generation_config.json"
Asking = Callable[..., Path]


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    """A folder of Hugging Face whose generation_config.json says just this."""
    folder = small.model("llama-15m", usage=Usage(start=2, end=(3,), pad=0)).save(tmp_path / "model", "huggingface")

    def ask(**settings: Any) -> Path:
        (folder / FILE).write_text(json.dumps({"eos_token_id": 3, "bos_token_id": 2, **settings}))
        return folder

    return ask


def search(model: Model, **options: Any) -> Generation:
    given: Options = options  # type: ignore[assignment]
    return Writer(model, "complete", given).generation


def test_a_folder_that_samples_does_so_until_it_is_told_not_to(asking: Asking) -> None:
    model = cutaway.load(asking(do_sample=True, temperature=0.6, top_p=0.9))
    assert (search(model).sample, search(model).temperature, search(model).top_k) == (True, 0.6, 50)
    assert search(model, seed=1) == replace(search(model), seed=1)
    assert search(model, temperature=1.5).top_p == 0.9
    greedy = [search(model, **options) for options in ({"temperature": 0}, {"sample": False}, {"beams": 1})]
    assert greedy == [Generation(scores=False, beams=1)] * 3
    assert search(model, beams=4) == Generation(scores=False, beams=4)
    texts = {tuple(model.complete(["The cat"] * 3, max_new_tokens=12, seed=2)) for _ in range(2)}
    assert len(texts) == 1
    assert len(set(*texts)) > 1
    assert model.complete("The cat", temperature=0, max_new_tokens=5) == model.complete(
        "The cat", sample=False, max_new_tokens=5
    )
    streamed = "".join(model.complete("The cat", stream=True, seed=4, max_new_tokens=9))
    assert streamed == model.complete("The cat", seed=4, max_new_tokens=9)


def test_settings_of_sampling_wait_until_somebody_samples(asking: Asking) -> None:
    model = cutaway.load(asking(temperature=0.6, top_k=7))
    assert search(model) == Generation(scores=False, beams=1)
    assert (search(model, sample=True).temperature, search(model, sample=True).top_k) == (0.6, 7)


def test_options_go_before_the_folder(asking: Asking) -> None:
    asked = {"repetition_penalty": 1.3, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5,
             "min_new_tokens": 8, "max_new_tokens": 9, "early_stopping": "never"}  # fmt: skip
    model = cutaway.load(asking(**asked))
    found = search(model)
    assert (found.repetition_penalty, found.beams, found.beam_groups, found.early_stopping) == (1.3, 4, 2, "never")
    assert search(model, repetition_penalty=1.0).repetition_penalty == 1.0
    assert search(model, max_new_tokens=3).min_new_tokens == 3
    assert (search(model, beams=3).beam_groups, search(model, beams=3).diversity) == (1, 0.0)
    with pytest.raises(ConfigError, match="min_new_tokens=20 is above max_new_tokens=9"):
        search(model, min_new_tokens=20)
    least = cutaway.load(asking(min_length=12, max_length=16))
    [prompt] = [least.tokenizer.encode("The cat", special=False).ids] if least.tokenizer else [[]]
    n = [len(least.complete("The cat", details=True, **more).tokens) for more in ({}, {"min_new_tokens": 0})]
    assert n[0] >= 12 - 1 - len(prompt) - 1
    assert n[0] >= n[1]


def test_only_generation_config_json_counts_where_there_is_one(asking: Asking) -> None:
    """As in transformers; the tokens that end a text are looked for in config.json too."""
    folder = asking()
    keys = json.loads((folder / "config.json").read_text()) | {"repetition_penalty": 1.7, "num_beams": 3}
    (folder / "config.json").write_text(json.dumps(keys))
    (folder / FILE).write_text(json.dumps({"no_repeat_ngram_size": 2}))
    usage = cutaway.load(folder).usage
    assert (usage.generation, usage.end) == (Generation(no_repeat_ngram=2), (3,))
    (folder / FILE).unlink()
    assert cutaway.load(folder).usage.generation == Generation(repetition_penalty=1.7, beams=3)


SETTINGS = {
    "do_sample": True, "top_k": 0, "top_p": 0.8, "typical_p": 0.7, "repetition_penalty": 1.2, "max_length": 40,
    "min_length": 3, "early_stopping": "never", "bad_words_ids": [[7], [8, 9]], "suppress_tokens": [11],
    "begin_suppress_tokens": [12, 13], "sequence_bias": [[[14], -2.0], [[15, 16], 1.5]], "forced_eos_token_id": 3,
    "exponential_decay_length_penalty": [4, 1.5], "renormalize_logits": True, "stop_strings": ["\n"],
}  # fmt: skip


def test_settings_go_through_both_formats(asking: Asking, tmp_path: Path) -> None:
    folder = asking(**SETTINGS, guidance_scale=1.5)
    came = json.loads((folder / FILE).read_text())
    model = cutaway.load(folder)
    ours = cutaway.load(model.save(tmp_path / "ours"))
    assert ours.usage == model.usage
    again = ours.save(tmp_path / "theirs", "huggingface")
    assert json.loads((again / FILE).read_text()) == came
    ours.origin = None  # nothing but our own usage is left of it
    anew = cutaway.load(ours.save(tmp_path / "anew", "huggingface"))
    assert anew.usage == model.usage
    model.usage = replace(model.usage, generation=Generation())
    plain = cutaway.load(model.save(tmp_path / "plain", "huggingface"))
    assert plain.usage.generation == Generation()


def test_a_usage_as_it_was_saved_before(asking: Asking, tmp_path: Path) -> None:
    folder = cutaway.load(asking()).save(tmp_path / "ours")
    keys = json.loads((folder / "config.json").read_text())
    del keys["usage"]["generation"], keys["usage"]["min_length"], keys["usage"]["first"]
    keys["usage"] |= {"beams": 4, "length_penalty": 0.7}
    (folder / "config.json").write_text(json.dumps(keys))
    assert cutaway.load(folder).usage.generation == Generation(beams=4, length_penalty=0.7)


def test_what_is_not_done_is_told(asking: Asking, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = asking(guidance_scale=1.5, max_time=3.0, use_cache=False, temperature=0.5, new_idea=1)
    with caplog.at_level(logging.WARNING, "cutaway"):
        model = cutaway.load(folder)
        ours = model.save(tmp_path / "ours")
        cutaway.load(ours)
    lines = [record.getMessage() for record in caplog.records]
    told = ["guidance_scale=1.5, which cutaway does not do: texts are written without guidance",
            "max_time=3.0, which cutaway does not do: texts are not cut off by the clock"]  # fmt: skip
    assert sorted(lines) == sorted(f"{place} asks for {each}" for place in (folder, ours) for each in told)
    found = read_info(folder)
    assert found.unused_settings == {
        "temperature": "no sampling is asked for",
        "guidance_scale=1.5": "texts are written without guidance",
        "max_time=3.0": "texts are not cut off by the clock",
    }
    assert read_info(ours).unused_settings == found.unused_settings
    assert found.unread_keys == ["new_idea"]
    caplog.clear()
    cutaway.load(asking(do_sample=True, num_beams=3))
    assert "do_sample=true with num_beams=3" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is '0.0'; expected a number above 0"),
        ({"repetition_penalty": "high"}, "repetition_penalty is 'high'; expected a number from 0 to 1e+06"),
        ({"repetition_penalty": float("nan")}, "can't be read as JSON (NaN is not JSON)"),
        ({"num_beams": 10**9}, "num_beams is '1000000000'; expected a whole number from 1 to 1024"),
        ({"num_beams": True}, "num_beams is 'True'; expected a whole number"),
        ({"num_beams": 4, "num_beam_groups": 3}, "num_beam_groups is '3'; expected a divisor of num_beams=4"),
        ({"do_sample": "yes"}, "do_sample is 'yes'; expected true or false"),
        ({"do_sample": True, "temperature": 0}, "temperature is '0.0'; expected a number above 0"),
        ({"early_stopping": "soon"}, "early_stopping is 'soon'; expected true, false or \"never\""),
        ({"top_p": 2}, "top_p is '2'; expected a number from 0 to 1"),
        ({"max_new_tokens": 0}, "max_new_tokens is '0'; expected a whole number from 1 on"),
        ({"max_length": 10**300}, "expected a whole number from 1 on"),
        ({"min_length": -1}, "min_length is '-1'; expected a number from 0"),
        ({"bad_words_ids": [5]}, "bad_words_ids is '5'; expected a list"),
        ({"bad_words_ids": [[]]}, "bad_words_ids is '[]'; expected token ids, one at least"),
        ({"bad_words_ids": [[1]] * 10_001}, "bad_words_ids is 'a list of 10,001'; expected at most 10,000"),
        ({"suppress_tokens": ["a"]}, "expected a list of token ids"),
        ({"suppress_tokens": [3], "forced_eos_token_id": 3}, "forced_eos_token_id=3 is among suppress_tokens"),
        ({"sequence_bias": [[[1], "x"]]}, "expected a list of pairs, [[token, …], number]"),
        ({"sequence_bias": {"1": 2}}, "sequence_bias is "),
        ({"exponential_decay_length_penalty": [1]}, "expected [tokens, factor]"),
        ({"exponential_decay_length_penalty": [1, 1e300]}, "expected [tokens, factor]"),
        ({"stop_strings": [""]}, "expected a text of 1 to 1,000 letters"),
        ({"forced_bos_token_id": "x"}, "forced_bos_token_id is 'x'; expected the number of a token"),
    ],
)
def test_a_bad_setting_is_one_sentence(asking: Asking, settings: dict[str, Any], message: str) -> None:
    folder = asking(**settings)
    with pytest.raises(CheckpointError) as caught:
        cutaway.load(folder)
    assert message in str(caught.value)
    assert str(folder / FILE) in str(caught.value)
    assert len(str(caught.value)) < 400


def test_tokens_that_are_not_there_need_not_be_suppressed(asking: Asking) -> None:
    """As in transformers; published folders name tokens of a larger vocabulary."""
    usage = cutaway.load(asking(suppress_tokens=[5, 99_999, -1], begin_suppress_tokens=[88_888])).usage
    assert (usage.generation.suppress, usage.generation.begin_suppress) == ((5,), ())


def test_nothing_is_left_to_write(asking: Asking) -> None:
    model = cutaway.load(asking(suppress_tokens=list(range(400)), num_beams=2))
    with pytest.raises(InputError, match="has no text to give: every token is banned, suppressed or no number$"):
        model.complete("The cat", max_new_tokens=3)


def test_stop_strings_end_a_text(asking: Asking) -> None:
    whole = cutaway.load(asking(max_new_tokens=12)).complete("The cat")
    middle = whole[len(whole) // 2 : len(whole) // 2 + 2]
    assert (
        cutaway.load(asking(max_new_tokens=12, stop_strings=[middle])).complete("The cat") == whole.partition(middle)[0]
    )


def test_an_old_folder_s_tasks_are_read_by_the_same_table(tmp_path: Path) -> None:
    how = {"prefix": "summarize: ", "num_beams": 4, "early_stopping": "never", "repetition_penalty": 1.4,
           "encoder_no_repeat_ngram_size": 3, "min_length": 5, "max_length": 9}  # fmt: skip
    model = small.t5(tmp_path / "t5", {"summarization": how})
    engine = small.scripted(model, "le chat")
    model.summarize("The cat sat.")
    asked = engine.asked[-1][1]
    assert (asked.early_stopping, asked.repetition_penalty, asked.encoder_no_repeat_ngram) == ("never", 1.4, 3)
    assert (asked.min_new_tokens, asked.max_new_tokens) == (4, 8)
