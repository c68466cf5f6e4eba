"""The bodies of requests, with the bounds of each field."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cutaway.studio.limits import Limits

LIMITS = Limits()

Text = Annotated[str, Field(max_length=LIMITS.text, description="the model's input")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
NewTokens = Annotated[int, Field(ge=1, le=LIMITS.tokens)]
Beams = Annotated[int, Field(ge=1, le=LIMITS.beams)]
Temperature = Annotated[float, Field(gt=0, le=100, description="below 1 sharpens the distribution")]
TopK = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
ModelName = Annotated[str, Field(max_length=400, description="one of those of /api/models")]


class Body(BaseModel):
    """Unknown keys are mistakes, and numbers are numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Writing(Body):
    """How a model continues or translates, where no target is given."""

    max_new_tokens: NewTokens | None = None
    beams: Beams | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0


class RunRequest(Body):
    """One text or image to run, with every value kept."""

    model: ModelName
    text: Text | None = None
    image: Annotated[str, Field(max_length=LIMITS.body, description="an image file in base64")] | None = None
    target: Annotated[Text | None, Field(description="the decoder's text; without it the model writes one")] = None
    pair: Annotated[Text | None, Field(description="a second text, for encoders that read two")] = None
    prefix: Annotated[
        list[TokenId] | None, Field(max_length=LIMITS.tokens, description="tokens written so far, in place of target")
    ] = None
    generate: Writing | None = None
    edits: Annotated[list[dict[str, Any]], Field(max_length=LIMITS.edits)] = []


class NextRequest(Body):
    """The distribution of the next token after a text and a prefix."""

    model: ModelName
    text: Text
    prefix: Annotated[list[TokenId], Field(max_length=LIMITS.tokens)] = []
    temperature: Temperature = 1.0
    top_k: TopK | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    n: Annotated[int, Field(ge=1, le=100, description="how many of the likeliest tokens")] = 12


class BeamsRequest(Body):
    """Beam search, with every candidate it scored."""

    model: ModelName
    text: Text
    beams: Beams = 4
    max_new_tokens: NewTokens = 64
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    prefix: Annotated[list[TokenId], Field(max_length=LIMITS.tokens)] = []


class GenerateRequest(Body):
    """A text, token by token."""

    model: ModelName
    text: Text
    max_new_tokens: NewTokens = 64
    prefix: Annotated[list[TokenId], Field(max_length=LIMITS.tokens)] = []
    sample: bool = False
    temperature: Temperature = 1.0
    top_k: TopK | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    alternatives: Annotated[int, Field(ge=0, le=50)] = 8


class OtherInputs(Body):
    """An example of the notes with other numbers."""

    number: int
    inputs: dict[str, Any]


class NotesPageRequest(Body):
    """`view` is the address that the page opens; `other`: an example that it shows with other numbers."""

    view: Annotated[str, Field(max_length=LIMITS.text)] = ""
    other: OtherInputs | None = None


class NotesRequest(Body):
    """Other numbers for an example of the notes: its `inputs`, in the same shape."""

    inputs: dict[str, Any]
