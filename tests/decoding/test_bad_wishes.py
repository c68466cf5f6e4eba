"""Each bad input is told in one sentence, before anything is computed."""

from typing import Any

import pytest

import cutaway
from cutaway.decoding.search import stream, write
from cutaway.errors import ConfigError, CutawayError, InputError
from cutaway.generation import Generation, Prompt, changed
from cutaway.models.usage import Usage
from tests.support.families import VOCABULARY, shrunk
from tests.support.scripted_network import Scripted
from tests.support.writing_networks import writer

V = 20
USAGE = Usage(start=3, end=(1,), never=(2,))


def script() -> Scripted:
    def silent(history: tuple[int, ...]) -> list[float]:
        raise AssertionError(f"nothing should be computed, not of {history}")

    return Scripted(silent, V)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens=5 is above max_new_tokens=4"),
        ({"beams": 11}, "beams=11 is too wide for a vocabulary of 20: 2 tokens for each beam are looked at"),
        ({"beams": 7, "stop_ids": (4, 5)}, "beams=7 is too wide for a vocabulary of 20: 4 tokens for each beam"),
        ({"n_best": 2}, "n_best=2 texts are more than beams=1 keep; raise beams, or sample=True"),
        ({"beams": 3, "n_best": 4}, "n_best=4 texts are more than beams=3 keep"),
        ({"beams": 3, "sample": True}, "sample=True draws texts, beams=3 searches for the likeliest: choose one"),
        ({"sample": True, "beam_groups": 2}, "beam_groups=2 must divide beams=1"),
        ({"beams": 3, "beam_groups": 2}, "beam_groups=2 must divide beams=3"),
        ({"beams": 4, "diversity": 1.0}, "diversity=1.0 keeps groups of beams apart"),
        ({"beams": 4, "beam_groups": 2, "diversity": -1.0}, "diversity=-1.0 keeps groups of beams apart"),
        ({"beams": 4, "beam_groups": 2, "force": ((5,),)}, "force and beam_groups can't be combined"),
        ({"force": ((5,),)}, "force needs beam search to find a place for the words; set beams to 2 or more"),
        ({"beams": 2, "force": ((5, 6), (7,)), "max_new_tokens": 2}, "force and prefix are 3 tokens, more than max_n"),
        ({"beams": 2, "force": ((5, 2),)}, r"force asks for \[5, 2\], which holds what may not be written"),
        ({"beams": 2, "force": ((5, 1),)}, r"force asks for \[5, 1\], which holds what may not be written or ends"),
        (
            {"beams": 2, "force": ((5, 6, 7),), "ban": ((6, 7),)},
            r"force asks for \[5, 6, 7\], which holds what may not",
        ),
        ({"beams": 2, "force": ((),)}, "force holds a sequence of no tokens; leave it out"),
        ({"ban": ((),)}, "ban holds a sequence of no tokens; leave it out"),
        ({"ban": ((1,),)}, "ban holds the end token 1; texts must be able to end: raise min_new_tokens instead"),
        ({"stop": ("x",)}, "stop strings need a tokenizer to read what is written; give stop_ids, or decode="),
        ({"temperature": 0.5}, "temperature=0.5 belongs to sampling; add sample=True"),
        ({"top_k": 5}, "top_k=5 belongs to sampling; add sample=True"),
        ({"top_p": 0.5}, "top_p=0.5 belongs to sampling; add sample=True"),
        ({"min_p": 0.5}, "min_p=0.5 belongs to sampling; add sample=True"),
        ({"prefix": (5, 20)}, r"prefix holds the id 20, which is outside this model's vocabulary of 20 \(0 to 19\)"),
        ({"prefix": (5, 6), "max_new_tokens": 2}, "the prefix has 2 tokens, and max_new_tokens=2 counts them: leave"),
        ({"prefix": (1,)}, "the prefix holds the end token 1, after which nothing is written"),
        ({"stop_ids": (-1,)}, "stop_ids holds the id -1, which is outside"),
        ({"ban": ((5, 99),)}, "ban holds the id 99, which is outside"),
        ({"beams": 2, "force": ((99,),)}, "force holds the id 99, which is outside"),
        ({"alternatives": 21}, "alternatives=21 are more than the vocabulary of 20"),
        ({"alternatives": 3, "scores": False}, "alternatives=3 come with their log-probabilities: leave scores on"),
        ({"temperature": 0.0}, "Generation.temperature=0.0 must be above 0"),
        ({"top_p": 1.5}, "Generation.top_p=1.5 must be above 0 and at most 1"),
        ({"beams": 0}, "Generation.beams=0 must be at least 1"),
        ({"length_penalty": 500.0}, "Generation.length_penalty=500.0 must be from -10 to 10"),
        ({"length_penalty": float("nan")}, "Generation.length_penalty=nan must be a finite number"),
        ({"stop": "x"}, r"Generation.stop is 'x' \(str\); expected tuple"),
        ({"stop": (5,)}, r"stop holds 5 \(int\), which is no text"),
        ({"ban": (5,)}, r"ban holds 5 \(int\); give sequences of token ids"),
        ({"prefix": ("a",)}, r"prefix holds 'a' \(str\), which is no token id \(a whole number\)"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CutawayError, match=f"^{message}"):
        write(script(), [Prompt((3,))], Generation(**options), USAGE)


def test_an_empty_stop_string() -> None:
    with pytest.raises(ConfigError, match="^a stop string is empty, so every text would end before it began"):
        write(script(), [Prompt((3,))], Generation(stop=("a", "")), USAGE, lambda ids: "")


def test_streams() -> None:
    with pytest.raises(ConfigError, match=r"^beams=2 are known only when all is written; stream with beams=1"):
        stream(script(), Prompt((3,)), Generation(beams=2), USAGE)
    with pytest.raises(ConfigError, match=r"^n_best=3 texts can't be streamed at once; stream one, or write"):
        stream(script(), Prompt((3,)), Generation(sample=True, n_best=3), USAGE)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (Prompt((3, 20)), r"prompt 1 holds the id 20, which is outside this model's vocabulary of 20 \(0 to 19\)"),
        (Prompt((-1,)), "prompt 1 holds the id -1, which is outside"),
        (Prompt((3, True)), r"prompt 1 holds True \(bool\), which is no token id"),
        (Prompt(("a",)), r"prompt 1 holds 'a' \(str\), which is no token id"),
        ((3, 4), r"prompt 1 is \(3, 4\) \(tuple\); give a Prompt of token ids"),
        (Prompt([3]), r"prompt 1 has ids \[3\] \(list\); give a tuple"),
    ],
)
def test_prompts(prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        list(write(Scripted(lambda _: [0.0] * 20, 20), [Prompt((3,)), prompt], Generation(), USAGE))


def test_prompts_without_tokens() -> None:
    with pytest.raises(InputError, match="^prompt 0 has no tokens, and this model has no start token to begin with$"):
        list(write(script(), [Prompt(())], Generation(), Usage()))
    reader, usage = writer("transformer-tiny")
    with pytest.raises(InputError, match="^prompt 0 has no tokens; an encoder reads at least one"):
        list(write(reader, [Prompt(())], Generation(), usage))


def test_a_decoder_without_a_start() -> None:
    with pytest.raises(
        InputError, match=r"^this model has no start token \(usage.start\), with which a decoder begins"
    ):
        write(writer("t5-small")[0], [Prompt((3,))], Generation(), Usage())
    with pytest.raises(InputError, match=r"^usage.start holds the id 99, which is outside"):
        write(writer("t5-small")[0], [Prompt((3,))], Generation(), Usage(start=99))
    with pytest.raises(InputError, match=r"^usage.never holds the id 77, which is outside"):
        write(script(), [Prompt((3,))], Generation(), Usage(never=(77,)))


def test_prompts_that_are_too_long() -> None:
    gpt2 = cutaway.build(shrunk("gpt2"))
    with pytest.raises(InputError, match="^prompt 0 has 14 tokens, but this model learned only 13 positions; shorten"):
        list(write(gpt2, [Prompt((3,) * 14)], Generation(max_new_tokens=1), Usage()))
    with pytest.raises(InputError, match="^prompt 0 has 14 tokens, but this model learned only 13 positions; shorten"):
        list(write(gpt2, [Prompt((3,) * 12)], Generation(max_new_tokens=5, prefix=(4, 5)), Usage()))
    message = r"^prompt 0 has 9 tokens, and texts of this model end at 9 \(max_length\); give max_new_tokens"
    with pytest.raises(InputError, match=message):
        list(write(script(), [Prompt((3,) * 9)], Generation(), Usage(max_length=9)))


def test_networks_that_cannot_write() -> None:
    with pytest.raises(InputError, match="^this model has no decoder, so it can't write; T5, MarianMT, GPT"):
        write(cutaway.build(shrunk("bert-tiny")), [Prompt((3,))], Generation(), Usage())
    with pytest.raises(InputError, match="^the network is in training mode, where dropout is random; call network"):
        write(cutaway.build(shrunk("gpt2")).train(), [Prompt((3,))], Generation(), Usage())
    with pytest.raises(InputError, match=r"^a search needs a network, not 'gpt2' \(str\); give model.network"):
        write("gpt2", [Prompt((3,))], Generation(), Usage())  # type: ignore[arg-type]


def test_unknown_options_suggest() -> None:
    with pytest.raises(ConfigError, match="^no option 'beam'; did you mean 'beam_groups' or 'beams'"):
        changed(Generation(), {"beam": 3})
    assert changed(Generation(beams=2), {"n_best": 2}) == Generation(beams=2, n_best=2)


def test_what_a_vocabulary_leaves() -> None:
    """As wide as it can be."""
    network, usage = writer("gpt2")
    widest = VOCABULARY // (1 + len(usage.end))
    [texts] = write(network, [Prompt((3,))], Generation(beams=widest, n_best=widest, max_new_tokens=3), usage)
    assert len(texts) == widest
