"""The options of tasks are those of a search."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import cutaway
from cutaway.aliases import SYNONYMS
from cutaway.errors import ConfigError
from cutaway.generation import Generation
from cutaway.tasks.options import Options


def test_options_are_the_fields_of_a_search() -> None:
    """Of the same types but for their rules; words are given as text."""
    ours, theirs = get_type_hints(Options), get_type_hints(Generation)
    assert set(ours) == set(theirs) | {"engine", "precision"}
    words = {"stop", "prefix", "force", "ban"}
    assert {name: ours[name] for name in theirs.keys() - words} == {
        name: theirs[name] for name in theirs.keys() - words
    }


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("num_beams", "beams"),
        ("beam_size", "beams"),
        ("max_tokens", "max_new_tokens"),
        ("max_length", "max_new_tokens"),
        ("do_sample", "sample"),
        ("topk", "top_k"),
        ("num_return_sequences", "n_best"),
        ("top", "n_best"),
        ("no_repeat_ngram_size", "no_repeat_ngram"),
        ("use_cache", "cached"),
        ("batch_size", "batch_tokens"),
    ],
)
def test_a_peers_name_is_answered_with_ours(given: str, ours: str) -> None:
    translate: Callable[..., Any] = cutaway.load("en-fr").translate
    for call in (lambda: Generation(**{given: 1}), lambda: translate("The cat.", **{given: 1})):
        with pytest.raises(ConfigError, match=f"^no option '{given}': cutaway calls it '{ours}'(, which counts .*)?$"):
            call()


def test_each_call_says_its_own_names() -> None:
    model = cutaway.load("en-fr")
    load: Callable[..., Any] = cutaway.load
    with pytest.raises(ConfigError, match="no option 'torch_dtype': cutaway calls it 'dtype'"):
        load("en-fr", torch_dtype="float32")
    with pytest.raises(ConfigError, match="no option 'top_k': cutaway calls it 'top'"):
        model.classify("fine", top_k=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="no option 'max_new_tokens': cutaway calls it 'max_tokens'"):
        model.answer("Who?", "She.", max_new_tokens=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="no option 'tgt_lang': cutaway calls it 'target'"):
        model.translate("The cat.", tgt_lang="fr")
    with pytest.raises(ConfigError, match="no option 'n_bset'; did you mean 'n_best'?"):
        model.translate("The cat.", n_bset=2)


def test_translates_docstring_names_every_option() -> None:
    from cutaway.tasks.translate import translate

    words = set(re.findall(r"[a-z_]+", inspect.getdoc(translate) or ""))
    assert set(get_type_hints(Options)) <= words


def test_a_task_looks_like_its_function() -> None:
    """What `help` and a notebook's completion show."""
    from cutaway.tasks.translate import translate

    method = cutaway.load("en-fr").translate
    assert method.__doc__ == translate.__doc__
    assert list(inspect.signature(method).parameters) == list(inspect.signature(translate).parameters)[1:]


def test_a_search_can_be_copied() -> None:
    generation = Generation(beams=3, stop=("\n",))
    assert pickle.loads(pickle.dumps(generation)) == copy.deepcopy(generation) == generation


def test_no_name_of_ours_is_a_synonym_that_hides_it() -> None:
    """The first name of each line is one of a call or a command; names of a search come first wherever they stand."""
    searched = {field.name for field in fields(Generation)}
    for names in SYNONYMS:
        assert len(set(names)) == len(names)
        assert not searched & set(names[1:]) or names[0] in ("top", "precision", "dtype", "n_best")
