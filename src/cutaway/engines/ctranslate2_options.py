"""What CTranslate2 makes of the options of a search: which it has, by which names, and where its own rules differ."""

from typing import Any

from cutaway.decoding.plan import Plan
from cutaway.engines.ctranslate2_spec import places
from cutaway.errors import InputError
from cutaway.generation import Generation
from cutaway.models.config import StackConfig
from cutaway.models.network import Network
from cutaway.models.usage import Usage

NATIVE = "the native engine can"
LEAST_SHARE = 1e-30  # of top_p: less is 0 in float32, which CTranslate2 refuses; the likeliest token alone is left
PATIENCE = 2
"""Finished texts for each beam where it is not asked to stop at the first: the nearest that CTranslate2 has to going on
while a better text is possible. Of 193 sentences in beams of 5, 19 texts differed from the native ones with 1, 8 with 2
(as fast), 6 with 4 (1.4 times as long) and 10 with 20.
"""


def refused(plan: Plan) -> str | None:
    """The first option that CTranslate2 does not have, in one sentence; None if it has all."""
    generation, beams = plan.options, plan.beams
    prompted = not plan.network.has_encoder  # the prompt is part of the text that options look back on
    lacks = {
        "beam_groups": generation.beam_groups > 1,
        "force": bool(generation.force),
        "alternatives": generation.alternatives > 0,
        "min_p": generation.min_p is not None,
        "seed": generation.sample and generation.seed is not None,  # it seeds a thread once, and never again
        "typical_p": generation.typical_p is not None,
        "top_h": generation.top_h is not None,
        "epsilon_cutoff": generation.epsilon_cutoff > 0,
        "eta_cutoff": generation.eta_cutoff > 0,
        "encoder_repetition_penalty": generation.encoder_repetition_penalty != 1.0,
        "encoder_no_repeat_ngram": generation.encoder_no_repeat_ngram > 0,
        "exponential_decay": generation.exponential_decay is not None,
        "bias": bool(generation.bias),
        "suppress": bool(generation.suppress),
        "begin_suppress": bool(generation.begin_suppress),
        "remove_invalid": generation.remove_invalid,
        "renormalize": generation.renormalize and beams > 1,
        "first token that is forced": plan.usage.first is not None,
        "min_length, which counts the prompt": plan.counts_prompt and prompted,
        "cached=False": not generation.cached,
        "repetition_penalty with beams": generation.repetition_penalty != 1.0 and beams > 1,  # on logits, not scores
        "repetition_penalty below 1e-30": generation.repetition_penalty < 1e-30,  # 0 in its float32
        "repetition_penalty after a prompt": generation.repetition_penalty != 1.0 and prompted,
        "no_repeat_ngram after a prompt": generation.no_repeat_ngram > 0 and prompted,
        "stop strings with beams": bool(generation.stop) and beams > 1,
    }
    for option, asked in lacks.items():
        if asked:
            return f"CTranslate2 has no {option}; {NATIVE}"
    return None


def differs(generation: Generation, usage: Usage, network: Network) -> str | None:
    """Why CTranslate2 may write another text than the native engine, in one sentence; None if it should not.

    Rounding aside: with equal options both take the likeliest tokens, or draw from the same distribution. Options that
    it does not have are told too.
    """
    plan = Plan(network, generation, usage, lambda _: "")
    if (reason := refused(plan)) is not None:
        return reason
    if _is_too_long(plan):
        return f"CTranslate2 has no positions for so many tokens; {NATIVE}"
    if plan.beams > 1:
        reasons = {
            "ends at `beams` finished texts, as if early_stopping were asked for":
                generation.early_stopping is not True,
            "shares the probability of banned tokens among the others":
                bool(generation.ban or generation.min_new_tokens or plan.counts_prompt or generation.no_repeat_ngram),
            "ends at the first text that can't be beaten, if lengths do not count":
                generation.length_penalty == 0.0 and generation.n_best > 1,
            "does not choose among texts by the token that must end them": usage.last is not None,
            "counts a prefix's length and not its probability": bool(generation.prefix),
            "does not know which token ends the longest texts": usage.last is not None,
            "follows too few texts where several tokens may end them": len(plan.ends) > 1,
        }  # fmt: skip
        return next((f"CTranslate2's beam search {reason}" for reason, holds in reasons.items() if holds), None)
    looks_back = generation.repetition_penalty != 1.0 or generation.no_repeat_ngram > 0
    if looks_back and usage.start not in usage.never:
        return "CTranslate2 does not count the start token among those that may not be repeated"
    return None


def _is_too_long(plan: Plan) -> bool:
    """Texts end where learned positions do; sinusoids have no end, but in CTranslate2."""
    decoder = plan.network.config.decoder
    longest = plan.options.max_new_tokens or plan.usage.max_length or 0
    return isinstance(decoder, StackConfig) and decoder.positions != "learned" and longest > places(decoder)


def arguments(plan: Plan) -> dict[str, Any]:
    """Our options by CTranslate2's names; lengths are not among them, as they may depend on the prompt."""
    if (reason := refused(plan)) is not None:
        raise InputError(reason)
    generation = plan.options
    banned = [[token] for token in plan.never if token < plan.vocabulary] + [list(phrase) for phrase in plan.phrases]
    options: dict[str, Any] = {
        "beam_size": plan.beams,
        "num_hypotheses": generation.n_best,
        "patience": 1 if generation.early_stopping is True else PATIENCE,
        "length_penalty": generation.length_penalty,
        "repetition_penalty": generation.repetition_penalty,
        "no_repeat_ngram_size": generation.no_repeat_ngram,
        "suppress_sequences": [[str(token) for token in sequence] for sequence in banned] or None,
        "end_token": sorted(plan.ends) or [plan.vocabulary],  # no end at all: a number that no token has
        "return_end_token": True,  # so that lengths count it, as ours do, and we learn which it was
        "return_scores": generation.scores or plan.beams > 1,
    }
    if generation.sample:
        options["sampling_topk"] = min(generation.top_k or 0, plan.vocabulary)  # 0: all
        options["sampling_topp"] = max(generation.top_p or 1.0, LEAST_SHARE)
        options["sampling_temperature"] = generation.temperature
    return options
