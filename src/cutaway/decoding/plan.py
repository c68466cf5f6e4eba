"""What a search does for one network: the options, what the model says of itself, and whether the two fit together."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from cutaway.checks import Count, Positive, check, describe
from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation, Prompt, sampling_options_in_use
from cutaway.models.config import LanguageModel, RecurrentStackConfig, StackConfig
from cutaway.models.network import Network
from cutaway.models.usage import Usage

Decode = Callable[[Sequence[int]], str]
"""Tokens to text, for stop strings."""

DEFAULT_TOKENS = 256  # how many to write where neither the options nor the model say
SHORTEST = 8  # a prompt counts as this many tokens of a batch at least: rows cost something, however short


@dataclass(frozen=True)
class Request:
    """A prompt that was checked, and its place in the order asked."""

    index: int
    ids: tuple[int, ...]
    room: int  # tokens that may be written, the prefix included
    least: int  # tokens that must be written, the prefix included
    copy: int = 0  # of several samples from one prompt, which


class Plan:
    """Options that were checked against a network. `request` checks a prompt.

    How long a text may become: `max_new_tokens`; else the model's `max_length`, which counts the start token of an
    encoder-decoder and the prompt of a decoder; else 256. Learned positions are a limit above all: a text that reaches
    the last of them ends there.
    """

    def __init__(self, network: Network, generation: Generation, usage: Usage, decode: Decode | None = None) -> None:
        self.network, self.options, self.usage, self.decode = network, generation, usage, decode
        _check_network(network)
        _check_words(generation)
        stack = network.config.decoder
        assert stack is not None
        assert stack.vocabulary is not None
        self.vocabulary = stack.vocabulary
        self.context = _context(stack)
        self.source_context = _context(network.config.encoder)
        self.beams = _beams(generation, usage)
        self.ends = frozenset((*usage.end, *generation.stop_ids))
        self.seed = generation.seed if generation.seed is not None else int.from_bytes(os.urandom(8))
        self.device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
        singles = {word[0] for word in generation.ban if len(word) == 1}
        self.never = tuple(sorted((set(usage.never) | singles) - self.ends))
        self.phrases = tuple(word for word in generation.ban if len(word) > 1)
        self._check_ids()
        self._check_options()
        self._check_beams()

    @property
    def looks_back(self) -> bool:
        """Whether a filter reads the tokens so far, or those of the source."""
        options = self.options
        return bool(
            options.bias
            or options.encoder_repetition_penalty != 1.0
            or options.repetition_penalty != 1.0
            or options.no_repeat_ngram
            or options.encoder_no_repeat_ngram
            or self.phrases
        )

    @property
    def counts_prompt(self) -> bool:
        """Whether the shortest text depends on what it begins with."""
        return self.options.min_new_tokens is None and self.usage.min_length > 0

    @property
    def reweighs(self) -> bool:
        """Whether a filter does more to scores than to hide some: then it needs log-probabilities in beam search."""
        options = self.options
        return (
            options.encoder_repetition_penalty != 1.0
            or options.repetition_penalty != 1.0
            or bool(options.bias)
            or options.exponential_decay is not None
            or options.remove_invalid
            or options.renormalize
        )

    def _check_options(self) -> None:
        options, W = self.options, self.beams
        if banned := self.ends & {word[0] for word in options.ban if len(word) == 1}:
            raise ConfigError(
                f"ban holds the end token {min(banned)}; texts must be able to end: raise min_new_tokens instead"
            )
        if ends := self.ends & set(options.prefix):
            raise ConfigError(f"the prefix holds the end token {min(ends)}, after which nothing is written")
        least, most = options.min_new_tokens or 0, options.max_new_tokens
        if most is not None and least > most:
            raise ConfigError(
                f"min_new_tokens={options.min_new_tokens} is above max_new_tokens={options.max_new_tokens}"
            )
        if options.max_new_tokens is not None and len(options.prefix) >= options.max_new_tokens:
            raise ConfigError(
                f"the prefix has {len(options.prefix)} tokens, and max_new_tokens={options.max_new_tokens} counts "
                "them: leave room for at least one more"
            )
        if W * max(2, 1 + len(self.ends)) > self.vocabulary:
            raise ConfigError(
                f"beams={W} is too wide for a vocabulary of {self.vocabulary}: {max(2, 1 + len(self.ends))} tokens "
                "for each beam are looked at"
            )
        if options.stop and self.decode is None:
            raise ConfigError("stop strings need a tokenizer to read what is written; give stop_ids, or decode=…")
        if "" in options.stop:
            raise ConfigError("a stop string is empty, so every text would end before it began; leave it out")
        if self.options.sample and self.options.beams is not None and self.options.beams > 1:
            raise ConfigError(
                f"sample=True draws texts, beams={options.beams} searches for the likeliest: choose one of the two"
            )
        if not options.sample:
            for name, value in sampling_options_in_use(options).items():
                raise ConfigError(f"{name}={value} belongs to sampling; add sample=True")
        if options.alternatives > self.vocabulary:
            raise ConfigError(f"alternatives={options.alternatives} are more than the vocabulary of {self.vocabulary}")
        if options.alternatives and not options.scores:
            raise ConfigError(f"alternatives={options.alternatives} come with their log-probabilities: leave scores on")

    def _check_beams(self) -> None:
        options, W = self.options, self.beams
        if not options.sample and options.n_best > W:
            raise ConfigError(
                f"n_best={options.n_best} texts are more than beams={W} keep; raise beams, or sample=True"
            )
        if options.beam_groups > 1 and W % options.beam_groups:
            raise ConfigError(f"beam_groups={options.beam_groups} must divide beams={W}")
        if options.diversity < 0 or (options.diversity > 0 and options.beam_groups == 1):
            raise ConfigError(
                f"diversity={options.diversity} keeps groups of beams apart: it is above 0, with beam_groups above 1"
            )
        if options.beam_groups > 1 and options.force:
            raise ConfigError("force and beam_groups can't be combined; leave one of them out")
        if options.force and W == 1:
            raise ConfigError("force needs beam search to find a place for the words; set beams to 2 or more")
        n_forced = sum(map(len, options.force)) + len(options.prefix)
        if options.force and options.max_new_tokens is not None and n_forced > options.max_new_tokens:
            raise ConfigError(
                f"force and prefix are {n_forced} tokens, more than max_new_tokens={options.max_new_tokens}"
            )
        hidden = set(self.never) | self.ends
        for word in options.force:
            if hidden & set(word) or any(_contains(word, phrase) for phrase in self.phrases):
                raise ConfigError(f"force asks for {list(word)}, which holds what may not be written or ends a text")

    def _check_ids(self) -> None:
        options = self.options
        named_ids = {
            "prefix": options.prefix,
            "stop_ids": options.stop_ids,
            "force": [token for word in options.force for token in word],
            "ban": [token for word in options.ban for token in word],
            "bias": [token for word, _ in options.bias for token in word],
            "suppress": options.suppress,
            "begin_suppress": options.begin_suppress,
            "usage.start": () if self.usage.start is None else (self.usage.start,),
            "usage.end": self.usage.end,
            "usage.never": self.usage.never,
            "usage.first": () if self.usage.first is None else (self.usage.first,),
            "usage.last": () if self.usage.last is None else (self.usage.last,),
        }
        for name, ids in named_ids.items():
            if (wrong := _outside(ids, self.vocabulary)) is not None:
                raise InputError(f"{name} holds {_not_an_id(wrong, self.vocabulary)}")
        for name, words in (("force", options.force), ("ban", options.ban)):
            if any(len(word) == 0 for word in words):
                raise InputError(f"{name} holds a sequence of no tokens; leave it out")
        encoder = self.network.config.encoder
        reads_source = options.encoder_repetition_penalty != 1.0 or options.encoder_no_repeat_ngram
        if reads_source and encoder is not None and (encoder.vocabulary or 0) > self.vocabulary:
            raise ConfigError("encoder_repetition_penalty and encoder_no_repeat_ngram need one vocabulary for both")
        if encoder is not None and self.usage.start is None:
            raise InputError("this model has no start token (usage.start), with which a decoder begins")

    def request(self, index: int, prompt: Prompt) -> Request:
        """The prompt, checked: its ids are of this model's vocabulary and leave room to write."""
        if not isinstance(prompt, Prompt):
            raise InputError(f"prompt {index} is {describe(prompt)}; give a Prompt of token ids")
        ids = prompt.ids
        if not isinstance(ids, tuple):
            raise InputError(f"prompt {index} has ids {describe(ids)}; give a tuple of token ids")
        encoder = self.network.config.encoder
        vocabulary = self.vocabulary if encoder is None else encoder.vocabulary
        assert vocabulary is not None
        if (wrong := _outside(ids, vocabulary)) is not None:
            raise InputError(f"prompt {index} holds {_not_an_id(wrong, vocabulary)}")
        if encoder is not None:
            if not ids:
                raise InputError(f"prompt {index} has no tokens; an encoder reads at least one (its end token)")
            if self.source_context is not None and len(ids) > self.source_context:
                raise InputError(
                    f"prompt {index} has {len(ids)} tokens, but the encoder learned only {self.source_context} "
                    "positions; shorten it"
                )
        elif not ids:
            if self.usage.start is None:
                raise InputError(f"prompt {index} has no tokens, and this model has no start token to begin with")
            ids = (self.usage.start,)
        begun = 1 if encoder is not None else len(ids)
        room = self._room(index, begun, prompt.room)
        return Request(index, ids, room, self._least(begun, prompt.room))

    def _room(self, index: int, begun: int, most: int | None) -> int:
        """How many tokens may be written after the `begun` first ones; `most` is the prompt's own limit."""
        n_prefix = len(self.options.prefix)
        room = self.options.max_new_tokens
        if room is None and self.usage.max_length is not None:
            room = self.usage.max_length - begun
            if room <= n_prefix:
                raise InputError(
                    f"prompt {index} has {begun} tokens, and texts of this model end at {self.usage.max_length} "
                    "(max_length); give max_new_tokens, or a shorter prompt"
                )
        room = DEFAULT_TOKENS + n_prefix if room is None else room
        if most is not None and most < room:
            if most <= n_prefix:
                raise InputError(
                    f"prompt {index} has {begun} tokens, which leave room for {most}; the prefix alone has {n_prefix}: "
                    "shorten one of them"
                )
            room = most
        if self.context is not None:
            if begun + n_prefix > self.context:
                raise InputError(
                    f"prompt {index} has {begun + n_prefix} tokens, but this model learned only {self.context} "
                    "positions; shorten it"
                )
            room = min(room, self.context - begun + 1)  # the last token is written, never read
        return room

    def _least(self, begun: int, most: int | None) -> int:
        if self.options.min_new_tokens is None:
            return max(0, self.usage.min_length - begun)
        return self.options.min_new_tokens if most is None else min(self.options.min_new_tokens, most)

    def beginning(self, request: Request) -> tuple[int, ...]:
        """What the decoder reads first: the start token or the prompt, then the forced prefix."""
        if self.network.config.encoder is None:
            return (*request.ids, *self.options.prefix)
        assert self.usage.start is not None
        return (self.usage.start, *self.options.prefix)

    def cost(self, request: Request) -> int:
        """The tokens of a batch that one prompt takes: its own; without an encoder, those written too."""
        n = len(request.ids)
        if self.network.config.encoder is None:
            n += request.room
        return max(n, SHORTEST) * self.beams

    @property
    def copies(self) -> int:
        """How often each prompt is written from: once, or for each sample."""
        return self.options.n_best if self.options.sample else 1

    def copied(self, request: Request) -> list[Request]:
        return [replace(request, copy=copy) for copy in range(self.copies)]


def check_eval_mode(network: Network) -> None:
    if network.training:
        raise InputError("the network is in training mode, where dropout is random; call network.eval() first")


def _check_network(network: Network) -> None:
    if not isinstance(network, Network):
        raise InputError(f"a search needs a network, not {describe(network)}; give model.network")
    if not network.has_decoder:
        raise InputError("this model has no decoder, so it can't write; T5, MarianMT, GPT-2 and Llama can")
    if not isinstance(network.config.head, LanguageModel):
        raise InputError("this model has no language-model head, so it can't write; load it with the head it was saved")
    check_eval_mode(network)


def _check_words(generation: Generation) -> None:
    """The entries of force, ban, bias, exponential_decay and stop; the check of the fields sees only that each is a
    tuple."""
    for name, words in (("force", generation.force), ("ban", generation.ban)):
        for word in words:
            if not isinstance(word, tuple | list):
                raise ConfigError(f"{name} holds {describe(word)}; give sequences of token ids")
    for pair in generation.bias:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], tuple) or not pair[0]:
            raise ConfigError(f"bias holds {describe(pair)}; give pairs of a tuple of token ids and a number")
        check("bias", pair[1], float)
    if generation.exponential_decay is not None:
        if len(generation.exponential_decay) != 2:
            raise ConfigError(f"exponential_decay is {describe(generation.exponential_decay)}; give (tokens, factor)")
        after, factor = generation.exponential_decay
        check("exponential_decay", after, Count)
        check("exponential_decay", factor, Positive)
    for stop in generation.stop:
        if not isinstance(stop, str):
            raise ConfigError(f"stop holds {describe(stop)}, which is no text")


def _context(stack: StackConfig | RecurrentStackConfig | None) -> int | None:
    """How many tokens can be read at most: only learned positions are a limit."""
    if isinstance(stack, StackConfig) and stack.positions == "learned":
        return stack.max_positions
    return None


def _beams(generation: Generation, usage: Usage) -> int:
    if generation.sample:
        return 1
    return usage.beams if generation.beams is None else generation.beams


def _outside(ids: Sequence[int], vocabulary: int) -> object | None:
    """The first that is no id of this vocabulary."""
    if not ids or ({*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < vocabulary):
        return None
    return next(token for token in ids if type(token) is not int or not 0 <= token < vocabulary)


def _not_an_id(wrong: object, vocabulary: int) -> str:
    if type(wrong) is not int:
        return f"{describe(wrong)}, which is no token id (a whole number)"
    return f"the id {wrong}, which is outside this model's vocabulary of {vocabulary} (0 to {vocabulary - 1})"


def _contains(word: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tuple(word[i : i + len(phrase)]) == tuple(phrase) for i in range(len(word) - len(phrase) + 1))
