"""What CTranslate2 makes of the options of a search: which it has, by which names, and where its own rules differ."""

from dataclasses import dataclass
from typing import Any

from cutaway.decoding.generation import Generation
from cutaway.errors import InputError
from cutaway.models.network import Network
from cutaway.models.usage import Usage

NATIVE = "the native engine can"
LONGEST = 256  # new tokens, where neither the caller nor the model says


def beams_of(generation: Generation, usage: Usage) -> int:
    """How many beams: what is asked for, or what the model's makers recommend."""
    if generation.beams is not None:
        return generation.beams
    return 1 if generation.sample else max(usage.beams, generation.n_best)


def refused(generation: Generation, usage: Usage, network: Network) -> str | None:
    """The first option that CTranslate2 does not have, in one sentence; None if it has all."""
    beams = beams_of(generation, usage)
    prompted = not network.has_encoder  # the prompt is part of the text that options look back on
    lacks = {
        "beam_groups": generation.beam_groups > 1,
        "force": bool(generation.force),
        "alternatives": generation.alternatives > 0,
        "min_p": generation.min_p is not None,
        "seed": generation.sample and generation.seed is not None,  # it seeds a thread once, and never again
        "cached=False": not generation.cached,
        "repetition_penalty with beams": generation.repetition_penalty != 1.0 and beams > 1,  # on logits, not scores
        "repetition_penalty after a prompt": generation.repetition_penalty != 1.0 and prompted,
        "no_repeat_ngram after a prompt": generation.no_repeat_ngram > 0 and prompted,
        "stop with beams": bool(generation.stop) and beams > 1,
    }
    for option, asked in lacks.items():
        if asked:
            return f"CTranslate2 has no {option}; {NATIVE}"
    return None


def differs(generation: Generation, usage: Usage) -> str | None:
    """Why CTranslate2 may write another text than the native engine, in one sentence; None if it should not.

    Rounding aside: with equal options both take the likeliest tokens.
    """
    beams = beams_of(generation, usage)
    if generation.sample:
        return "sampling draws other numbers"
    if beams > 1 and not generation.early_stopping:
        return "its beam search ends at `beams` finished texts, as if early_stopping were asked for"
    if beams > 1 and (generation.ban or generation.min_new_tokens or generation.no_repeat_ngram):
        return "its beam search shares the probability of banned tokens among the others"
    if beams > 1 and generation.prefix:
        return "its beam search counts a prefix's length and not its probability"
    if beams > 1 and len({*usage.end, *generation.stop_ids}) > 1:
        return "its beam search follows too few texts where several tokens may end them"
    if generation.repetition_penalty != 1.0 and usage.start not in usage.never:
        return "its repetition_penalty leaves out the start token"
    return None


@dataclass(frozen=True)
class Call:
    """The arguments of one call that every text of a window shares."""

    options: dict[str, Any]
    ends: frozenset[int]  # of the model itself
    stops: frozenset[int]  # asked for besides


def arguments(generation: Generation, usage: Usage, network: Network) -> Call:
    """Our options under CTranslate2's names; lengths are not among them, as they may depend on the prompt."""
    if (reason := refused(generation, usage, network)) is not None:
        raise InputError(reason)
    beams = beams_of(generation, usage)
    if generation.sample and beams > 1:
        raise InputError(f"beams={beams} and sample=True contradict each other; choose one of them")
    if generation.n_best > beams and not generation.sample:
        raise InputError(f"n_best={generation.n_best} texts need as many beams, not {beams}, or sample=True")
    vocabulary = network.config.decoder.vocabulary if network.config.decoder is not None else 0
    assert vocabulary is not None
    if 2 * beams > vocabulary and beams > 1:
        raise InputError(f"beams={beams}: CTranslate2 looks at twice as many tokens, of a vocabulary of {vocabulary}")
    given = [*generation.stop_ids, *generation.prefix, *(token for banned in generation.ban for token in banned)]
    for token in given:
        if not 0 <= token < vocabulary:
            raise InputError(f"token {token} of stop_ids, prefix or ban is outside this model's {vocabulary}")
    ends = [*usage.end, *(token for token in generation.stop_ids if token not in usage.end)]
    banned = [(token,) for token in usage.never if token < vocabulary] + [each for each in generation.ban if each]
    options: dict[str, Any] = {
        "beam_size": beams,
        "num_hypotheses": generation.n_best,
        "length_penalty": generation.length_penalty,
        "repetition_penalty": generation.repetition_penalty,
        "no_repeat_ngram_size": generation.no_repeat_ngram,
        "suppress_sequences": [[str(token) for token in sequence] for sequence in banned] or None,
        "end_token": ends or [vocabulary],  # no end at all: a number that no token has
        "return_end_token": True,  # so that lengths count it, as ours do, and we learn which it was
        "return_scores": True,
    }
    if generation.sample:
        options["sampling_topk"] = generation.top_k or 0  # 0: all
        options["sampling_topp"] = generation.top_p or 1.0
        options["sampling_temperature"] = generation.temperature
    return Call(options, frozenset(usage.end), frozenset(generation.stop_ids))
