"""Tiny random models that transformers made, with a vocabulary of real words."""

import json
import os
import string
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of transformers, about itself
    import transformers as hf

from bench.parity import BERT, CASES, DISTILBERT, GPT2, VIT, Case, make
from cutaway.text.train import train_tokenizer

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

WORDS = [
    "the", "a", "cat", "dog", "bird", "sat", "stood", "ran", "on", "under", "in", "mat", "rug", "house", "big", "small",
    "red", "who", "where", "what", "is", "does",
]  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *".,?!'"]
VOCABULARY += [*string.ascii_lowercase[1:], *string.digits, *(f"##{letter}" for letter in string.ascii_lowercase)]
TEXTS = [
    "the cat sat on the mat.",
    "a big red dog ran!",
    "where is the small bird?",
    "under",
    "who sat in the house on the rug under a big bird",
    "the dog does. the cat does not.",
]
LABELS = ("sad", "calm", "glad")
POSITIONS = 20


def case(name: str) -> Case:
    """Of bench.parity."""
    return next(case for case in CASES if case.name == name)


def bert(folder: Path, kind: str, **options: Any) -> Path:
    """`kind` is BertForMaskedLM, DistilBertForQuestionAnswering, …; it reads 20 tokens at once."""
    distilled = kind.startswith("Distil")
    sizes = (DISTILBERT if distilled else BERT) | {"vocab_size": len(VOCABULARY)}
    sizes |= {"max_position_embeddings": POSITIONS, "pad_token_id": 0} | options
    arguments = sizes.pop("arguments", {})
    make(Case(kind, "DistilBertConfig" if distilled else "BertConfig", kind, sizes, arguments)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    name = "DistilBertTokenizer" if distilled else "BertTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "do_lower_case": True}))
    return folder


def classifier(folder: Path, **options: Any) -> Path:
    names = dict(enumerate(LABELS))
    return bert(folder, "BertForSequenceClassification", num_labels=3, id2label=names, **options)


def sentences(folder: Path, *, longest: int | None = None, normalized: bool = True) -> Path:
    """As sentence-transformers saves a model."""
    bert(folder, "BertModel", arguments={"add_pooling_layer": False})
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalized
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    if longest is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    return folder


def gpt2(folder: Path, kind: str = "GPT2LMHeadModel", **options: Any) -> Path:
    tokenizer = train_tokenizer(TEXTS, "bpe", 280)
    sizes = GPT2 | {"vocab_size": 280, "n_positions": 64, "pad_token_id": 0} | options
    make(Case(kind, "GPT2Config", kind, sizes)).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def vit(folder: Path, preprocessor: dict[str, Any] | None = None) -> Path:
    names = dict(enumerate(("cat", "dog", "bird", "mat", "rug")))
    case = Case("vit", "ViTConfig", "ViTForImageClassification", VIT | {"num_labels": 5, "id2label": names})
    make(case).save_pretrained(folder)
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder
