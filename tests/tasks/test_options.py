"""The options of tasks are those of a search."""

from dataclasses import fields
from typing import get_type_hints

from cutaway.decoding.generation import Changes, Generation
from cutaway.tasks.options import Options


def test_options_are_the_fields_of_a_search() -> None:
    names = {field.name for field in fields(Generation)}
    assert set(get_type_hints(Changes)) == names
    assert set(get_type_hints(Options)) == names | {"engine", "precision"}
