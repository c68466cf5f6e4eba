"""Texts from any network that decodes: `write` for many prompts, `stream` for one, token by token."""

from collections.abc import Iterable, Iterator

from cutaway.decoding.batches import Start, generate_in_order
from cutaway.decoding.beam import Beams
from cutaway.decoding.plan import Decode, Plan
from cutaway.decoding.sample import Sampling
from cutaway.decoding.stops import n_streamable
from cutaway.errors import ConfigError
from cutaway.generation import Generation, Prompt, Token, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage


def write(
    network: Network,
    prompts: Iterable[Prompt],
    generation: Generation,
    usage: Usage,
    decode: Decode | None = None,
) -> Iterator[list[Written]]:
    """For each prompt, in the order asked, its `n_best` texts, best first.

    Prompts are taken from the iterator some thousand at a time, so that memory does not grow with their number. What is
    written for one does not depend on the others: not in sampling either, where the generator of each text is seeded
    with `seed`, the prompt's number and the sample's. Options are checked at once, prompts when they are taken.
    """
    plan = Plan(network, generation, usage, decode)
    return generate_in_order(plan, prompts, _start(plan))


def _start(plan: Plan) -> Start:
    return lambda asked: Sampling(plan, asked) if plan.beams == 1 else Beams(plan, asked)


def stream(
    network: Network, prompt: Prompt, generation: Generation, usage: Usage, decode: Decode | None = None
) -> Iterator[Token]:
    """The tokens that `write` would give for this prompt alone, each as soon as it is known to stay."""
    plan = Plan(network, generation, usage, decode)
    if plan.beams > 1:
        raise ConfigError(f"beams={plan.beams} are known only when all is written; stream with beams=1, or write")
    if plan.copies > 1:
        raise ConfigError(f"n_best={plan.copies} texts can't be streamed at once; stream one, or write")
    return _streamed(plan, prompt)


def _streamed(plan: Plan, prompt: Prompt) -> Iterator[Token]:
    search = Sampling(plan, [plan.ask(0, prompt)])
    given = 0
    while True:
        for _, texts in search.take_finished():
            yield from texts[0].tokens[given:]
            return
        tokens = search.tokens()
        n = len(tokens)
        if plan.options.stop and plan.decode is not None:
            n = n_streamable([token.id for token in tokens], plan.options.stop, plan.decode)
        yield from tokens[given:n]
        given = max(given, n)
        search.step()
