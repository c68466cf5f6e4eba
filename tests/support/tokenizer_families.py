"""Small vocabularies of every kind, and transformers' own tokenizers for the same files."""

import io
import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutaway.text.sentencepiece import SPACE
from tests.support.text_samples import CORPUS

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of SWIG and of transformers, about themselves
    import sentencepiece
    import tokenizers
    import transformers
    from tokenizers import pre_tokenizers, trainers

transformers.logging.set_verbosity_error()


@dataclass(frozen=True)
class Family:
    """A folder as published, and how transformers reads it."""

    name: str
    folder: Path
    reference: Callable[..., Any]

    def theirs(self, folder: Path | None = None, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.reference(str(folder or self.folder), **options)


def keeps_first_blank(name: str, text: str, *, legacy: bool = False) -> bool:
    """Whether transformers puts Llama's space in front of this text: not where it finds one, as SentencePiece would and
    we do (tests/text/test_blanks.py). Of old: of each part between special tokens."""
    parts = re.split(r"<s>|</s>|<unk>", text) if legacy else [text]
    return name != "llama" or not any(part.startswith((" ", SPACE)) for part in parts)


def pieces(**options: Any) -> bytes:
    """A SentencePiece model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=out,
        hard_vocab_limit=False,
        character_coverage=0.995,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return out.getvalue()


def _byte_level(folder: Path, special: list[str], last: list[str]) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    model = json.loads(backend.to_str())["model"]
    vocabulary = model["vocab"] | {token: len(model["vocab"]) + i for i, token in enumerate(last)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")


def _bert(folder: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    backend.train_from_iterator([*CORPUS, *(text.lower() for text in CORPUS)], trainer)
    words = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words), encoding="utf-8")


def _marian(folder: Path) -> None:
    sides = {
        "source.spm": pieces(vocab_size=380, model_type="unigram", normalization_rule_name="nmt_nfkc"),
        "target.spm": pieces(vocab_size=300, model_type="unigram", normalization_rule_name="nmt_nfkc"),
    }
    tokens = ["</s>", "<unk>"]
    for name, data in sides.items():
        (folder / name).write_bytes(data)
        model = sentencepiece.SentencePieceProcessor(model_proto=data)
        known = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        tokens += [piece for piece in known if piece not in tokens and piece not in ("<s>", "▁the", "ing")]
    tokens += [">>fra<<", ">>deu<<", "<pad>"]  # ▁the and ing: pieces that the vocabulary lacks
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")


def make_families(root: Path) -> dict[str, Family]:
    """A folder of each, below `root`."""
    references = {
        "bert": transformers.BertTokenizer,
        "gpt2": transformers.GPT2Tokenizer,
        "roberta": transformers.RobertaTokenizer,
        "t5": transformers.T5Tokenizer,
        "albert": transformers.AlbertTokenizer,
        "llama": transformers.LlamaTokenizer,
        "marian": transformers.MarianTokenizer,
    }
    made = {name: root / name for name in references}
    for folder in made.values():
        folder.mkdir()
    _bert(made["bert"])
    _byte_level(made["gpt2"], [], ["<|endoftext|>"])
    _byte_level(made["roberta"], ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    unigram = {"model_type": "unigram", "vocab_size": 420, "bos_id": -1}
    (made["t5"] / "spiece.model").write_bytes(
        pieces(**unigram, pad_id=0, eos_id=1, unk_id=2, normalization_rule_name="nmt_nfkc")
    )
    (made["albert"] / "spiece.model").write_bytes(
        pieces(
            **unigram, pad_id=0, unk_id=1, eos_id=-1, pad_piece="<pad>", control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            normalization_rule_name="nmt_nfkc_cf",
        )
    )  # fmt: skip
    (made["llama"] / "tokenizer.model").write_bytes(
        pieces(
            model_type="bpe", vocab_size=600, byte_fallback=True, split_digits=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        )
    )  # fmt: skip
    # transformers forgets <s> unless it is told (see recipes.llama)
    (made["llama"] / "tokenizer_config.json").write_text('{"add_bos_token": true}', encoding="utf-8")
    _marian(made["marian"])
    return {name: Family(name, made[name], cls.from_pretrained) for name, cls in references.items()}
