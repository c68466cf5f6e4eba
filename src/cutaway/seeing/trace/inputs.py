"""Traces of a whole model: its network's inputs for one text or image, and the text it writes first if it needs one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cutaway.checks import describe
from cutaway.decoding.plan import check_eval_mode
from cutaway.devices import memory_explained
from cutaway.errors import InputError
from cutaway.generation import Generation, Prompt, without_sampling
from cutaway.models.config import StackConfig
from cutaway.parts.tap import Listener
from cutaway.seeing.trace.labels import Spelling, Words, spelled, tokenizer_of, whole_words, word_numbers
from cutaway.seeing.trace.search_trace import SearchTrace, search
from cutaway.seeing.trace.trace import Trace, trace
from cutaway.text.tokenizer import Encoding, check_text

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.tasks.recognize import Image


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a network and their tokens. `search`: the search for the target, if the model wrote it."""

    inputs: tuple[Tensor, ...]
    options: Mapping[str, Tensor]
    words: Words
    search: SearchTrace | None = None


def trace_model(
    model: "Model",
    given: "str | Image",
    target: str | None = None,
    *,
    pair: str | None = None,
    keep: str | Sequence[str] = "*",
    generation: Generation | None = None,
    replace: Mapping[str, Listener] | None = None,
) -> Trace:
    """See Model.trace. `replace`: listeners that may replace values."""
    return run_traced(model, prepare(model, given, target, pair=pair, generation=generation), keep, replace)


def run_traced(
    model: "Model", given: ModelInputs, keep: str | Sequence[str] = "*", replace: Mapping[str, Listener] | None = None
) -> Trace:
    with memory_explained(model.device):
        result = trace(model.network, *given.inputs, keep=keep, replace=replace, **given.options)
    result.words, result.search, result.model = given.words, given.search, model
    return result


def prepare(
    model: "Model",
    given: "str | Image",
    target: str | None = None,
    *,
    pair: str | None = None,
    so_far: Sequence[int] | None = None,
    generation: Generation | None = None,
    check: Callable[[], None] = lambda: None,
) -> ModelInputs:
    """The network's inputs for a text or an image; a missing target is written by the model first.

    `so_far`: tokens written so far, in place of a target. `check` is called before each step of the search, and may
    raise.
    """
    config, network = model.config, model.network
    check_eval_mode(network)
    if generation is not None and not isinstance(generation, Generation):
        raise InputError(f"generation is {describe(generation)}; give a cutaway.Generation, or leave it out")
    if isinstance(config.encoder, StackConfig) and config.encoder.patches is not None:
        if target is not None or pair is not None:
            raise InputError(f"{model.name} reads one image: leave out target and pair")
        return _image(model, given)
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer; trace its network: cutaway.trace(model.network, inputs)")
    check_text(given)
    assert isinstance(given, str)
    if pair is not None and network.has_decoder:
        raise InputError(f"{model.name} reads one text; a pair is for encoders that compare two")
    if target is not None and not (network.has_encoder and network.has_decoder):
        raise InputError(f"{model.name} has no second input: it is not an encoder-decoder")
    encoding = model.tokenizer.encode(given, pair)
    if not network.has_decoder:
        if generation is not None or so_far is not None:
            raise InputError(f"{model.name} does not write; give it a text only")
        return _encoder_only(model, encoding, segments=pair is not None)

    def run_search() -> SearchTrace:
        prompt = Prompt((*encoding.ids, *(so_far or ())) if not network.has_encoder else tuple(encoding.ids))
        return search(model, prompt, generation or default_generation(model), check)

    if not network.has_encoder:
        return _decoder_only(model, [*encoding.ids, *(so_far or ())], None if generation is None else run_search())
    if model.usage.start is None:
        raise InputError(f"{model.name} does not say which token starts its output; trace its network instead")
    if target is not None:
        check_text(target)
        so_far = model.tokenizer.encode_target(target, special=False).ids
    if so_far is not None:
        return _encoder_decoder(model, encoding, so_far)
    searched = run_search()
    return _encoder_decoder(model, encoding, searched.written[0].ids, searched)


def default_generation(model: "Model") -> Generation:
    """The checkpoint's own generation settings, but without sampling: two traces of a text are the same."""
    return without_sampling(model.usage.generation)


def _encoder_only(model: "Model", encoding: Encoding, *, segments: bool) -> ModelInputs:
    stack = model.config.encoder
    has_segments = isinstance(stack, StackConfig) and stack.n_segments > 0
    options = {"segments": _row(model, encoding.segments)} if segments and has_segments else {}
    return ModelInputs(
        (_row(model, encoding.ids),), options, _words(model, _side(model, "source", encoding.ids, encoding.tokens))
    )


def _decoder_only(model: "Model", ids: Sequence[int], searched: SearchTrace | None) -> ModelInputs:
    ids = [*ids, *(() if searched is None else searched.written[0].ids)]
    return ModelInputs((_row(model, ids),), {}, _words(model, _target(model, ids)), searched)


def _encoder_decoder(
    model: "Model", encoding: Encoding, target: Sequence[int], searched: SearchTrace | None = None
) -> ModelInputs:  # fmt: skip
    assert model.usage.start is not None
    ids = [model.usage.start, *target]
    words = _side(model, "source", encoding.ids, encoding.tokens) | _target(model, ids)
    return ModelInputs((_row(model, encoding.ids), _row(model, ids)), {}, _words(model, words), searched)


def _row(model: "Model", ids: Sequence[int]) -> Tensor:
    """A batch of one [1, T], on the model's device."""
    return torch.tensor([ids], device=model.device)


def _side(model: "Model", side: str, ids: Sequence[int], tokens: Sequence[str]) -> dict[str, Any]:
    assert model.tokenizer is not None
    tokenizer = tokenizer_of(model.tokenizer, source=side == "source")
    spelling = tuple(spelled(tokenizer, number, token) for number, token in zip(ids, tokens, strict=True))
    numbers = word_numbers(tokenizer, ids, spelling)
    return {side: spelling, f"of_{side}": numbers, f"{side}_words": whole_words(tokenizer, ids, spelling, numbers)}


def _target(model: "Model", ids: Sequence[int]) -> dict[str, Any]:
    assert model.tokenizer is not None
    return _side(model, "target", ids, [model.tokenizer.token_of(number) or f"<{number}>" for number in ids])


def _words(model: "Model", words: Mapping[str, Any]) -> Words:
    stack = model.config.decoder or model.config.encoder
    size = None if stack is None else stack.vocabulary
    vocabulary = () if size is None or model.tokenizer is None else Spelling(model.tokenizer, size)
    return Words(**words, vocabulary=vocabulary, classes=model.usage.labels)


def _image(model: "Model", given: Any) -> ModelInputs:
    from cutaway.tasks.image_processing import pixels_of, processing_of

    assert isinstance(model.config.encoder, StackConfig)
    patches = model.config.encoder.patches
    assert patches is not None
    pixels = pixels_of(given, processing_of(model, patches), patches)
    n = patches.image_size // patches.patch_size
    places = tuple(f"{row + 1},{column + 1}" for row in range(n) for column in range(n))
    tokens = ("[class]", *places)
    words = Words(
        tokens, of_source=tuple(range(len(tokens))), source_words=tokens, classes=model.usage.labels, patches=(n, n)
    )
    return ModelInputs((pixels.unsqueeze(0).to(next(model.network.parameters())),), {}, words)
