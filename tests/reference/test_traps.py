"""What real checkpoints do and tiny new ones don't: old names, both dialects of config.json, tensors told twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.activations import ACT2FN

import cutaway
from bench.parity import CASES, inputs, make, theirs_of
from cutaway.checkpoints.keys import ACTIVATIONS as NAMES
from cutaway.errors import CheckpointError
from cutaway.models.config import Classifier, LanguageModel, MaskedLanguageModel, TransformerConfig
from cutaway.parts.feedforward import ACTIVATIONS
from tests.support import hf_models

Changed = Callable[..., Path]
Saved = Callable[[str], Path]


def output(folder: Path, name: str, padding: str = "right", **options: Any) -> Tensor:
    """What cutaway gives for the inputs of a case."""
    model = cutaway.load(folder, **options)
    case = hf_models.case(name)
    assert isinstance(model.config, TransformerConfig)
    given = inputs(case, model.config, padding)
    with torch.no_grad():
        return model.network(*given.ours, **given.our_options)


def expected(name: str, folder: Path) -> Tensor:
    """What transformers gives for them."""
    case = hf_models.case(name)
    model = getattr(hf, case.model).from_pretrained(folder, **case.arguments).eval()
    config = cutaway.load(folder).config
    assert isinstance(config, TransformerConfig)
    return theirs_of(model, inputs(case, config, "none"), config)


def test_old_bert_files_say_gamma_and_beta(saved: Saved, changed: Changed) -> None:
    def old(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for key, tensor in tensors.items()
        }

    folder = changed("BERT: masked LM", tensors=old)
    assert torch.equal(output(folder, "BERT: masked LM"), output(saved("BERT: masked LM"), "BERT: masked LM"))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("BERT: masked LM", "bert."),
        ("DistilBERT: masked LM", "distilbert."),
        ("GPT-2: language model", "transformer."),
        ("Llama: grouped queries", "model."),
        ("ViT: classifier", "vit."),
    ],
)
def test_the_prefix_may_be_absent(name: str, prefix: str, saved: Saved, changed: Changed) -> None:
    folder = changed(name, tensors=lambda found: {key.removeprefix(prefix): t for key, t in found.items()})
    assert torch.equal(output(folder, name), output(saved(name), name))


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        (
            "GPT-2: language model",
            {"transformer.h.0.attn.bias": (1, 1, 13, 13), "transformer.h.2.attn.masked_bias": (1,)},
        ),
        ("Llama: grouped queries", {"model.layers.0.self_attn.rotary_emb.inv_freq": (3,)}),
        ("MarianMT: translation", {"model.encoder.embed_positions.weight": (32, 24)}),
        ("BERT: masked LM", {"bert.embeddings.position_ids": (1, 13), "cls.seq_relationship.weight": (2, 24)}),
        ("BERT: masked LM", {"bert.pooler.dense.weight": (24, 24)}),
        ("T5: v1.0", {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (8, 4)}),
    ],
)
def test_tensors_that_say_nothing_are_left_out(
    name: str, extra: dict[str, tuple[int, ...]], saved: Saved, changed: Changed
) -> None:
    folder = changed(name, tensors=lambda found: found | {key: torch.ones(shape) for key, shape in extra.items()})
    assert torch.equal(output(folder, name), output(saved(name), name))
    assert sorted(cutaway.load(folder).report.ignored) == sorted(extra)


TABLES = {
    "GPT-2: language model": ("lm_head.weight", "transformer.wte.weight"),
    "Llama: tied": ("lm_head.weight", "model.embed_tokens.weight"),
    "T5: v1.0": ("lm_head.weight", "shared.weight"),
    "MarianMT: translation": ("lm_head.weight", "model.shared.weight"),
    "BERT: masked LM": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "DistilBERT: masked LM": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
}


@pytest.mark.parametrize("name", TABLES)
def test_an_output_table_that_repeats_the_embedding_is_tied(name: str, saved: Saved, changed: Changed) -> None:
    head, table = TABLES[name]
    folder = changed(name, tensors=lambda found: found | {head: found[table].clone()})
    config = cutaway.load(folder).config
    assert isinstance(config.head, LanguageModel | MaskedLanguageModel)
    assert config.head.tied
    assert torch.equal(output(folder, name), output(saved(name), name))


@pytest.mark.parametrize("name", TABLES)
def test_an_output_table_that_differs_is_used_whatever_the_config_says(
    name: str, saved: Saved, changed: Changed
) -> None:
    head, table = TABLES[name]
    folder = changed(name, tensors=lambda found: found | {head: 2 * found[table]})
    config = cutaway.load(folder).config
    assert isinstance(config.head, LanguageModel | MaskedLanguageModel)
    assert not config.head.tied
    assert not torch.allclose(output(folder, name), output(saved(name), name))


@pytest.mark.parametrize("copy", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])
def test_t5_and_marian_repeat_their_shared_table(copy: str, saved: Saved, changed: Changed) -> None:
    for name, prefix in (("T5: v1.0", ""), ("MarianMT: translation", "model.")):
        shared = prefix + "shared.weight"
        more = changed(name, tensors=lambda found, prefix=prefix, shared=shared: found | {prefix + copy: found[shared]})
        only = changed(
            name,
            tensors=lambda found, prefix=prefix, shared=shared: {
                prefix + copy if key == shared else key: tensor for key, tensor in found.items()
            },
        )
        assert torch.equal(output(more, name), output(saved(name), name))
        assert torch.equal(output(only, name), output(saved(name), name))
        wrong = changed(
            name, tensors=lambda found, prefix=prefix, shared=shared: found | {prefix + copy: found[shared] + 1}
        )
        with pytest.raises(CheckpointError, match="which it should repeat"):
            cutaway.load(wrong)


def test_t5_scales_its_output_in_the_first_version_only(changed: Changed) -> None:
    """v4 means it by tie_word_embeddings, v5 by scale_decoder_outputs."""
    name = "T5: v1.0"
    v4_scaled = changed(name, {"scale_decoder_outputs": None, "tie_word_embeddings": True})
    v4_silent = changed(name, {"scale_decoder_outputs": None, "tie_word_embeddings": None})
    v4_unscaled = changed(name, {"scale_decoder_outputs": None, "tie_word_embeddings": False})
    v5_unscaled = changed(name, {"scale_decoder_outputs": False, "tie_word_embeddings": True})
    scaled = output(v4_scaled, name)
    assert torch.equal(output(v4_silent, name), scaled)
    assert torch.allclose(output(v4_unscaled, name), scaled * 24**0.5, rtol=1e-4, atol=1e-4)
    assert torch.equal(output(v5_unscaled, name), output(v4_unscaled, name))


def test_both_dialects_of_rotary_positions(saved: Saved, changed: Changed) -> None:
    name = "Llama: Llama 3 rotation"
    given = json.loads((saved(name) / "config.json").read_text())["rope_parameters"]
    base = given.pop("rope_theta")
    v4 = changed(name, {"rope_parameters": None, "rope_theta": base, "rope_scaling": given})
    old = given | {"type": given["rope_type"]}
    del old["rope_type"]
    v3 = changed(name, {"rope_parameters": None, "rope_theta": base, "rope_scaling": old})
    for folder in (v4, v3):
        assert torch.equal(output(folder, name), output(saved(name), name))
    other_base = changed(name, {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": given})
    assert not torch.allclose(output(other_base, name), output(saved(name), name))


REFUSED = [
    ("Llama: grouped queries", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "type 'yarn'"),
    (
        "Llama: grouped queries",
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None},
        "'linear'",
    ),
    ("Llama: grouped queries", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("Mistral: language model", {"sliding_window": 0}, "sliding_window is '0'"),
    ("Qwen2: language model", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers is '-1'"),
    ("Qwen2: language model", {"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types is"),
    (
        "Qwen2: language model",
        {"use_sliding_window": True, "layer_types": None, "max_window_layers": 0, "num_hidden_layers": 10**9},
        "1,000,000,000 blocks",
    ),
    ("BERT: masked LM", {"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key"),
    ("BERT: masked LM", {"is_decoder": True}, "is_decoder=True"),
    ("GPT-2: language model", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ("MarianMT: translation", {"normalize_before": True}, "normalize_before=True"),
    ("GPT-2: language model", {"quantization_config": {"bits": 4}}, "quantised"),
    ("GPT-2: language model", {"model_type": "gpt_neox"}, "no model_type 'gpt_neox'"),
    ("GPT-2: language model", {"model_type": None, "n_layer": 7}, "has no model_type, and the weights fit none of"),
    ("BERT: masked LM", {"pruned_heads": {"1": [0]}}, "pruned_heads="),
    ("GPT-2: language model", {"model_type": "phi", "auto_map": {"AutoModel": "code.py"}}, "code of its own"),
    ("GPT-2: language model", {"architectures": ["GPT2DoubleHeadsModel"]}, "no GPT-2 architecture"),
    ("GPT-2: language model", {"architectures": "GPT2Model"}, "expected a list of names"),
    ("GPT-2: language model", {"n_layer": 0}, "n_layer is '0'; expected a whole number from 1 on"),
    ("GPT-2: language model", {"n_layer": 3.0}, "n_layer is '3.0'"),
    ("GPT-2: language model", {"n_layer": "3"}, "n_layer is '3'"),
    ("GPT-2: language model", {"n_layer": 10**30}, "n_layer is"),
    ("GPT-2: language model", {"n_layer": 10_000_000}, "10,000,000 blocks"),
    ("GPT-2: language model", {"n_embd": 2**24, "n_head": 4}, "shape"),
    ("GPT-2: language model", {"n_head": 7}, "n_heads=7 does not divide"),
    ("GPT-2: language model", {"activation_function": "xielu"}, "no choice 'xielu'"),
    ("GPT-2: language model", {"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
    ("GPT-2: language model", {"resid_pdrop": 1.0}, "resid_pdrop"),
    ("T5: v1.0", {"feed_forward_proj": "gated-foo"}, "feed_forward_proj"),
    ("ViT: classifier", {"image_size": [12, 16]}, "image_size"),
    ("ViT: classifier", {"patch_size": 5}, "does not divide image_size"),
    ("BERT: classifier", {"id2label": []}, "id2label"),
    ("BERT: classifier", {"id2label": {"a": "b"}}, "classifier.weight has shape [5, 24], expected [1, 24]"),
]


@pytest.mark.parametrize(("name", "keys", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_would_give_other_numbers_is_refused(
    name: str, keys: dict[str, Any], message: str, changed: Changed
) -> None:
    with pytest.raises(CheckpointError) as caught:
        cutaway.load(changed(name, keys))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "roberta"}, "no model_type 'roberta' (known: bert, distilbert, gpt2, llama, "),
        ({"architectures": ["BertForMultipleChoice"]}, "no BERT architecture 'BertForMultipleChoice' (known: Bert"),
    ],
)
def test_what_a_program_named_is_not_taken_for_a_slip(keys: dict[str, Any], message: str, changed: Changed) -> None:
    """RoBERTa is no misspelt BERT."""
    with pytest.raises(CheckpointError) as caught:
        cutaway.load(changed("BERT: masked LM", keys))
    assert message in str(caught.value)


def test_the_model_type_comes_before_missing_weights(changed: Changed) -> None:
    folder = changed("BERT: masked LM", {"model_type": "roberta"})
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no model_type 'roberta'"):
        cutaway.load(folder)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_called_one(zipped: bool, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    torch.save({"weight": torch.ones(2, 3)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError) as caught:
        cutaway.load(file)
    assert "is a file of torch.save, a pickle" in str(caught.value)
    assert f"cutaway convert --from-pickle {file} NEW-FOLDER" in str(caught.value)


def test_activations_are_those_that_transformers_means() -> None:
    """In float64, so that only another formula is further off than 1e-12."""
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    assert {"gelu_python", "gelu_accurate", "gelu_python_tanh"} <= NAMES.keys()
    for theirs, ours in NAMES.items():
        torch.testing.assert_close(ACTIVATIONS[ours](x), ACT2FN[theirs](x), rtol=0, atol=1e-12, msg=theirs)


def test_all_that_does_not_fit_is_listed_together(changed: Changed) -> None:
    def broken(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        del tensors["transformer.h.1.mlp.c_fc.bias"]
        tensors["transformer.h.0.attn.c_attn.weight"] = torch.zeros(24, 70)
        return tensors | {"transformer.h.7.ln_1.weight": torch.zeros(24)}

    with pytest.raises(CheckpointError) as caught:
        cutaway.load(changed("GPT-2: language model", tensors=broken))
    message = str(caught.value)
    assert "h.1.mlp.c_fc.bias is missing (our decoder.blocks.1.feedforward.up.bias)" in message
    assert "transformer.h.0.attn.c_attn.weight has shape [24, 70], expected [24, 72]" in message
    assert "decoder.blocks.0.self_attention.q.weight" in message
    assert "transformer.h.7.ln_1.weight is not part of this model" in message


def test_two_spellings_of_one_tensor_are_an_error(changed: Changed) -> None:
    def doubled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {"wte.weight": tensors["transformer.wte.weight"].clone()}

    with pytest.raises(CheckpointError, match="two spellings"):
        cutaway.load(changed("GPT-2: language model", tensors=doubled))


def test_unknown_keys_are_reported_not_hidden(changed: Changed) -> None:
    assert cutaway.load(changed("GPT-2: language model", {"new_trick": 3})).report.unread_keys == ["new_trick"]
    assert cutaway.load(changed("GPT-2: language model")).report.unread_keys == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_key_that_transformers_writes_is_unknown(case: Any, saved: Saved) -> None:
    assert cutaway.load(saved(case.name)).report.unread_keys == []


@pytest.mark.parametrize(
    "name", ["GPT-2: language model", "BERT: classifier", "T5: encoder", "ViT: body and pooler", "Llama: tied"]
)
def test_an_architecture_that_is_not_named_is_found(name: str, saved: Saved, changed: Changed) -> None:
    folder = changed(name, {"architectures": None})
    assert cutaway.load(folder).config == cutaway.load(saved(name)).config


OF_EACH_FAMILY = [
    "BERT: masked LM", "DistilBERT: classifier", "GPT-2: body", "Llama: grouped queries", "T5: v1.0",
    "ViT: classifier", "MarianMT: translation",
]  # fmt: skip


@pytest.mark.parametrize("name", OF_EACH_FAMILY)
def test_a_family_that_is_not_named_is_found(name: str, saved: Saved, changed: Changed, tmp_path: Path) -> None:
    """Until 2020 config.json often named neither."""
    folder = changed(name, {"model_type": None, "architectures": None})
    model = cutaway.load(folder)
    assert model.config.encoder == cutaway.load(saved(name)).config.encoder
    assert model.config.decoder == cutaway.load(saved(name)).config.decoder
    model.save(tmp_path / "named", format="huggingface")
    hf.AutoModel.from_pretrained(tmp_path / "named")


@pytest.mark.parametrize(
    ("name", "aliases"),
    [
        (
            "GPT-2: language model",
            {"num_attention_heads": "n_head", "hidden_size": "n_embd", "num_hidden_layers": "n_layer"},
        ),
        ("DistilBERT: masked LM", {"num_attention_heads": "n_heads", "hidden_size": "dim"}),
        ("T5: v1.0", {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers", "head_dim": "d_kv"}),
    ],
)
def test_other_names_of_keys(name: str, aliases: dict[str, str], saved: Saved, changed: Changed) -> None:
    """transformers takes both; a default in place of what is said would give other numbers."""
    given = json.loads((saved(name) / "config.json").read_text())
    keys = {other: given[name] for other, name in aliases.items()} | dict.fromkeys(aliases.values())
    folder = changed(name, keys)
    assert cutaway.load(folder).report.unread_keys == []
    assert torch.equal(output(folder, name), output(saved(name), name))


def test_llama_3_rotation_without_its_first_context(saved: Saved, changed: Changed) -> None:
    """transformers then takes max_position_embeddings."""
    name = "Llama: Llama 3 rotation"
    given = json.loads((saved(name) / "config.json").read_text())["rope_parameters"]
    del given["original_max_position_embeddings"]
    folder = changed(name, {"rope_parameters": given})
    assert torch.allclose(output(folder, name, padding="none"), expected(name, folder), atol=1e-5)


def test_num_labels_wins_over_names_that_mean_nothing(changed: Changed) -> None:
    names = {"0": "LABEL_0", "1": "LABEL_1"}
    model = cutaway.load(changed("BERT: classifier", {"num_labels": 5, "id2label": names}))
    assert model.config.head == Classifier(n_classes=5, hidden="tanh", dropout=0.1)
    assert model.usage.labels == ()


def test_shards(saved: Saved, tmp_path: Path) -> None:
    name = "GPT-2: language model"
    case = hf_models.case(name)
    make(case).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(output(tmp_path, name), output(saved(name), name))


def test_dtype(saved: Saved, tmp_path: Path) -> None:
    name = "GPT-2: language model"
    case = hf_models.case(name)
    make(case).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    assert {w.dtype for w in cutaway.load(tmp_path / "half").network.parameters()} == {torch.bfloat16}
    wide = cutaway.load(tmp_path / "half", dtype="float32")
    assert {weight.dtype for weight in wide.network.parameters()} == {torch.float32}
    assert {w.dtype for w in cutaway.load(saved(name), dtype=torch.float16).network.parameters()} == {torch.float16}
    with pytest.raises(CheckpointError, match="no dtype 'float23'"):
        cutaway.load(saved(name), dtype="float23")
    cutaway.load(tmp_path / "half").save(tmp_path / "back", format="huggingface")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert again.dtype == torch.bfloat16


def test_a_new_head_is_asked_for(saved: Saved) -> None:
    model = cutaway.load(saved("BERT: masked LM"), head=Classifier(n_classes=3, hidden="tanh"))
    names = {"head.pool.dense.weight", "head.pool.dense.bias", "head.classes.weight", "head.classes.bias"}
    assert set(model.report.fresh) <= names
    assert "head.classes.weight" in model.report.fresh
    logits = model.network(torch.tensor([[1, 2, 3]]))
    assert logits.shape == (1, 3)
    assert torch.isfinite(logits).all()
    body = cutaway.load(saved("BERT: masked LM"), head=None)
    assert body.network(torch.tensor([[1, 2, 3]])).shape == (1, 3, 24)


def test_a_changed_network_saves_what_it_is_now(saved: Saved, tmp_path: Path) -> None:
    """Not what its config.json once said: a new head brings its own architecture and labels."""
    model = cutaway.load(saved("BERT: masked LM"), head=Classifier(n_classes=3, hidden="tanh"))
    model.save(tmp_path / "new", format="huggingface")
    again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "new").eval()
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.allclose(again(tokens).logits, model.network(tokens), atol=1e-5)


def test_loading_maps_and_training_does_not_touch_the_file(saved: Saved) -> None:
    folder = saved("Llama: grouped queries")
    before = (folder / "model.safetensors").read_bytes()
    network = cutaway.load(folder).network
    with torch.no_grad():
        for weight in network.parameters():
            weight.zero_()
    assert (folder / "model.safetensors").read_bytes() == before
