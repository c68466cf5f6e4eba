"""How a model wants to be used, beyond its numbers: which tokens begin and end a text, what its classes are called."""

from dataclasses import dataclass
from typing import Literal

TaskName = Literal["translate", "complete", "classify"]
"""What a model can be trained for."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token ids are of the vocabulary that the model writes."""

    task: TaskName | None = None  # what it was trained for; None: several tasks, or it does not say
    start: int | None = None  # decoding begins with it: </s>, pad (T5, MarianMT) or begin-of-text
    end: tuple[int, ...] = ()  # any of them ends a text
    pad: int | None = None
    never: tuple[int, ...] = ()  # not to be written (MarianMT's pad)
    last: int | None = None  # written in the last place, where a text gets that far (MarianMT's end)
    beams: int = 1  # what its makers recommend for search
    length_penalty: float = 1.0  # likewise, with several beams
    max_length: int | None = None
    max_tokens: int | None = None  # of one input, where the model was made for fewer than it could read
    labels: tuple[str, ...] = ()  # of a classifier's classes
    image_mean: tuple[float, ...] = ()  # of each channel: pixels from 0 to 1 are shifted and scaled by these
    image_std: tuple[float, ...] = ()
