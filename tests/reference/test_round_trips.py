"""What came in goes out: tensors that cutaway has no use for, and weights of several dtypes, bit for bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import cutaway
from bench.parity import make
from cutaway.checkpoint_info import read_info
from cutaway.cli.main import main
from cutaway.model import Model
from cutaway.models.config import Classifier
from tests.support import hf_models

Changed = Callable[..., Path]
Saved = Callable[[str], Path]
SECOND_HEAD = (
    "cls.seq_relationship.bias", "cls.seq_relationship.weight", "pooler.dense.bias", "pooler.dense.weight"
)  # fmt: skip
HALVES = (torch.float16, torch.bfloat16, torch.float32)


def bits(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    found = load_file(folder / "model.safetensors")
    return {
        name: (tensor.dtype, tensor.contiguous().view(torch.uint8).numpy().tobytes()) for name, tensor in found.items()
    }


def mixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As transformers writes a model whose norms it keeps in float32."""
    return {
        name: tensor if "norm" in name.lower() or "ln_" in name else tensor.to(HALVES[i % 2])
        for i, (name, tensor) in enumerate(tensors.items())
    }


@pytest.fixture
def pretraining(saved: Saved) -> Path:
    return saved("BERT: pre-training")


def test_bert_for_pre_training_keeps_its_second_head(pretraining: Path, tmp_path: Path) -> None:
    cutaway.load(pretraining).save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(pretraining)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["BertForPreTraining"]
    theirs, info = hf.BertForPreTraining.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    given = torch.tensor([[1, 2, 3]])
    expected = hf.BertForPreTraining.from_pretrained(pretraining)(given).seq_relationship_logits
    assert torch.equal(theirs(given).seq_relationship_logits, expected)


@pytest.mark.parametrize(
    ("name", "extra", "written"),
    [
        ("BERT: masked LM", {"bert.pooler.dense.weight": (24, 24)}, "bert.pooler.dense.weight"),
        ("BERT: answers", {"bert.pooler.dense.bias": (24,)}, "bert.pooler.dense.bias"),
        ("BERT: masked LM", {"cls.seq_relationship.weight": (2, 24)}, "cls.seq_relationship.weight"),
        ("ViT: classifier", {"vit.embeddings.mask_token": (1, 1, 24)}, "vit.embeddings.mask_token"),
        ("ViT: classifier", {"vit.pooler.dense.bias": (24,)}, "vit.pooler.dense.bias"),
    ],
)
def test_what_was_learnt_and_is_not_used_comes_back(
    name: str, extra: dict[str, tuple[int, ...]], written: str, changed: Changed, tmp_path: Path
) -> None:
    folder = changed(name, tensors=lambda found: found | {key: torch.randn(shape) for key, shape in extra.items()})
    model = cutaway.load(folder)
    assert model.report.ignored == [written]
    model.save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(folder)
    architectures = [
        json.loads((each / "config.json").read_text())["architectures"] for each in (folder, tmp_path / "back")
    ]
    assert architectures[0] == architectures[1]


def test_the_old_head_does_not_come_back_beside_a_new_one(pretraining: Path, tmp_path: Path) -> None:
    model = cutaway.load(pretraining, head=Classifier(n_classes=3, hidden="tanh"))
    model.save(tmp_path / "new", format="huggingface")
    assert not [name for name in load_file(tmp_path / "new" / "model.safetensors") if name.startswith("cls.")]
    _, info = hf.BertForSequenceClassification.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_our_own_format_keeps_it_for_the_way_back(pretraining: Path, tmp_path: Path) -> None:
    cutaway.load(pretraining).save(tmp_path / "native")
    found = read_info(tmp_path / "native")
    assert found.ignored == [f"huggingface.{name}" for name in SECOND_HEAD]
    assert found.architecture == "BertForPreTraining"
    again = cutaway.load(tmp_path / "native")
    assert set(again.network.state_dict()) == set(cutaway.load(pretraining).network.state_dict())
    again.save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(pretraining)
    Model(again.network).save(tmp_path / "other", format="huggingface")  # which came from nowhere
    assert json.loads((tmp_path / "other" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize(
    "name",
    ["BERT: pre-training", "GPT-2: language model", "Llama: grouped queries", "T5: v1.0", "MarianMT: translation",
     "ViT: classifier", "DistilBERT: classifier"],
)  # fmt: skip
def test_every_weight_keeps_its_dtype(name: str, changed: Changed, tmp_path: Path) -> None:
    folder = changed(name, tensors=mixed)
    model = cutaway.load(folder)
    assert {weight.dtype for weight in model.network.parameters()} == {torch.float32}
    model.save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(folder)
    model.save(tmp_path / "native")
    again = cutaway.load(tmp_path / "native")
    assert again.dtypes == model.dtypes
    again.save(tmp_path / "twice", format="huggingface")
    assert bits(tmp_path / "twice") == bits(folder)


def test_mixed_files_of_transformers(tmp_path: Path) -> None:
    """It writes such files itself: of a model of which a part was moved to another dtype."""
    case = hf_models.case("GPT-2: language model")
    theirs = make(case).to(torch.bfloat16)
    theirs.transformer.ln_f.to(torch.float32)
    theirs.save_pretrained(tmp_path / "theirs")
    assert len({dtype for dtype, _ in bits(tmp_path / "theirs").values()}) == 2
    cutaway.load(tmp_path / "theirs").save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(tmp_path / "theirs")
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "back")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("convert", ["huggingface", "cutaway"])
def test_convert_keeps_dtypes_unless_told_otherwise(
    convert: str, changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed("BERT: pre-training", tensors=mixed)

    def run(out: str, *more: str) -> set[torch.dtype]:
        monkeypatch.setattr(
            "sys.argv", ["cutaway", "convert", str(folder), str(tmp_path / out), "--to", convert, *more]
        )
        with pytest.raises(SystemExit) as done:
            main()
        assert not done.value.code
        return {dtype for dtype, _ in bits(tmp_path / out).values()}

    assert run("kept") == {torch.float16, torch.bfloat16, torch.float32}
    assert run("half", "--dtype", "bfloat16") == {torch.bfloat16}
    model = cutaway.load(folder).to(dtype="bfloat16")
    model.save(tmp_path / "moved", format=convert)  # type: ignore[arg-type]  # one of the two
    assert {dtype for dtype, _ in bits(tmp_path / "moved").values()} == {torch.bfloat16}


def test_what_was_learnt_since_is_not_rounded(changed: Changed, tmp_path: Path) -> None:
    """A weight goes out in the dtype it came in only while that holds it."""
    model = cutaway.load(changed("GPT-2: language model", tensors=mixed))
    weight: Any = model.network.get_parameter("decoder.blocks.0.feedforward.up.weight")
    with torch.no_grad():
        weight += torch.randn_like(weight)
    for place, options in (("back", {"format": "huggingface"}), ("native", {})):
        model.save(tmp_path / place, **options)  # type: ignore[arg-type]  # one of the two
        again = cutaway.load(tmp_path / place)
        found = again.network.get_parameter("decoder.blocks.0.feedforward.up.weight")
        assert torch.equal(found, weight)
        assert len(set(again.dtypes.values())) == 3


def test_a_moved_or_overwritten_source_changes_nothing(pretraining: Path, tmp_path: Path) -> None:
    """What is carried is held, not looked up again in a folder that may be another by then."""
    model = cutaway.load(cutaway.load(pretraining).save(tmp_path / "a", format="huggingface"))
    save_file({"other": torch.zeros(3)}, tmp_path / "b.safetensors")
    (tmp_path / "b.safetensors").replace(tmp_path / "a" / "model.safetensors")
    model.save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(pretraining)


@pytest.mark.parametrize("format_", ["cutaway", "huggingface"])
def test_numbers_that_are_none_keep_their_dtype_too(saved: Saved, tmp_path: Path, format_: Any) -> None:
    """NaN is not equal to itself, but it is the same NaN."""
    folder = Path(shutil.copytree(saved("BERT: body"), tmp_path / "came"))
    tensors = mixed(load_file(folder / "model.safetensors"))
    name = next(name for name, tensor in tensors.items() if tensor.dtype != torch.float32)
    tensors[name].view(-1)[:4] = torch.tensor([float("nan"), float("inf"), -0.0, 6e-8])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    cutaway.load(folder).save(tmp_path / "kept", format=format_)
    cutaway.load(tmp_path / "kept").save(tmp_path / "back", format="huggingface")
    assert bits(tmp_path / "back") == bits(folder)


@pytest.mark.parametrize("name", ["../../x", "bert.embeddings.word_embeddings.weight", ""])
def test_foreign_tensors_that_no_such_model_has_are_not_written(
    pretraining: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written could not be loaded again."""
    cutaway.load(pretraining).save(tmp_path / "ours")
    weights = tmp_path / "ours" / "model.safetensors"
    save_file(load_file(weights) | {f"huggingface.{name}": torch.ones(3)}, weights)
    out = tmp_path / "theirs"
    monkeypatch.setattr("sys.argv", ["cutaway", "convert", str(tmp_path / "ours"), str(out), "--to", "huggingface"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "which no BERT model of Hugging Face has" in capsys.readouterr().err.replace("\n", " ")
    assert not out.exists()
