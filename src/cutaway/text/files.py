"""Loads the tokenizer of a folder: from tokenizer.json, or from a vocabulary in one of the older formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from cutaway.errors import CheckpointError, unknown
from cutaway.text import limits, recipes
from cutaway.text.fast import FastTokenizer
from cutaway.text.marian import load_marian
from cutaway.text.sentencepiece import parse
from cutaway.text.settings import TokenizerSettings, read_bytes, read_settings, read_text, read_vocabulary, register
from cutaway.text.source_target import TARGET, TwoTokenizers
from cutaway.text.tokenizer import Tokenizer

FAMILIES = {
    "AlbertTokenizer": "albert",
    "BartTokenizer": "roberta",
    "BertTokenizer": "bert",
    "DistilBertTokenizer": "distilbert",
    "ElectraTokenizer": "bert",
    "GPT2Tokenizer": "gpt2",
    "LlamaTokenizer": "llama",
    "LongformerTokenizer": "roberta",
    "MarianTokenizer": "marian",
    "MobileBertTokenizer": "bert",
    "RobertaTokenizer": "roberta",
    "T5Tokenizer": "t5",
}
"""transformers' tokenizer_class, without "Fast" -> recipe."""

MODELS = {
    "albert": "albert",
    "bart": "roberta",
    "bert": "bert",
    "distilbert": "distilbert",
    "electra": "bert",
    "gpt2": "gpt2",
    "llama": "llama",
    "marian": "marian",
    "mistral": "llama",
    "mobilebert": "bert",
    "mt5": "t5",
    "qwen2": "qwen2",
    "roberta": "roberta",
    "t5": "t5",
}
"""config.json's model_type -> recipe, where no tokenizer_class is named."""

_GENERAL = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")


def load_tokenizer(folder: Path, config: Mapping[str, Any] | None = None) -> Tokenizer | None:
    """The tokenizer in `folder`, None if it holds none; `config` is the model's config.json.

    tokenizer.json is used as it is. transformers 5 takes only the vocabulary from it for the classes it knows, and
    builds the rest anew from tokenizer_config.json: where the two disagree (in old Llama files, the space after a
    special token inside the text), ids differ.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    family = _family(settings, config or {})
    whole = read_bytes(folder, "tokenizer.json")
    if whole is not None:
        read = _from_json(whole, folder / "tokenizer.json", settings, family)
        target = read_bytes(folder, TARGET)
        return read if target is None else TwoTokenizers(read, _from_json(target, folder / TARGET, settings, family))
    if (folder / "source.spm").is_file():
        return load_marian(folder, settings)
    if (text := read_text(folder, "vocab.txt")) is not None:
        lines = text.removesuffix("\n").split("\n")
        words = {line.rstrip(): i for i, line in enumerate(lines)}
        return recipes.VOCABULARIES[_one_of(recipes.VOCABULARIES, family, "bert", folder)](words, settings)
    vocabulary = read_vocabulary(folder, "vocab.json")
    if vocabulary is not None and (text := read_text(folder, "merges.txt")) is not None:
        guess = "roberta" if {"<s>", "</s>", "<mask>"} <= set(vocabulary) else "gpt2"
        make = recipes.BYTE_LEVEL[_one_of(recipes.BYTE_LEVEL, family, guess, folder)]
        return make(vocabulary, _merges(text, folder / "merges.txt"), settings)
    for name in ("spiece.model", "tokenizer.model", "sentencepiece.model"):
        if (data := read_bytes(folder, name)) is not None:
            model = parse(data, folder / name)
            chosen = _one_of(recipes.SENTENCEPIECES, family, recipes.guess(model), folder)
            if (chosen == "llama") != model.is_bpe and chosen != "sentencepiece":
                kind = "BPE" if model.is_bpe else "unigram"
                raise CheckpointError(f"{folder / name} is a {kind} model, which {chosen} models don't use")
            return recipes.SENTENCEPIECES[chosen](model, settings)
    return None


def _family(settings: TokenizerSettings, config: Mapping[str, Any]) -> str | None:
    """The recipe that the files name; None if they name none. An unknown class is kept, and refused later."""
    named = settings.values.get("tokenizer_class") or config.get("tokenizer_class")
    if isinstance(named, str) and named not in _GENERAL:
        return FAMILIES.get(named.removesuffix("Fast"), named)
    return MODELS.get(str(config.get("model_type")))


def _one_of(known: Mapping[str, Any], family: str | None, guess: str, folder: Path) -> str:
    if family is None:
        return guess
    if family not in known:
        hint = unknown("recipe", family, known, typed=False)
        raise CheckpointError(f"{folder} has no tokenizer.json, and its vocabulary files fit {hint}")
    return family


def _from_json(data: bytes, path: Path, settings: TokenizerSettings, family: str | None) -> Tokenizer:
    try:
        limits.check_file(data)
        backend = tokenizers.Tokenizer.from_buffer(data)
        backend.no_truncation()
        backend.no_padding()
        limits.check(backend)
        names = register(backend, settings, {})
        if backend.post_processor is None:
            backend.post_processor = tokenizers.processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1")
        _try(backend)
    except (KeyboardInterrupt, SystemExit, CheckpointError):
        raise
    except limits.LimitError as error:
        raise CheckpointError(f"{path} asks for too much: {error}") from None
    except BaseException as error:  # a panic in the library's Rust code is not an Exception
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is no tokenizer that the tokenizers library can read: {reason}") from None
    segmented = family in (None, "bert")
    return FastTokenizer(
        backend,
        names or _usual_names(backend),
        max_length=settings.max_length,
        chat_template=settings.chat_template,
        settings={"model_input_names": recipes.SEGMENTED if segmented else recipes.PLAIN, **settings.values},
    )


def _try(backend: tokenizers.Tokenizer) -> None:
    """Runs the tokenizer once: some mistakes show only then. The file's regular expressions, maybe slow, do not run."""
    parts = {name: getattr(backend, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    aside = {name: part for name, part in parts.items() if limits.has_patterns(backend, name)}
    for name in aside:
        setattr(backend, name, None)
    for given in (("a text",), ("a text", "and another")):
        backend.decode(backend.encode(*given).ids)
    for name, part in aside.items():
        setattr(backend, name, part)


def _usual_names(backend: tokenizers.Tokenizer) -> dict[str, str]:
    """The roles of special tokens, by their usual names, for a tokenizer.json without tokenizer_config.json."""
    usual = {
        "start": ("<s>", "<|begin_of_text|>", "<|endoftext|>"),
        "end": ("</s>", "<|end_of_text|>", "<|endoftext|>"),
        "unknown": ("[UNK]", "<unk>"),
        "separator": ("[SEP]",),
        "pad": ("[PAD]", "<pad>"),
        "classify": ("[CLS]",),
        "mask": ("[MASK]", "<mask>"),
    }
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    found = {role: next((name for name in names if name in special), None) for role, names in usual.items()}
    return {role: name for role, name in found.items() if name is not None}


def _merges(text: str, path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise CheckpointError(f"{path}, line {number}: '{line[:40]}' is no pair of tokens with a space between")
        merges.append((parts[0], parts[1]))
    return merges
