"""CTranslate2 runs our networks as transformers runs its own: the same ids, and the same numbers to float precision."""

import copy
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import cutaway
from bench.parity import CASES, Case, make
from cutaway.decoding.plan import Plan
from cutaway.decoding.search import write
from cutaway.engines import ctranslate2_files, ctranslate2_spec
from cutaway.engines.choose import choose
from cutaway.engines.ctranslate2 import CTranslate2
from cutaway.engines.ctranslate2_options import arguments, differs
from cutaway.engines.engine import Precision
from cutaway.engines.native import Native
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.generation import Generation, Prompt, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from tests.support import hf_models
from tests.support.families import noisy, shrunk, with_stacks
from tests.support.threads import at_once

library = ctranslate2_spec.library()
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

ROUNDING = 2e-5  # sums of a few dozen float32 terms of size 10, in another order: seen up to 2e-5 / 4
WRITERS = [
    case
    for case in CASES
    if case.model.endswith(("LMHeadModel", "CausalLM", "MTModel", "ConditionalGeneration"))
    and "sliding window" not in case.name  # which it says it can't: tests/reference/test_windows.py
]
READERS = [case for case in CASES if case.model.startswith(("Bert", "DistilBert", "T5Encoder"))]
LENGTH = 8  # new tokens: GPT-2's case has 13 positions


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], tuple[Any, Network]]:
    """A model of transformers, and ours with the same weights."""
    made: dict[str, tuple[Any, Network]] = {}

    def of(case: Case) -> tuple[Any, Network]:
        if case.name not in made:
            theirs = make(case)
            folder = tmp_path_factory.mktemp("model")
            theirs.save_pretrained(folder)
            theirs.generation_config = hf.GenerationConfig()  # not Marian's forced end
            made[case.name] = theirs, cutaway.load(folder).network.eval()
        return made[case.name]

    return of


def prompts(seed: int = 0, n: int = 7) -> list[list[int]]:
    """Of one to five tokens, in no order."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [3, 5, 1, 4, 2, 5, 1, 3][:n]
    return [torch.randint(2, 35, (length,), generator=generator).tolist() for length in lengths]


def start_of(case: Case) -> int | None:
    return case.options.get("decoder_start_token_id")


def generate(
    theirs: Any, case: Case, ids: list[int], end: int | None, **options: Any
) -> tuple[list[list[int]], list[float]]:
    """transformers' texts, each with its end token, and their scores if there are several beams."""
    config = hf.GenerationConfig(
        max_new_tokens=LENGTH, eos_token_id=end, pad_token_id=36, decoder_start_token_id=start_of(case),
        bos_token_id=None, return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    skipped = len(ids) if start_of(case) is None else 1
    with torch.no_grad():
        out = theirs.generate(
            torch.tensor([ids]), generation_config=config, attention_mask=torch.ones(1, len(ids), dtype=torch.long)
        )
    rows = [row[skipped:].tolist() for row in out.sequences]
    rows = [row[: row.index(end) + 1] if end in row else row for row in rows]
    return rows, out.sequences_scores.tolist() if "sequences_scores" in out else []


def common_end(theirs: Any, case: Case) -> int:
    """A token that the model likes to write: as the end token it ends some texts, and not others."""
    written = Counter(token for ids in prompts(1) for token in generate(theirs, case, ids, None)[0][0][3:])
    return written.most_common(1)[0][0]


def engine_of(network: Network, start: int | None, *ends: int, precision: Precision = "float32") -> CTranslate2:
    return CTranslate2(network, Usage(start=start, end=ends), precision, threads=1)


def full(text: Written) -> list[int]:
    return [*text.ids, *([] if text.end is None else [text.end])]


@pytest.mark.parametrize("case", WRITERS, ids=lambda case: case.name)
def test_greedy_and_beam_search_write_what_transformers_writes(case: Case, loaded: Any) -> None:
    theirs, network = loaded(case)
    end = common_end(theirs, case)
    engine = engine_of(network, start_of(case), end)
    asked = prompts()
    greedy = list(engine.write([Prompt(tuple(ids)) for ids in asked], Generation(max_new_tokens=LENGTH)))
    assert [full(texts[0]) for texts in greedy] == [generate(theirs, case, ids, end)[0][0] for ids in asked]
    options = Generation(max_new_tokens=LENGTH, beams=3, n_best=2, early_stopping=True, length_penalty=0.7)
    beams = list(engine.write([Prompt(tuple(ids)) for ids in asked], options))
    for texts, ids in zip(beams, asked, strict=True):
        rows, scores = generate(
            theirs, case, ids, end, num_beams=3, num_return_sequences=2, early_stopping=True, length_penalty=0.7
        )
        assert [full(text) for text in texts] == rows
        assert [text.score for text in texts] == pytest.approx(scores, abs=ROUNDING)
    assert "end" in {text.ended for texts in greedy + beams for text in texts}, "nothing is seen of ends"


@pytest.mark.parametrize("case", WRITERS, ids=lambda case: case.name)
def test_stream_gives_the_tokens_of_write_and_their_log_probabilities(case: Case, loaded: Any) -> None:
    theirs, network = loaded(case)
    end = common_end(theirs, case)
    engine = engine_of(network, start_of(case), end)
    for ids in prompts(n=3):
        prompt, options = Prompt(tuple(ids)), Generation(max_new_tokens=LENGTH)
        [[text]] = engine.write([prompt], options)
        tokens = list(engine.stream(prompt, options))
        assert [token.logprob for token in text.tokens] == pytest.approx([t.logprob for t in tokens], abs=ROUNDING)
        assert tuple(token.id for token in tokens) == text.ids
        written = full(text)
        with torch.no_grad():
            if network.has_encoder:
                logits = network(torch.tensor([ids]), torch.tensor([[start_of(case), *written[:-1]]]))
            else:
                logits = network(torch.tensor([ids + written[:-1]]))[:, len(ids) - 1 :]
        expected = logits[0].log_softmax(-1)[torch.arange(len(written)), written]
        assert [token.logprob for token in tokens] == pytest.approx(expected[: len(tokens)].tolist(), abs=ROUNDING)
        assert text.score == pytest.approx(float(expected.mean()), abs=ROUNDING)


@pytest.mark.parametrize("layout", ["sinusoidal", "sinusoidal_halves"])
def test_the_paper_s_transformer_in_both_layouts(layout: Any) -> None:
    """No family of transformers has the paper's; its log-probabilities beside our own forward pass."""
    config: Any = shrunk("transformer-tiny")
    network = noisy(cutaway.build(with_stacks(config, positions=layout)).eval())
    engine = engine_of(network, 0, 1)
    source, target = [3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13]
    [scored] = engine.model.score_batch([[str(i) for i in source]], [[str(i) for i in target]])
    with torch.no_grad():
        found = network(torch.tensor([source]), torch.tensor([[0, *target]]))[0].log_softmax(-1)
    expected = found[torch.arange(4), torch.tensor(target)]
    assert scored.log_probs[:4] == pytest.approx(expected.tolist(), abs=ROUNDING)


@pytest.mark.parametrize("case", READERS, ids=lambda case: case.name)
def test_reading_says_what_our_network_says(case: Case, loaded: Any) -> None:
    _, network = loaded(case)
    engine = engine_of(network, None)
    tokens = torch.randint(37, (3, 7), generator=torch.Generator().manual_seed(2))
    right = torch.arange(7) < torch.tensor([7, 4, 6])[:, None]
    segments = (torch.arange(7) > 3).long().expand(3, -1)
    has_segments = network.config.encoder is not None and network.config.encoder.n_segments == 2
    for mask, given in [(None, None), (right, None), (right.flip(1), None), *([(right, segments)] * has_segments)]:
        with torch.no_grad():
            ours, theirs = network(tokens, mask=mask, segments=given), engine.read(tokens, mask, given)
        if mask is not None and ours.dim() == 3:
            ours, theirs = ours[mask], theirs[mask]  # what padding says is nobody's
        torch.testing.assert_close(theirs, ours, atol=ROUNDING, rtol=0)


def test_a_decoder_s_logits_can_be_read_too(loaded: Any) -> None:
    _, network = loaded(hf_models.case("Llama: Llama 3 rotation"))
    tokens = torch.randint(37, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(engine_of(network, None).read(tokens), network(tokens), atol=ROUNDING, rtol=0)


def test_torch_keeps_its_cores(loaded: Any) -> None:
    """The library sets the threads of whoever loads a model to its own."""
    _, network = loaded(hf_models.case("GPT-2: language model"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    engine_of(network, None)
    n = torch.get_num_threads()
    torch.set_num_threads(before)
    assert n == 2


def test_a_batch_gives_the_texts_of_one_by_one(loaded: Any) -> None:
    for name in ("MarianMT: translation", "GPT-2: language model"):
        case = hf_models.case(name)
        theirs, network = loaded(case)
        engine = engine_of(network, start_of(case), common_end(theirs, case))
        asked = [Prompt(tuple(ids)) for seed in range(6) for ids in prompts(seed)]
        for options in (
            Generation(max_new_tokens=LENGTH, batch_tokens=20),  # many batches, and more than one window
            Generation(max_new_tokens=LENGTH, beams=3, n_best=3, batch_tokens=20),
        ):
            together = [[text.ids for text in texts] for texts in engine.write(asked, options)]
            alone = [[text.ids for text in next(engine.write([prompt], options))] for prompt in asked]
            assert together == alone


def test_prompts_are_taken_as_they_are_needed(loaded: Any) -> None:
    _, network = loaded(CASES[0])
    taken = 0

    def many() -> Any:
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield Prompt((3, 4, 5, 6))

    texts = engine_of(network, 36, 0).write(many(), Generation(max_new_tokens=1, batch_tokens=8))
    next(texts)
    assert taken == 1, "the first windows are small"
    for _ in range(500):
        next(texts)
    assert taken <= 501 + 16 * 8 // 4


def test_options_under_other_names(loaded: Any) -> None:
    """Each changes the text as transformers' option does."""
    case = CASES[0]
    theirs, network = loaded(case)
    engine = engine_of(network, 36, 0)
    asked = prompts()

    def texts(**options: Any) -> list[list[int]]:
        options = {"max_new_tokens": LENGTH} | options
        return [full(texts[0]) for texts in engine.write([Prompt(tuple(ids)) for ids in asked], Generation(**options))]

    def their_texts(end: int = 0, **options: Any) -> list[list[int]]:
        return [generate(theirs, case, ids, end, **options)[0][0] for ids in asked]

    plain = texts()
    liked = Counter(token for text in plain for token in text).most_common(1)[0][0]
    assert texts(no_repeat_ngram=2) == their_texts(no_repeat_ngram_size=2) != plain
    assert texts(repetition_penalty=1.5) == their_texts(repetition_penalty=1.5) != plain
    assert texts(ban=((liked,),)) == their_texts(bad_words_ids=[[liked]]) != plain
    assert texts(ban=((liked, liked),)) == their_texts(bad_words_ids=[[liked, liked]]) != plain
    stopped = texts(stop_ids=(liked,))
    assert stopped == their_texts(end=liked) != plain
    assert texts(stop_ids=(liked,), min_new_tokens=3) == their_texts(end=liked, min_new_tokens=3) != stopped
    assert texts(max_new_tokens=3) == [text[:3] for text in plain]
    assert [text[:2] for text in texts(prefix=(5, 6))] == [[5, 6]] * len(asked)


def test_a_full_text_ends_with_the_token_that_it_must_end_with(loaded: Any) -> None:
    case = CASES[0]
    _, network = loaded(case)
    for last in (0, 7):  # an end token, and one that is none
        usage = Usage(start=36, end=(0,), last=last)
        engine, asked = CTranslate2(network, usage, threads=1), [Prompt(tuple(ids)) for ids in prompts()]
        options = Generation(max_new_tokens=LENGTH)
        native = [
            [(text.ids, text.ended, text.end) for text in texts] for texts in write(network, asked, options, usage)
        ]
        assert native == [[(t.ids, t.ended, t.end) for t in texts] for texts in engine.write(asked, options)]
        for prompt, [(ids, _, _)] in zip(asked, native, strict=True):
            assert tuple(token.id for token in engine.stream(prompt, options)) == ids


def test_a_source_of_end_tokens_alone_is_a_source(loaded: Any) -> None:
    """An empty text is often such a source; CTranslate2 would give an empty text back without asking the model."""
    _, network = loaded(CASES[0])
    engine = engine_of(network, 36, 0)
    for ids in ((0,), (0, 0)):
        options = Generation(max_new_tokens=LENGTH)
        [[text]] = engine.write([Prompt(ids)], options)
        assert text.ids == next(write(network, [Prompt(ids)], options, engine.usage))[0].ids != ()


def test_a_prefix_begins_every_text_and_counts_as_written(loaded: Any) -> None:
    """What follows is what follows those tokens anyway."""
    for name in ("MarianMT: translation", "GPT-2: language model"):
        case = hf_models.case(name)
        _, network = loaded(case)
        engine = engine_of(network, start_of(case))
        asked = [Prompt(tuple(ids)) for ids in prompts()]
        plain = [texts[0].ids for texts in engine.write(asked, Generation(max_new_tokens=6))]
        for prompt, text in zip(asked, plain, strict=True):
            [[begun]] = engine.write([prompt], Generation(max_new_tokens=6, prefix=text[:2]))
            assert begun.ids == text
            streamed = engine.stream(prompt, Generation(max_new_tokens=6, prefix=text[:2]))
            assert tuple(token.id for token in streamed) == text


def test_stop_strings_end_a_text_where_the_native_search_ends_it(loaded: Any) -> None:
    case = CASES[0]
    _, network = loaded(case)
    engine, asked = engine_of(network, 36), [Prompt(tuple(ids)) for ids in prompts()]

    def decode(ids: Sequence[int]) -> str:
        return "".join(f"<{i}>" for i in ids)

    plain = [texts[0].ids for texts in engine.write(asked, Generation(max_new_tokens=LENGTH))]
    stops = (f"{plain[0][2]}>", f"><{plain[1][-1]}")
    options = Generation(max_new_tokens=LENGTH, stop=stops)
    found = list(engine.write(asked, options, decode))
    native = list(write(network, asked, options, engine.usage, decode))
    assert {texts[0].ended for texts in found} == {"stop", "length"}
    for mine, theirs, prompt in zip(found, native, asked, strict=True):
        assert (mine[0].ids, mine[0].text, mine[0].ended) == (theirs[0].ids, theirs[0].text, theirs[0].ended)
        assert tuple(token.id for token in engine.stream(prompt, options, decode)) == mine[0].ids


@pytest.mark.parametrize("case", WRITERS, ids=lambda case: case.name)
def test_random_options_give_the_native_texts_where_nothing_is_said_to_differ(case: Case, loaded: Any) -> None:
    theirs, network = loaded(case)
    end = common_end(theirs, case)
    usage = Usage(start=start_of(case), end=(end,), never=(36,), generation=Generation(beams=2))
    a, b, c, d, e, f, *_ = [token for token in range(5, 12) if token != end]
    engine = CTranslate2(network, usage, threads=1)
    generator, tried = torch.Generator().manual_seed(5), 0
    choose = lambda *values: values[int(torch.randint(len(values), (), generator=generator))]  # noqa: E731
    for seed in range(20):
        options = Generation(
            max_new_tokens=choose(3, LENGTH),
            min_new_tokens=choose(0, 0, 3),
            beams=choose(1, 1, 3, None),
            early_stopping=choose(True, True, False),
            length_penalty=choose(1.0, 0.5, 0.0),
            no_repeat_ngram=choose(0, 0, 2),
            repetition_penalty=choose(1.0, 1.0, 1.3),
            prefix=choose((), (), (a, b)),
            ban=choose((), ((c,), (d, e))),
            stop_ids=choose((), (f,)),
            batch_tokens=choose(10, 2048),
        )
        if differs(options, usage, network) is not None:
            continue
        tried += 1
        asked = [Prompt(tuple(ids)) for ids in prompts(seed)]
        native = [
            [(text.ids, text.ended, text.end) for text in texts] for texts in write(network, asked, options, usage)
        ]
        found = [[(text.ids, text.ended, text.end) for text in texts] for texts in engine.write(asked, options)]
        assert found == native, options
    assert tried >= 3


def test_sampling_follows_the_probabilities(loaded: Any) -> None:
    """One token, 4000 times: each share within 4 standard deviations of its probability after all options."""
    _, network = loaded(hf_models.case("GPT-2: language model"))
    engine, n = engine_of(network, None), 4000
    options = Generation(max_new_tokens=1, sample=True, temperature=1.5, top_k=10, top_p=0.8)
    found = Counter(texts[0].ids[0] for texts in engine.write([Prompt((3, 4))] * n, options))
    with torch.no_grad():
        logits, tokens = (network(torch.tensor([[3, 4]]))[0, -1] / 1.5).topk(10)
    probabilities = logits.softmax(-1)
    kept = probabilities.cumsum(-1) - probabilities < 0.8
    probabilities, tokens = probabilities[kept] / probabilities[kept].sum(), tokens[kept]
    assert set(found) <= set(tokens.tolist())
    assert 1 < len(tokens) < 10
    for token, p in zip(tokens.tolist(), probabilities.tolist(), strict=True):
        assert abs(found[token] / n - p) < 4 * (p * (1 - p) / n) ** 0.5
    several = next(engine.write([Prompt((3, 4))], replace(options, n_best=5, max_new_tokens=6)))
    assert len(several) == 5
    assert list(engine.write([Prompt((3, 4))], replace(options, top_k=5_000_000_000))), "more than there are: all"
    assert len({text.ids for text in several}) > 1


def test_int8_stays_close(loaded: Any) -> None:
    """Weights rounded to 1/127 of their row's largest move these log-probabilities by 0.1 or so, not by 1.

    Without an instruction for it (VNNI) CTranslate2's oneDNN adds two neighbours in 16 bits and cuts off what does not
    fit: the difference was 4 on an EPYC with AVX2. There, every second column is 0.
    """
    case = hf_models.case("T5: v1.1 and FLAN")
    network = copy.deepcopy(loaded(case)[1])
    if not torch.cpu.get_capabilities().get("avx512_vnni"):
        with torch.no_grad():
            for weight in network.parameters():
                if weight.dim() == 2:
                    weight[:, 1::2] = 0.0
    exact, rounded = (engine_of(network, 0, 1, precision=precision) for precision in ("float32", "int8"))
    assert rounded.model.compute_type == "int8_float32"
    score = lambda engine: engine.model.score_batch([["3", "4", "5"]], [["6", "7"]])[0].log_probs  # noqa: E731
    assert 0 < (torch.tensor(score(exact)) - torch.tensor(score(rounded))).abs().max() < 0.5
    before = [weight.clone() for weight in network.parameters()]
    engine_of(network, 0, 1, precision="int8")
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_what_it_refuses(loaded: Any) -> None:
    _, marian = loaded(CASES[0])
    _, gpt2 = loaded(hf_models.case("GPT-2: language model"))
    translator, generator = engine_of(marian, 36, 0), engine_of(gpt2, None, 36)
    lacking: list[tuple[CTranslate2, dict[str, Any]]] = [
        (translator, {"beam_groups": 2, "beams": 4}),
        (translator, {"force": ((3,),), "beams": 4}),
        (translator, {"alternatives": 3}),
        (translator, {"sample": True, "min_p": 0.1}),
        (translator, {"sample": True, "seed": 1}),
        (translator, {"cached": False}),
        (translator, {"repetition_penalty": 1.2, "beams": 2}),
        (translator, {"repetition_penalty": 1e-300}),
        (generator, {"repetition_penalty": 1.2}),
        (generator, {"no_repeat_ngram": 2}),
    ]
    for engine, options in lacking:
        with pytest.raises(InputError, match="CTranslate2 has no .*; the native engine can"):
            list(engine.write([Prompt((3,))], Generation(max_new_tokens=2, **options)))
        assert differs(Generation(**options), engine.usage, engine.network)
    tiny = Generation(max_new_tokens=2, sample=True, top_p=1e-320)  # a share that is 0 in float32 was a traceback
    assert next(iter(translator.write([Prompt((3,))], tiny)))
    wrong: list[tuple[CTranslate2, tuple[int, ...], dict[str, Any], str]] = [
        (translator, (37,), {}, "the id 37, which is outside this model's vocabulary of 37"),
        (translator, (), {}, "has no tokens"),
        (translator, (3,), {"n_best": 3, "beams": 2}, "n_best=3 texts are more than beams=2"),
        (translator, (3,), {"beams": 30}, "beams=30 is too wide for a vocabulary of 37"),
        (translator, (3,), {"sample": True, "beams": 2}, "choose one of the two"),
        (translator, (3,), {"prefix": (1, 2, 3)}, "the prefix has 3 tokens"),
        (translator, (3,), {"ban": ((40,),)}, "the id 40"),
        (translator, (3,) * 3000, {}, "3000 tokens, more than 2048 positions; the native engine can take it"),
        (translator, (3,), {"max_new_tokens": 3000}, "max_new_tokens=3000 is more than 2048 positions"),
        (generator, (3,) * 14, {}, "14 tokens, but this model learned only 13 positions"),
    ]
    for engine, ids, options, message in wrong:
        with pytest.raises((InputError, ConfigError), match=message):
            list(engine.write([Prompt(ids)], Generation(**{"max_new_tokens": 3} | options)))
    with pytest.raises(InputError, match="only one text can be streamed"):
        list(translator.stream(Prompt((3,)), Generation(beams=2)))


def test_a_precision_that_the_cpu_lacks(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, network = loaded(CASES[0])
    monkeypatch.setattr(library, "get_supported_compute_types", lambda device: {"float32", "int8"})
    with pytest.raises(InputError, match="no bfloat16 on this CPU; choose float32 or int8, or the native engine's"):
        engine_of(network, 36, precision="bfloat16")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vit-tiny", "reads text, not images"),
        ("gru-seq2seq", "runs Transformers, not a recurrent model"),
        ("awd-lstm", "runs Transformers"),
    ],
)
def test_networks_it_can_not_hold(name: str, reason: str) -> None:
    network = cutaway.build(shrunk(name))
    assert reason in (ctranslate2_spec.unsupported(network) or "")
    with pytest.raises(ConfigError, match=f"{reason}.*; the native engine runs it"):
        CTranslate2(network)


@pytest.mark.parametrize(
    ("name", "half", "changes", "reason"),
    [
        ("transformer-tiny", "decoder", {"norm_epsilon": 1e-3}, "one norm_epsilon"),
        ("transformer-tiny", "decoder", {"n_kv_heads": 2}, "n_kv_heads"),
        ("transformer-tiny", "decoder", {"positions": "rotary"}, "rotary"),
        ("gpt2", "decoder", {"positions": "none"}, "positions='none'"),
        ("gpt2", "decoder", {"positions": "t5_bias", "t5_buckets": 8, "t5_max_distance": 12}, "positions='t5_bias'"),
        ("transformer-tiny", "encoder", {"n_segments": 2}, "segments"),
    ],
)
def test_parts_it_can_not_hold(name: str, half: str, changes: dict[str, Any], reason: str) -> None:
    config: Any = shrunk(name)
    network = cutaway.build(replace(config, **{half: replace(getattr(config, half), **changes)}))
    assert reason in (ctranslate2_spec.unsupported(network) or "")


def test_no_head_no_text(loaded: Any) -> None:
    _, network = loaded(hf_models.case("GPT-2: classifier"))
    with pytest.raises(ConfigError, match="no language_model head; the native engine runs it"):
        CTranslate2(network)


def test_without_the_library_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ConfigError, match=r"not installed; `pip install cutaway\[ctranslate2\]`"):
        CTranslate2(cutaway.build(shrunk("gpt2")))


def test_where_the_texts_may_differ(loaded: Any) -> None:
    _, network = loaded(CASES[0])
    usage = Usage(start=36, end=(0,), never=(36,))

    def reason(**options: Any) -> str | None:
        return differs(Generation(**options), usage, network)

    assert reason() is None
    assert reason(beams=4, early_stopping=True) is None
    assert reason(repetition_penalty=1.2) is None
    assert "early_stopping" in (reason(beams=4) or "")
    assert "several tokens" in (reason(beams=4, early_stopping=True, stop_ids=(5,)) or "")
    assert "banned" in (reason(beams=4, early_stopping=True, ban=((5,),)) or "")
    assert "prefix" in (reason(beams=4, early_stopping=True, prefix=(5,)) or "")
    assert reason(sample=True) is None
    assert "seed" in (reason(sample=True, seed=3) or "")


def test_it_has_patience_where_it_is_not_asked_to_stop_early(loaded: Any) -> None:
    """Else it ends at the first finished texts, where the native search goes on while a better one is possible."""
    _, network = loaded(CASES[0])
    usage = Usage(start=36, end=(0,), never=(36,))
    stops: tuple[Any, ...] = (True, False, "never")
    plans = [Plan(network, Generation(beams=3, early_stopping=stop), usage) for stop in stops]
    assert [arguments(plan)["patience"] for plan in plans] == [1, 2, 2]


def test_every_text_of_a_search_has_the_native_log_probabilities(loaded: Any) -> None:
    for name in ("MarianMT: two vocabularies", "Qwen2: language model"):
        case = hf_models.case(name)
        theirs, network = loaded(case)
        engine = engine_of(network, start_of(case), common_end(theirs, case))
        asked = [Prompt(tuple(ids)) for ids in prompts()]
        options = Generation(max_new_tokens=LENGTH, beams=3, n_best=3, early_stopping=True, batch_tokens=20)
        native = [text for texts in write(network, asked, options, engine.usage) for text in texts]
        found = [text for texts in engine.write(asked, options) for text in texts]
        assert [text.ids for text in found] == [text.ids for text in native]
        for mine, ours in zip(found, native, strict=True):
            assert mine.score == pytest.approx(ours.score, abs=ROUNDING)
            logprobs = [token.logprob for token in ours.tokens]
            assert [token.logprob for token in mine.tokens] == pytest.approx(logprobs, abs=ROUNDING)


def test_chosen_by_itself_it_leaves_to_the_native_engine_what_it_can_not_do(loaded: Any) -> None:
    _, network = loaded(CASES[0])
    usage = Usage(start=36, end=(0,))
    calls: list[str] = []

    class Spy(Native):
        def generate(self, *given: Any) -> Any:
            calls.append("generate")
            return super().generate(*given)

        def generate_stream(self, *given: Any) -> Any:
            calls.append("generate_stream")
            return super().generate_stream(*given)

    engine = CTranslate2(network, usage, threads=1, otherwise=lambda: Spy(network, usage))
    prompt, short = Prompt((3, 4)), Generation(max_new_tokens=4)
    list(engine.write([prompt], short))
    list(engine.stream(prompt, short))
    assert calls == []
    groups = replace(short, beams=4, beam_groups=2, diversity=0.5)
    [found] = engine.write([prompt], groups)
    assert [text.ids for text in found] == [text.ids for text in next(write(network, [prompt], groups, usage))]
    list(engine.stream(prompt, replace(short, alternatives=2)))
    assert calls == ["generate", "generate_stream"]
    automatic, asked = choose(network, usage, None, None, None), choose(network, usage, None, "ctranslate2", None)
    assert automatic.name == asked.name == "ctranslate2"
    assert next(automatic.write([prompt], groups)) == found
    with pytest.raises(InputError, match="no beam_groups; the native engine can"):
        next(asked.write([prompt], groups))


# The cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2"


def kept(network: Network, precision: Precision = "float32") -> CTranslate2:
    return CTranslate2(network, Usage(start=0, end=(1,)), precision, keep=True, threads=1)


def text_of(engine: CTranslate2) -> tuple[int, ...]:
    return next(engine.write([Prompt((3, 4, 5))], Generation(max_new_tokens=4)))[0].ids


def test_a_model_is_converted_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = noisy(cutaway.build(shrunk("transformer-tiny")).eval())
    expected = text_of(kept(network))
    [folder] = cache.iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {"model.bin", "config.json", "shared_vocabulary.json", "manifest.json"} == set(written)
    with monkeypatch.context() as nothing:
        nothing.setattr(ctranslate2_files, "write", lambda *_: pytest.fail("converted again"))
        assert text_of(kept(network)) == expected
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    kept(network, "int8")
    assert len(list(cache.iterdir())) == 2
    with torch.no_grad():
        next(network.parameters())[0, 0] += 1.0  # trained further: another model
    kept(network)
    assert len(list(cache.iterdir())) == 3


def test_a_conversion_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = cutaway.build(shrunk("transformer-tiny"))

    def fail(*given: Any) -> None:
        folder: Path = given[2]
        (folder / "model.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(ctranslate2_files, "write", fail)
    with pytest.raises(KeyboardInterrupt):
        kept(network)
    assert list(cache.iterdir()) == []


def test_several_at_once_make_one_folder(cache: Path) -> None:
    network = noisy(cutaway.build(shrunk("transformer-tiny")).eval())
    texts: list[tuple[int, ...]] = []
    at_once(*[lambda: texts.append(text_of(kept(network)))] * 4)
    assert len(texts) == 4
    assert len(set(texts)) == 1
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "changed"])
def test_a_damaged_cache_is_made_again(cache: Path, damage: str) -> None:
    network = noisy(cutaway.build(shrunk("transformer-tiny")).eval())
    expected = text_of(kept(network))
    [folder] = cache.iterdir()
    weights = folder / "model.bin"
    whole = weights.read_bytes()
    if damage == "gone":
        weights.unlink()
    elif damage == "changed":  # CTranslate2 would load it
        weights.write_bytes(whole[:-2000] + bytes(1000) + whole[-1000:])
    else:
        weights.write_bytes(weights.read_bytes()[: 1000 if damage == "cut" else 0])
    assert text_of(kept(network)) == expected
    assert weights.read_bytes() == whole


def test_no_cache_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "file"))
    network = noisy(cutaway.build(shrunk("transformer-tiny")).eval())
    assert text_of(kept(network)) == text_of(engine_of(network, 0, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
def test_a_cache_whose_name_is_not_unicode_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", os.fsdecode(bytes(tmp_path) + b"/\xff"))
    network = noisy(cutaway.build(shrunk("transformer-tiny")).eval())
    assert text_of(kept(network)) == text_of(engine_of(network, 0, 1))


def test_a_model_in_memory_leaves_no_files(cache: Path) -> None:
    engine_of(noisy(cutaway.build(shrunk("gpt2"))), 0, 1)
    assert not cache.exists()


# The command


def test_convert_writes_a_folder_that_ctranslate2_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cutaway.cli.convert import convert

    network = noisy(cutaway.build(shrunk("gpt2")).eval())
    cutaway.Model(network, usage=Usage(start=0, end=(1,))).save(tmp_path / "model")
    convert(str(tmp_path / "model"), tmp_path / "out", to="ctranslate2", dtype="int8", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["format"] == "ctranslate2"
    assert told["dtype"] == "int8"
    assert set(told["files"]) == {"model.bin", "config.json", "vocabulary.json"}
    loaded = library.Generator(str(tmp_path / "out"), intra_threads=1)
    [result] = loaded.generate_batch([["3", "4"]], max_length=3, include_prompt_in_result=False)
    assert all(word.isdecimal() for word in result.sequences[0])
    convert(str(tmp_path / "model"), tmp_path / "plain", to="ctranslate2")
    assert "CTranslate2's format, weights in float32" in capsys.readouterr().out


def test_convert_refuses(tmp_path: Path) -> None:
    from cutaway.cli.convert import convert

    cutaway.Model(cutaway.build(shrunk("vit-tiny"))).save(tmp_path / "model")
    with pytest.raises(ConfigError, match="reads text, not images"):
        convert(str(tmp_path / "model"), tmp_path / "out", to="ctranslate2")
    with pytest.raises(CheckpointError, match="--dtype int8 belongs to --to ctranslate2"):
        convert(str(tmp_path / "model"), tmp_path / "out", to="huggingface", dtype="int8")
    with pytest.raises(CheckpointError, match="--from-pickle"):
        convert(str(tmp_path / "model"), tmp_path / "out", to="ctranslate2", from_pickle=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    cutaway.Model(cutaway.build(shrunk("gpt2"))).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="something other than a saved model"):
        convert(str(tmp_path / "model"), tmp_path / "mine", to="ctranslate2")
    with pytest.raises(CheckpointError, match="the model itself, which would be lost"):
        convert(str(tmp_path / "model"), tmp_path / "model", to="ctranslate2")
    assert cutaway.load(tmp_path / "model").config == shrunk("gpt2")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_stream_that_nobody_reads_stops(loaded: Any) -> None:
    _, network = loaded(hf_models.case("MarianMT: translation"))
    engine = engine_of(network, 36)
    model, steps = engine.model, []

    class Counting:
        def translate_batch(self, *given: Any, callback: Any, **options: Any) -> Any:
            def count(step: Any) -> bool:
                steps.append(step)
                time.sleep(0.001)  # so that the reader can leave before the end
                return bool(callback(step))

            return model.translate_batch(*given, callback=count, **options)

    engine.model = Counting()
    stream = engine.stream(Prompt((3, 4)), Generation(max_new_tokens=2000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator's
    while model.num_active_batches:
        time.sleep(0.01)
    assert len(steps) < 1000


def test_an_error_in_the_middle_of_a_stream_is_told(loaded: Any) -> None:
    """As by a CTranslate2 that finds something wrong only when it runs; nobody waits for ever."""
    _, network = loaded(CASES[0])
    engine = engine_of(network, 36)
    real = engine.model.translate_batch

    class Failing:
        def translate_batch(self, source: Any, *given: Any, **options: Any) -> Any:
            return real([["3"] * 3000], *given, **options)  # more than it has positions for

    engine.model = Failing()
    with pytest.raises(RuntimeError, match="position"):
        list(engine.stream(Prompt((3, 4)), Generation(max_new_tokens=20)))
