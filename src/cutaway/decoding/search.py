"""Texts from any network that decodes: `generate` for many prompts, `generate_stream` for one, token by token.

`write` and `stream` are the same for a network and options that are not planned yet."""

from collections.abc import Iterable, Iterator, Sequence

from cutaway.decoding.batches import generate_in_order
from cutaway.decoding.beam import Beams
from cutaway.decoding.plan import Decode, Plan, Request
from cutaway.decoding.sample import Sampling
from cutaway.decoding.state import Search
from cutaway.decoding.stops import n_streamable_tokens
from cutaway.devices import memory_explained
from cutaway.errors import ConfigError
from cutaway.generation import Generation, Prompt, Token, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage


def generate(plan: Plan, prompts: Iterable[Prompt | None]) -> Iterator[list[Written]]:
    """For each prompt, in the order asked, its `n_best` texts, best first; None is left out and has none.

    Prompts are taken from an iterator some thousand at a time, so that memory does not grow with their number. What is
    written for one does not depend on the others: not in sampling either, where the generator of each text is seeded
    with `seed`, the prompt's number and the sample's. Prompts are checked when they are taken.
    """

    def start(requests: Sequence[Request]) -> Search:
        return Sampling(plan, requests) if plan.beams == 1 else Beams(plan, requests)

    return generate_in_order(plan, prompts, start)


def generate_stream(plan: Plan, prompt: Prompt) -> Iterator[Token]:
    """The tokens that `generate` would give for this prompt alone, each as soon as it is known to stay."""
    if plan.beams > 1:
        raise ConfigError(f"beams={plan.beams} are known only when all is written; stream with beams=1, or write")
    if plan.copies > 1:
        raise ConfigError(f"n_best={plan.copies} texts can't be streamed at once; stream one, or write")
    return _streamed(plan, prompt)


def _streamed(plan: Plan, prompt: Prompt) -> Iterator[Token]:
    with memory_explained(plan.device):
        search, given = Sampling(plan, [plan.request(0, prompt)]), 0
        while True:
            search.step()
            for _, texts in search.take_finished():
                yield from texts[0].tokens[given:]
                return
            tokens = search.tokens()
            n = len(tokens)
            if plan.options.stop and plan.decode is not None:
                n = n_streamable_tokens([token.id for token in tokens], plan.options.stop, plan.decode)
            yield from tokens[given:n]
            given = max(given, n)


def write(
    network: Network,
    prompts: Iterable[Prompt | None],
    generation: Generation,
    usage: Usage,
    decode: Decode | None = None,
) -> Iterator[list[Written]]:
    return generate(Plan(network, generation, usage, decode), prompts)


def stream(
    network: Network, prompt: Prompt, generation: Generation, usage: Usage, decode: Decode | None = None
) -> Iterator[Token]:
    return generate_stream(Plan(network, generation, usage, decode), prompt)
