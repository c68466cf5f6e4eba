"""How a model wants to be used, beyond its numbers: which tokens begin and end a text, what its classes are called."""

from dataclasses import dataclass, field

from cutaway.generation import Generation


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token ids are of the vocabulary that the model writes."""

    task: str | None = None  # what it was trained for: "translate"; None: several tasks, or it does not say
    start: int | None = None  # decoding begins with it: </s>, pad (T5, MarianMT) or begin-of-text
    end: tuple[int, ...] = ()  # any of them ends a text
    pad: int | None = None
    never: tuple[int, ...] = ()  # not to be written (MarianMT's pad)
    first: int | None = None  # written in the first place, where nothing but one token stands before (mBART's language)
    last: int | None = None  # written in the last place, where a text gets that far (MarianMT's end)
    generation: Generation = field(default_factory=Generation)  # how its makers want it to write
    max_length: int | None = None  # unless max_new_tokens is asked for; counts the start token, or the prompt
    min_length: int = 0  # unless min_new_tokens is asked for; likewise
    max_tokens: int | None = None  # of one input, where the model was made for fewer than it could read
    labels: tuple[str, ...] = ()  # of a classifier's classes
    image_mean: tuple[float, ...] = ()  # of each channel: pixels from 0 to 1 are shifted and scaled by these
    image_std: tuple[float, ...] = ()

    @property
    def beams(self) -> int:
        return self.generation.beams or 1

    @property
    def length_penalty(self) -> float:
        return self.generation.length_penalty
