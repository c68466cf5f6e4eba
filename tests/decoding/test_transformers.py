"""Greedy and beam search give the tokens of `transformers.generate`, for every family that writes."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from cutaway.decoding.search import write
from cutaway.generation import Generation, Prompt, Written
from tests.support.peers import PEERS, Peer, V, make_peer

N_OPTION_SETS, N_LENGTHS, N_PROMPTS = 25, 2, 5  # 250 prompts with their options for each family
N_ENDS = {"llama": 2}


@pytest.fixture(scope="module", params=PEERS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return make_peer(request.param, Path(tmp_path_factory.mktemp("peer")), N_ENDS.get(request.param, 1))


def option_set(r: random.Random) -> tuple[Generation, dict[str, Any]]:
    """The same wish in our words and in theirs."""
    beams = r.choice([1, 1, 2, 3, 4, 5])
    ours: dict[str, Any] = {"max_new_tokens": r.randint(1, 10), "beams": beams}
    if r.random() < 0.3:
        ours["min_new_tokens"] = r.randint(1, ours["max_new_tokens"])
    if r.random() < 0.3:
        ours["repetition_penalty"] = r.choice([0.8, 1.2, 2.0])
    if r.random() < 0.3:
        ours["no_repeat_ngram"] = r.randint(1, 3)
    if r.random() < 0.3:
        ours["ban"] = tuple(
            tuple(r.randrange(3, V - 1) for _ in range(n)) for n in (1, 1, 1, 2, 2, 2, 2, 2, 2, 3)
        )  # fmt: skip
    if beams > 1:
        ours["n_best"] = r.randint(1, beams)
        ours["length_penalty"] = r.choice([1.0, 1.0, 0.0, -1.0, 0.6, 2.0])
        ours["early_stopping"] = r.random() < 0.4
    theirs = {
        "max_new_tokens": ours["max_new_tokens"],
        "min_new_tokens": ours.get("min_new_tokens"),
        "num_beams": beams,
        "num_return_sequences": ours.get("n_best", 1),
        "repetition_penalty": ours.get("repetition_penalty"),
        "no_repeat_ngram_size": ours.get("no_repeat_ngram"),
        "do_sample": False,
    }
    if beams > 1:
        theirs |= {key: ours[key] for key in ("length_penalty", "early_stopping")}
    return Generation(**ours, batch_tokens=r.choice([64, 300, 2048])), theirs


def without_ends(ban: tuple[tuple[int, ...], ...], ends: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(word for word in ban if not set(word) & set(ends))


def with_end(written: Written) -> list[int]:
    return [*written.ids, *([] if written.end is None else [written.end])]


@pytest.mark.parametrize("number", range(N_OPTION_SETS))
def test_same_tokens(peer: Peer, number: int) -> None:
    r = random.Random(number)
    generation, options = option_set(r)
    usage = peer.ours.usage
    if generation.ban:
        ban = without_ends(generation.ban, usage.end)
        generation = Generation(**(vars(generation) | {"ban": ban}))
        never = [(token,) for token in usage.never]  # their bad words take the place of the model's own
        options["bad_words_ids"] = [list(word) for word in (*ban, *never)]
    lengths = [r.randint(1, 9) for _ in range(N_LENGTHS)]  # theirs in batches without padding, ours all at once
    prompts = [[r.randrange(3, V - 1) for _ in range(n)] for n in lengths for _ in range(N_PROMPTS)]
    ours = list(write(peer.ours.network, [Prompt(tuple(ids)) for ids in prompts], generation, usage))
    assert len(ours) == len(prompts)
    for batch in range(N_LENGTHS):
        mine = slice(batch * N_PROMPTS, (batch + 1) * N_PROMPTS)
        theirs = peer.generate(prompts[mine], **options)
        begun = 1 if peer.reads else lengths[batch]
        found = theirs.sequences[:, begun:].view(N_PROMPTS, generation.n_best, -1).tolist()
        scores = None if generation.beams == 1 else theirs.sequences_scores.view(N_PROMPTS, -1).tolist()
        for i, texts in enumerate(ours[mine]):
            # Where a last token is forced there may be fewer texts; they fill up with impossible ones.
            possible = (
                found[i]
                if scores is None
                else [row for row, score in zip(found[i], scores[i], strict=True) if score > -1e8]
            )
            assert [with_end(text) for text in texts] == [
                row[: len(with_end(text))] for row, text in zip(possible, texts, strict=True)
            ]
            padding = {token for row, text in zip(possible, texts, strict=True) for token in row[len(with_end(text)) :]}
            assert padding <= {usage.pad, *usage.end}
            if scores is not None:
                # Sums of up to 10 log-probabilities of about -5 in float32.
                assert [text.score for text in texts] == pytest.approx(scores[i][: len(texts)], abs=1e-4, rel=1e-5)


def test_a_forced_prefix_is_a_longer_beginning(peer: Peer) -> None:
    """Without length normalisation (which counts the prefix here, and not there) the texts are theirs."""
    usage, r = peer.ours.usage, random.Random(0)
    words = [token for token in range(3, V - 1) if token not in usage.end]
    for beams in (1, 3):
        prefix, ids = (r.choice(words), r.choice(words)), [r.choice(words) for _ in range(4)]
        generation = Generation(beams=beams, prefix=prefix, max_new_tokens=9, length_penalty=0.0)
        [[text]] = write(peer.ours.network, [Prompt(tuple(ids))], generation, usage)
        options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 7, "do_sample": False}
        if beams > 1:
            options["length_penalty"] = 0.0
        if peer.reads:
            theirs = peer.generate([ids], decoder_input_ids=torch.tensor([[usage.start, *prefix]]), **options)
            found = theirs.sequences[0, 1:].tolist()
        else:
            theirs = peer.generate([[*ids, *prefix]], **options)
            found = theirs.sequences[0, len(ids) :].tolist()
        assert with_end(text) == found[: len(with_end(text))]
