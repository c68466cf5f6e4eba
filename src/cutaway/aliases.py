"""Names that other libraries, and our own command line, have for an option; errors of unknown ones suggest ours."""

from collections.abc import Callable, Container, Iterable
from functools import wraps
from inspect import get_annotations, signature
from typing import ParamSpec, TypeVar, get_args

from cutaway.errors import ConfigError, unknown

P = ParamSpec("P")
R = TypeVar("R")

SYNONYMS = (
    ("beams", "num_beams", "n_beams", "beam_size", "beam_width"),
    (
        "max_new_tokens", "max_tokens", "max_length", "max_len", "max_new_token", "max_output_tokens", "max_gen_len",
        "max_decoding_length", "max_completion_tokens", "n_predict", "num_predict",
    ),
    ("min_new_tokens", "min_tokens", "min_length", "min_len", "min_decoding_length"),
    ("n_best", "top", "nbest", "num_return_sequences", "num_hypotheses", "n_hypotheses"),
    ("top", "top_k", "topk", "top_n", "num_results"),
    ("top_k", "topk", "sampling_topk"),
    ("top_p", "topp", "sampling_topp", "nucleus"),
    ("temperature", "temp", "sampling_temperature"),
    ("sample", "do_sample", "sampling"),
    ("seed", "random_seed", "random_state", "manual_seed"),
    ("beam_groups", "num_beam_groups"),
    ("diversity", "diversity_penalty", "diverse_beam_strength"),
    ("length_penalty", "lenpen", "len_penalty"),
    ("early_stopping", "early_stop"),
    ("repetition_penalty", "repeat_penalty"),
    ("no_repeat_ngram", "no_repeat_ngram_size"),
    ("encoder_no_repeat_ngram", "encoder_no_repeat_ngram_size"),
    ("exponential_decay", "exponential_decay_length_penalty"),
    ("typical_p", "typical", "locally_typical"),
    ("bias", "sequence_bias", "logit_bias"),
    ("suppress", "suppress_tokens"),
    ("begin_suppress", "begin_suppress_tokens"),
    ("remove_invalid", "remove_invalid_values"),
    ("renormalize", "renormalize_logits"),
    ("stop", "stop_strings", "stop_sequences", "stop_words", "until"),
    ("stop_ids", "eos_token_id", "end_token", "stop_token_ids"),
    ("prefix", "target_prefix", "decoder_input_ids", "prefix_tokens"),
    ("force", "force_words", "force_words_ids"),
    ("ban", "bad_words", "bad_words_ids", "suppress_sequences"),
    ("alternatives", "logprobs", "top_logprobs"),
    ("details", "return_dict_in_generate", "return_scores", "output_scores"),
    ("stream", "streaming", "streamer"),
    ("cached", "use_cache"),
    ("batch_tokens", "batch_size", "max_batch_size", "max_num_batched_tokens"),
    ("precision", "compute_type", "dtype", "torch_dtype", "quantization"),
    ("dtype", "torch_dtype", "precision", "compute_type"),
    ("device", "device_map"),
    ("offline", "local_files_only"),
    ("source", "src", "src_lang", "source_lang", "source_language"),
    ("target", "tgt", "tgt_lang", "target_lang", "target_language", "to"),
    ("steps", "max_steps", "num_steps", "train_steps", "total_steps"),
    ("preset", "arch", "architecture"),
    ("out", "output", "output_dir", "save_dir"),
    ("index", "index_type"),
)  # fmt: skip
"""Each line: names of one option. The first one that a call has is suggested for any other."""

NOTES = {
    "batch_size": "which counts tokens, not texts",
    "max_batch_size": "which counts tokens, not texts",
    "max_length": "which counts only the tokens that are written",
    "max_len": "which counts only the tokens that are written",
}
"""The difference between our option and the one of that name."""


def our_name(name: str, known: Container[str]) -> str | None:
    """The synonym of `name` among the known names; None if there is none."""
    for names in SYNONYMS:
        if name in names:
            found = next((each for each in names if each != name and each in known), None)
            if found is not None:
                return found
    return None


def alias_hint(name: str, found: str) -> str:
    """`cutaway calls it 'batch_tokens', which counts tokens, not texts`"""
    return f"cutaway calls it {found}" + (f", {NOTES[name]}" if name in NOTES else "")


def unknown_option(name: str, known: Iterable[str]) -> str:
    """`no option 'num_beams': cutaway calls it 'beams'`; a name without a synonym gets the most similar one."""
    known = list(known)
    found = our_name(name, known)
    if found is None:
        return unknown("option", name, known)
    return f"no option '{name}': {alias_hint(name, repr(found))}"


def hinted(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function: an unknown option is a ConfigError that suggests a known one, not a TypeError."""
    taken = signature(function).parameters
    known = [name for name, each in taken.items() if each.kind is each.KEYWORD_ONLY]
    for each in taken.values():
        if each.kind is each.VAR_KEYWORD:  # **options: Unpack[Options]
            known += [name for options in get_args(each.annotation) for name in get_annotations(options)]

    @wraps(function)
    def checked(*given: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known and name not in taken:
                raise ConfigError(unknown_option(name, known))
        return function(*given, **options)

    return checked
