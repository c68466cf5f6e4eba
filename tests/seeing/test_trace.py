"""A model's trace: what it read and wrote, the words on its axes, how it searched; and the same again from disk."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import cutaway
from cutaway.decoding.search import write
from cutaway.errors import CheckpointError, CutawayError, InputError
from cutaway.generation import Generation, Prompt
from cutaway.model import Model
from cutaway.models.usage import Usage
from cutaway.seeing.attribution.analysis import logit_lens
from cutaway.seeing.trace.labels import word_numbers
from cutaway.seeing.trace.trace import Trace
from cutaway.text.source_target import TwoTokenizers
from tests.support import hf_models as tiny
from tests.support import small_models as small
from tests.support.writing_networks import WRITERS

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def translator() -> Model:
    return cutaway.load("en-fr")


def test_the_words_on_the_axes(translator: Model) -> None:
    trace = translator.trace("The animal didn't cross.", "L'animal n'a pas traversé.")
    source = ("The", "▁animal", "▁didn", "'t", "▁cross", ".", "</s>")
    assert trace.words.source == source
    assert trace.words.of_source == (0, 1, 2, 2, 3, 3, 4)
    assert trace.words.source_words == ("The", "animal", "didn't", "cross.", "</s>")
    assert trace.words.target[:3] == ("<s>", "L'", "▁animal")
    weights = trace.labels("decoder.blocks.0.cross_attention.weights")
    assert weights == (None, None, trace.words.target, source)
    assert trace.labels("decoder.blocks.0.self_attention.weights")[2:] == (trace.words.target,) * 2
    assert trace.labels("encoder.blocks.0.self_attention.keys") == (None, None, source, None)
    assert trace.labels("decoder.blocks.0.cross_attention.keys") == (None, None, source, None)
    words = trace.labels("head.vocabulary.logits")[2]
    assert words is not None
    assert len(words) == translator.config.last.vocabulary
    assert words[trace.run.inputs["target"][0, 2]] == "▁animal"


def test_it_writes_what_it_is_not_given(translator: Model) -> None:
    trace = translator.trace(TEXT)
    assert trace.search is not None
    best = trace.search.written[0]
    assert translator.tokenizer.decode(best.ids) == translator.translate(TEXT)
    [[expected]] = write(
        translator.network, [Prompt(tuple(translator.tokenizer.encode(TEXT).ids))],
        Generation(beams=translator.usage.beams, length_penalty=translator.usage.length_penalty), translator.usage,
    )  # fmt: skip
    assert best.ids == expected.ids
    assert best.score == pytest.approx(expected.score)
    logprobs = trace["head.vocabulary.logits"][0].log_softmax(-1)
    for place, token in enumerate(best.tokens):
        assert token.logprob == pytest.approx(float(logprobs[place, token.id]), abs=1e-4)
        assert len(token.alternatives) == 8
    assert translator.trace(TEXT, translator.translate(TEXT)).words.target == trace.words.target
    assert translator.trace(TEXT, "").search is None


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_tells_its_search(name: str) -> None:
    """The tree of candidates holds the texts that were found, with their scores."""
    model = small.model(name, usage=Usage(start=2, end=(3,), pad=0, never=(0, 1, 2, 4)))
    trace = model.trace("The cat", generation=Generation(beams=3, n_best=3, max_new_tokens=5, length_penalty=0.0))
    assert trace.search is not None
    nodes = {node.number: node for step in trace.search.steps for node in step}
    assert list(nodes) == list(range(len(nodes)))
    found = {}
    for node in nodes.values():
        ids, at = [node.token], node
        while at.parent is not None:
            at = nodes[at.parent]
            assert at.kept
            ids.append(at.token)
        found[tuple(ids[::-1])] = node
    for text in trace.search.written:
        ids = (*text.ids, *(() if text.end is None else (text.end,)))
        assert found[ids].score == pytest.approx(text.score, abs=1e-4)
        assert found[ids].ended


@pytest.mark.parametrize("target", [None, "A mat"])
def test_nothing_is_traced_by_chance(target: str | None) -> None:
    model = small.model("transformer-tiny", usage=Usage(start=2, end=(3,)))
    model.network.train()
    with pytest.raises(InputError, match=r"training mode.*network\.eval\(\)"):
        model.trace("The cat", target)


FIVE = Generation(max_new_tokens=5)


def greedy(trace: Trace) -> None:
    """What was written is what the network that is shown finds likeliest."""
    assert trace.search is not None
    assert trace.output is not None
    ids = trace.search.written[0].ids
    assert trace.output[0].argmax(-1).tolist()[-len(ids) - 1 : -1] == list(ids)


@pytest.mark.parametrize("name", ["t5-small", "llama-3.2-1b"])
def test_the_network_that_writes_is_the_one_that_is_shown(name: str) -> None:
    model = small.model(name, usage=Usage(start=2, pad=0))
    greedy(before := model.trace("The cat", generation=FIVE))
    for weight in model.network.parameters():
        weight.data.neg_()  # torch does not count this as a change
    greedy(model.trace("The cat", generation=FIVE))
    for weight in model.network.parameters():
        weight.data.neg_()
    hook = model.network.decoder.blocks[0].register_forward_hook(lambda block, given, output: -output)
    greedy(after := model.trace("The cat", generation=FIVE))
    assert before.search is not None
    assert after.search is not None
    assert after.search.written[0].ids != before.search.written[0].ids
    hook.remove()
    model.network.bfloat16()
    greedy(model.trace("The cat", generation=FIVE))
    for weight in model.network.parameters():
        weight.data.neg_()
    greedy(model.trace("The cat", generation=FIVE))


def test_a_listener_may_give_a_view() -> None:
    """Kernels read memory, where the numbers of a view do not stand side by side."""
    model = small.model("llama-3.2-1b", usage=Usage(start=2, pad=0))

    def spread(value: Tensor, _: str) -> Tensor:
        return value.mean(-1, keepdim=True).expand_as(value)

    def whole(value: Tensor, name: str) -> Tensor:
        return spread(value, name).contiguous()

    texts = [model.run("The cat", {"*.queries": each}, generation=FIVE).after.text for each in (spread, whole)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["t5-small", "llama-3.2-1b"])
def test_other_numbers_around_do_not_matter(name: str) -> None:
    """A default dtype, autocast and inference mode are the caller's, and the kernels take float32."""
    model = small.model(name, usage=Usage(start=2, pad=0))
    written = model.trace("The cat", generation=FIVE).search
    torch.set_default_dtype(torch.float64)
    try:
        assert model.trace("The cat", generation=FIVE).search == written
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model.trace("The cat", generation=FIVE).search
    assert rounded is not None
    assert not any(math.isnan(token.logprob) for token in rounded.written[0].tokens)
    with torch.inference_mode():
        model = copy.deepcopy(model)
    assert model.trace("The cat", generation=FIVE).search == written


def test_a_decoder_writes_on_if_asked() -> None:
    model = small.model("gpt2")
    plain = model.trace("The cat")
    longer = model.trace("The cat", generation=Generation(max_new_tokens=4, min_new_tokens=4))
    n = len(plain.words.target)
    assert plain.search is None
    assert longer.words.target[:n] == plain.words.target
    assert len(longer.words.target) == n + 4
    assert longer.words.source == ()


def test_a_pair_has_segments(tmp_path: Path) -> None:
    model = cutaway.load(tiny.bert(tmp_path / "bert", "BertForQuestionAnswering"))
    trace = model.trace("who sat", pair="the cat sat")
    encoding = model.tokenizer.encode("who sat", "the cat sat")
    expected = model.network(torch.tensor([encoding.ids]), segments=torch.tensor([encoding.segments]))
    torch.testing.assert_close(trace.output, expected)  # which was computed fused
    assert trace.words.source == ("[CLS]", "who", "sat", "[SEP]", "the", "cat", "sat", "[SEP]")
    assert trace.words.target == ()


def test_an_image_is_cut_into_patches(tmp_path: Path) -> None:
    model = cutaway.load(tiny.vit(tmp_path / "vit"))
    size, channels = model.config.encoder.patches.image_size, model.config.encoder.patches.channels
    image = torch.randn(channels, size, size)
    trace = model.trace(image)
    rows, columns = trace.words.patches
    assert trace.words.source[:3] == ("[class]", "1,1", "1,2")
    assert len(trace.words.source) == 1 + rows * columns
    assert trace.labels("encoder.embedding.pixels")[1] == trace.words.source[1:]
    assert trace.words.classes == ("cat", "dog", "bird", "mat", "rug")
    with pytest.raises(InputError, match="reads one image"):
        model.trace(image, "a cat")


def test_two_vocabularies_are_each_spelled_by_their_own() -> None:
    words = TwoTokenizers(small.tokenizer("bpe"), small.tokenizer("character"))
    model = small.model("transformer-tiny", words)
    trace = model.trace("The cat", "Le chat")
    assert trace.words.target[1:] == ("L", "e", "▁", "c", "h", "a", "t")
    assert "".join(trace.words.source).replace("▁", " ").strip("<s>/ ") == "The cat"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("bpe", "naïve cats", ["naïve", "cats"]),
        ("bpe", "né à Łódź", ["né", "à", "Łódź"]),  # characters of several pieces
        ("unigram", "the cat's hat", ["the", "cat's", "hat"]),
        ("wordpiece", "The cat sat", ["The", "cat", "sat"]),
        ("character", "a dog", ["a", "dog"]),
    ],
)
def test_pieces_are_put_together(kind: str, text: str, expected: list[str]) -> None:
    model = small.model("gpt2", small.tokenizer(kind))
    words = model.trace(text).words
    special = ("<s>", "</s>", "[CLS]", "[SEP]")
    assert [word for word in words.target_words if word not in special and word != "·"] == expected
    assert len(word_numbers(model.tokenizer, [], [])) == 0


@pytest.mark.parametrize(
    ("preset", "given", "said"),
    [
        ("bert-tiny", {"target": "x"}, "no second input"),
        ("gpt2", {"target": "x"}, "no second input"),
        ("gpt2", {"pair": "x"}, "reads one text"),
        ("transformer-tiny", {"pair": "x"}, "reads one text"),
        ("bert-tiny", {"generation": Generation()}, "does not write"),
        ("transformer-tiny", {"target": 3}, "expected a text"),
    ],
)
def test_what_a_model_can_not_be_given(preset: str, given: dict, said: str) -> None:
    model = small.model(preset) if preset != "bert-tiny" else small.headed(preset, small.tokenizer())
    with pytest.raises(InputError, match=said):
        model.trace("The cat", **given)


def test_save_and_load_are_exact(translator: Model, tmp_path: Path) -> None:
    trace = translator.trace(TEXT, keep=["*.weights", "head.*", "*.masked_scores"])
    assert trace.save(tmp_path / "trace") == tmp_path / "trace"
    again = Trace.load(tmp_path / "trace")
    assert list(again) == list(trace)
    for name in trace:
        assert torch.equal(again[name], trace[name]), name
        assert (again.axes(name), again.formula(name)) == (trace.axes(name), trace.formula(name))
        assert again.labels(name)[-1] is None or list(again.labels(name)[-1]) == list(trace.labels(name)[-1])
    assert torch.equal(again.output, trace.output)
    assert again.search == trace.search
    assert again.run.config == translator.config
    assert torch.equal(again.run.inputs["target"], trace.run.inputs["target"])
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["trace.json", "trace.safetensors"]


def test_infinite_scores_are_saved_too(tmp_path: Path) -> None:
    trace = small.model("gpt2").trace("The cat", generation=FIVE)
    assert trace.search is not None
    text = replace(trace.search.written[0], score=-math.inf)
    trace.search = replace(trace.search, written=(text,))
    assert Trace.load(trace.save(tmp_path)).search == trace.search


def test_recurrent_values_are_saved_side_by_side(tmp_path: Path) -> None:
    trace = small.model("bahdanau-gru").trace("The cat", "Le chat")
    again = Trace.load(trace.save(tmp_path))
    assert torch.equal(again["decoder.attention.weights"], trace["decoder.attention.weights"])
    assert again["encoder.backwards.0.hidden"].shape[1] == len(trace.words.source)


def test_a_broken_trace_is_a_sentence(translator: Model, tmp_path: Path) -> None:
    translator.trace(TEXT, keep="*.weights").save(tmp_path)
    known = json.loads((tmp_path / "trace.json").read_text())
    (tmp_path / "trace.json").write_text(json.dumps(known | {"format": 9}))
    with pytest.raises(CheckpointError, match="has format 9; this version reads 1"):
        Trace.load(tmp_path)
    (tmp_path / "trace.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(CheckpointError, match="does not describe a trace"):
        Trace.load(tmp_path)
    (tmp_path / "trace.json").write_text(json.dumps(known))
    (tmp_path / "trace.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"trace\.safetensors can't be read"):
        Trace.load(tmp_path)
    with pytest.raises(CheckpointError, match="can't be read"):
        Trace.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="can't write the trace"):
        translator.trace(TEXT, keep="*.weights").save(tmp_path / "file")


def test_pieces_of_a_character_are_its_bytes(translator: Model) -> None:
    words = translator.trace("ש 😀", "x").words
    assert words.source == ("<0xD7>", "<0xA9>", "▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "</s>")
    assert words.source_words == ("ש", "😀", "</s>")


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda model, trace: trace[5], "no value '5'"),
        (lambda model, trace: trace.explain(None), "no value 'None'"),
        (lambda model, trace: model.trace(TEXT, generation=5), r"generation is 5 \(int\)"),
        (lambda model, trace: model.run(TEXT, "positions", generation=5), r"generation is 5 \(int\)"),
        (
            lambda model, trace: model.run(TEXT, {"*.heads": 1e38}),
            "the model can't write: its numbers have become infinite or NaN",
        ),
        (lambda model, trace: model.run(TEXT, {"*.heads": 1e40}), r"Replace\.by=1e\+40 must be from -3\.4e\+38"),
        (lambda model, trace: logit_lens(small.model("gpt2"), trace), "this trace is of another model"),
        (lambda model, trace: logit_lens("en-fr", trace), r"the model is 'en-fr' \(str\)"),
    ],
)
def test_mistakes_are_one_sentence(translator: Model, mistake: Callable[[Model, Trace], object], said: str) -> None:
    with pytest.raises(CutawayError, match=said):
        mistake(translator, translator.trace(TEXT, "Le chat."))


def test_looking_changes_nothing(translator: Model) -> None:
    before = translator.translate(TEXT)
    translator.trace(TEXT)
    assert translator.translate(TEXT) == before
