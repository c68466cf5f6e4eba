"""The index of a cell, given by the letters of its axes or by words."""

from collections.abc import Mapping, Sequence

from cutaway.checks import describe
from cutaway.errors import InputError

WORDS = {
    "batch": "B",
    "head": "HG",
    "query": "T",
    "token": "TSP",  # the first of these axes that the value has
    "key": "S",
    "width": "KDEF",
    "word": "V",
    "class": "C",
    "end": "2",  # of an answer: 0 where it starts, 1 where it ends
}


def word_of(letter: str, axes: str) -> str:
    """The word for an axis: T is a query where there are keys."""
    if letter == "T":
        return "query" if "S" in axes else "token"
    if letter == "P":
        return "token"
    return next((word for word, letters in WORDS.items() if letter in letters and word != "token"), letter)


def place_of(name: str, axes: str, shape: Sequence[int], given: Mapping[str, int]) -> tuple[int, ...]:
    """head=2, query=3 -> (0, 2, 3, 0): an axis that is left out is 0."""
    at = [0] * len(axes)
    taken: dict[int, str] = {}
    for word, index in given.items():
        letters = WORDS.get(word, word)
        axis = next((axes.index(letter) for letter in letters if letter in axes), None)
        if axis is None:
            known = ", ".join(word_of(letter, axes) for letter in axes if letter != "1")
            raise InputError(f"'{name}' has no axis '{word}'; it has {known} ({axes})")
        if axis in taken:
            raise InputError(f"{taken[axis]} and {word} are the same axis of '{name}'; give one of them")
        taken[axis] = word
        at[axis] = checked(name, word, index, shape[axis])
    return tuple(at)


def checked(name: str, word: str, index: object, n: int) -> int:
    """An index along an axis of n; from the end if it is negative."""
    if type(index) is not int:
        raise InputError(f"{word} is {describe(index)}; give a whole number")
    if not -n <= index < n:
        bounds = "its only index is 0" if n == 1 else f"count from 0 to {n - 1}"
        raise InputError(f"{word}={index} is outside '{name}': {bounds}")
    return index % n
