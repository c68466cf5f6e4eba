"""A model as a user holds it: from one format to the other and back, with its tokenizer and how it is used."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf

import cutaway
from bench.parity import CASES, Case, inputs, same_bits
from cutaway.checkpoints.huggingface import describe
from cutaway.errors import CheckpointError, InputError
from cutaway.generation import Generation
from cutaway.model import Model
from cutaway.models.config import Classifier, SentenceVector, TransformerConfig
from cutaway.models.usage import Usage
from cutaway.text.train import train_tokenizer
from tests.support import hf_models
from tests.support.families import FAMILIES, shrunk
from tests.support.small_models import TEXTS

Saved = Callable[[str], Path]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_huggingface_to_cutaway_and_back(case: Case, saved: Saved, tmp_path: Path) -> None:
    folder = saved(case.name)
    cutaway.load(folder).save(tmp_path / "ours")
    again = cutaway.load(tmp_path / "ours")
    assert again.config == cutaway.load(folder).config
    again.save(tmp_path / "theirs", format="huggingface")
    assert same_bits(folder / "model.safetensors", tmp_path / "theirs" / "model.safetensors", case.unused)
    before, after = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "theirs"))
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert changed <= {"tie_word_embeddings", "scale_decoder_outputs", "architectures"}


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if name.split("-")[0] in ("t5", "flan", "bert", "gpt2", "llama", "vit")]
)
def test_a_network_built_here_goes_out(name: str, tmp_path: Path) -> None:
    """The family is found by what can hold the config."""
    network = cutaway.build(shrunk(name))
    Model(network).save(tmp_path / "out", format="huggingface")
    again = cutaway.load(tmp_path / "out").network
    assert dict(again.named_parameters()).keys() == dict(network.named_parameters()).keys()
    for mine, other in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other)
    hf.AutoModel.from_pretrained(tmp_path / "out")


def test_what_no_family_can_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    network = cutaway.build(shrunk("transformer-tiny"))  # interleaved sinusoids: Marian has all sines first
    with pytest.raises(CheckpointError, match=r"the nearest: MarianMT can't say .*positions=sinusoidal"):
        Model(network).save(tmp_path / "out", format="huggingface")
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match="no recurrent"):
        Model(cutaway.build(shrunk("gru-seq2seq"))).save(tmp_path / "out", format="huggingface")
    assert list(tmp_path.iterdir()) == []


def test_the_2017_transformer_goes_out_as_marian(tmp_path: Path) -> None:
    config = shrunk("transformer-tiny")
    assert isinstance(config, TransformerConfig)
    assert config.encoder is not None
    assert config.decoder is not None
    halves = {"positions": "sinusoidal_halves", "max_positions": 64}
    config = replace(config, encoder=replace(config.encoder, **halves), decoder=replace(config.decoder, **halves))
    assert describe(config)[1] == "MarianMTModel"
    network = cutaway.build(config)
    Model(network, usage=Usage(start=0, end=(1,), pad=0)).save(tmp_path / "out", format="huggingface")
    theirs = hf.MarianMTModel.from_pretrained(tmp_path / "out").eval()
    source, target = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[0, 7, 8]])
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
        assert torch.allclose(network(source, target), expected, atol=1e-5)


def test_tokenizer_and_usage_travel_with_the_model(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, kind="bpe", vocabulary=300)
    config = shrunk("gpt2")
    assert isinstance(config, TransformerConfig)
    assert config.decoder is not None
    config = replace(config, decoder=replace(config.decoder, vocabulary=tokenizer.vocabulary_size))
    usage = Usage(
        start=1, end=(2, 3), pad=0, never=(0,), generation=Generation(beams=4, length_penalty=0.7), max_length=12
    )
    model = Model(cutaway.build(config), tokenizer, usage)
    for format in ("cutaway", "huggingface"):  # noqa: A001
        model.save(tmp_path / format, format=format)
        again = cutaway.load(tmp_path / format)
        assert again.usage == usage
        assert again.tokenizer is not None
        assert again.tokenizer.encode("the cat's hat").ids == tokenizer.encode("the cat's hat").ids
        assert "blocks.1.self_attention.weights" in " ".join(again.trace("the cat"))
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    assert theirs("the cat's hat")["input_ids"] == tokenizer.encode("the cat's hat").ids
    settings = hf.GenerationConfig.from_pretrained(tmp_path / "huggingface")
    assert (settings.eos_token_id, settings.num_beams, settings.bad_words_ids) == ([2, 3], 4, [[0]])
    assert settings.length_penalty == 0.7


def test_a_tokenizer_that_does_not_belong_to_the_model(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, kind="bpe", vocabulary=300)
    for format in ("cutaway", "huggingface"):  # noqa: A001
        Model(cutaway.build(shrunk("gpt2")), tokenizer).save(tmp_path / format, format=format)
        with pytest.raises(CheckpointError, match="they do not belong together"):
            cutaway.load(tmp_path / format)


def test_generation_and_image_settings_go_out_as_they_came_in(saved: Saved, tmp_path: Path) -> None:
    """All of them, not only those that cutaway reads; a usage that was changed since is written over them."""
    settings = {"no_repeat_ngram_size": 2, "length_penalty": 0.6, "forced_eos_token_id": 0, "num_beams": 3}
    images = {"do_center_crop": True, "crop_size": 12, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
    for name, file, keys in (
        ("MarianMT: translation", "generation_config.json", settings),
        ("ViT: classifier", "preprocessor_config.json", images),
    ):
        folder = shutil.copytree(saved(name), tmp_path / file)
        (folder / file).write_text(json.dumps(keys))
        cutaway.load(folder).save(tmp_path / f"{file} ours")
        model = cutaway.load(tmp_path / f"{file} ours")
        model.save(tmp_path / f"{file} theirs", format="huggingface")
        assert json.loads((tmp_path / f"{file} theirs" / file).read_text()) == keys
        generation = replace(model.usage.generation, beams=7)
        model.usage = replace(model.usage, generation=generation, image_mean=(0.1, 0.1, 0.1))
        model.save(tmp_path / f"{file} changed", format="huggingface")
        written = json.loads((tmp_path / f"{file} changed" / file).read_text())
        changed = {key for key in keys if written[key] != keys[key]}
        assert changed == ({"num_beams"} if file.startswith("generation") else {"image_mean"})


def test_a_classifier_of_other_classes(saved: Saved, tmp_path: Path) -> None:
    """The ordinary case of training further: 5 classes become 3, and begin anew."""
    for name, hidden in (("BERT: classifier", "tanh"), ("ViT: classifier", None)):
        model = cutaway.load(saved(name), head=Classifier(n_classes=3, hidden=hidden))  # type: ignore[arg-type]
        assert set(model.report.fresh) == {"head.classes.weight", "head.classes.bias"}
        assert model.usage.labels == ()
        model.save(tmp_path / name.split(":")[0], format="huggingface")
        assert hf.AutoConfig.from_pretrained(tmp_path / name.split(":")[0]).num_labels == 3


def test_a_model_can_be_pickled(saved: Saved) -> None:
    model = pickle.loads(pickle.dumps(cutaway.load(saved("GPT-2: language model"))))
    assert model.origin.family.name == "GPT-2"


def test_marian_starts_from_pad_and_never_writes_it(saved: Saved) -> None:
    folder = saved("MarianMT: translation")
    config = json.loads((folder / "config.json").read_text())
    usage = cutaway.load(folder).usage
    assert (usage.start, usage.pad, usage.end) == (36, 36, (0,))
    assert usage.never == (36,), config.get("bad_words_ids")


def test_t5_starts_from_pad(saved: Saved) -> None:
    usage = cutaway.load(saved("T5: v1.0")).usage
    assert (usage.start, usage.pad, usage.end) == (0, 0, (1,))


def test_labels(saved: Saved, tmp_path: Path) -> None:
    model = cutaway.load(saved("BERT: classifier"))
    assert model.usage.labels == ()  # LABEL_0 … are no names
    model.usage = replace(model.usage, labels=("a", "b", "c", "d", "e"))
    model.save(tmp_path / "named", format="huggingface")
    assert hf.AutoConfig.from_pretrained(tmp_path / "named").id2label[3] == "d"
    assert cutaway.load(tmp_path / "named").usage.labels == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(("pooling", "normalized"), [("mean", True), ("first", False), ("last", True)])
def test_sentence_vectors(pooling: str, normalized: bool, saved: Saved, tmp_path: Path) -> None:
    head = SentenceVector(pooling=pooling, normalized=normalized)  # type: ignore[arg-type]
    model = cutaway.load(saved("BERT: masked LM"), head=head)
    model.save(tmp_path / "vectors", format="huggingface")
    again = cutaway.load(tmp_path / "vectors")
    assert again.config.head == head
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(again.network(tokens), model.network(tokens))
    assert again.report.ignored == []


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["GPT-2: language model", "T5: v1.0", "ViT: classifier"])
def test_loaded_weights_train_as_any(name: str, options: dict[str, bool], saved: Saved) -> None:
    """torch's fused optimisers read a weight's memory as it lies: one with gaps would be trained wrongly."""

    def trained(copied: bool) -> list[torch.Tensor]:
        network = cutaway.load(saved(name)).network  # in evaluation mode: no dropout
        if copied:
            for weight in network.parameters():
                weight.data = weight.data.contiguous().clone()
        case = hf_models.case(name)
        assert isinstance(network.config, TransformerConfig)
        given = inputs(case, network.config, "none")
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, **options)
        for _ in range(3):
            optimizer.zero_grad()
            network(*given.ours, **given.our_options).square().mean().backward()
            optimizer.step()
        return list(network.parameters())

    for one, other in zip(trained(copied=False), trained(copied=True), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_images_keep_their_mean_and_deviation(saved: Saved, tmp_path: Path) -> None:
    model = cutaway.load(saved("ViT: classifier"))
    model.usage = replace(model.usage, image_mean=(0.5, 0.4, 0.3), image_std=(0.1, 0.2, 0.3))
    model.save(tmp_path / "images", format="huggingface")
    assert cutaway.load(tmp_path / "images").usage.image_mean == (0.5, 0.4, 0.3)


def test_tracing_needs_what_the_model_lacks(saved: Saved) -> None:
    with pytest.raises(InputError, match="has no tokenizer"):
        cutaway.load(saved("GPT-2: language model")).trace("hello")


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no format 'onnx'"):
        Model(cutaway.build(shrunk("gpt2"))).save(tmp_path / "x", format="onnx")  # type: ignore[arg-type]
