"""Tokenizers by family, for folders that hold only a vocabulary and no tokenizer.json.

Each recipe builds the same tokenizer as transformers 5 from the same files; comments note where a model was trained
with another one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from cutaway.errors import CheckpointError
from cutaway.text.fast import FastTokenizer
from cutaway.text.sentencepiece import CONTROL, SPACE, USER_DEFINED, SentencePieceModel
from cutaway.text.settings import TokenizerSettings, register
from cutaway.text.tokenizer import ROLES, Tokenizer

SEGMENTED = ["input_ids", "token_type_ids", "attention_mask"]
PLAIN = ["input_ids", "attention_mask"]


def distilbert(vocabulary: Mapping[str, int], settings: TokenizerSettings) -> Tokenizer:
    """BERT's, for a model without segments."""
    return bert(vocabulary, settings, PLAIN)


def bert(vocabulary: Mapping[str, int], settings: TokenizerSettings, inputs: list[str] = SEGMENTED) -> Tokenizer:
    """WordPiece: the longest known piece first, '##' marks pieces inside words."""
    defaults = _defaults(unknown="[UNK]", separator="[SEP]", pad="[PAD]", classify="[CLS]", mask="[MASK]")
    unknown = _named(settings, defaults, "unknown")
    if unknown not in vocabulary:
        raise CheckpointError(f"vocab.txt has no '{unknown}'; words that it does not know need it")
    backend = tokenizers.Tokenizer(WordPiece(dict(vocabulary), unk_token=unknown))
    strip = settings.values.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=None if strip is None else settings.flag("strip_accents", False),  # None: if lower-cased
        lowercase=settings.flag("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    names = register(backend, settings, defaults)
    backend.post_processor = _around(backend, _need(names, "classify"), _need(names, "separator"))
    return _tokenizer(backend, names, settings, inputs)


def gpt2(vocabulary: Mapping[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings) -> Tokenizer:
    """Byte-level BPE: every byte is a character, spaces belong to the word that follows; nothing is added."""
    defaults = _defaults(unknown="<|endoftext|>", start="<|endoftext|>", end="<|endoftext|>")
    backend = _byte_level(vocabulary, merges, settings)
    names = register(backend, settings, defaults)
    backend.post_processor = _bounds(backend, names, settings, start=False)
    return _tokenizer(backend, names, settings, PLAIN)


def roberta(vocabulary: Mapping[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings) -> Tokenizer:
    """GPT-2's kind of vocabulary; <s> text </s>, and </s></s> between a pair.

    fairseq's <mask> includes the space before it, as tokenizer.json and tokenizer_config.json say; from a vocabulary
    alone transformers 5 leaves that out, and so do we.
    """
    defaults = _defaults(
        unknown="<unk>", start="<s>", end="</s>", separator="</s>", pad="<pad>", classify="<s>", mask="<mask>"
    )
    backend = _byte_level(vocabulary, merges, settings)
    names = register(backend, settings, defaults)
    separator, classify = _need(names, "separator"), _need(names, "classify")
    backend.post_processor = processors.RobertaProcessing(
        (separator, _id(backend, separator)),
        (classify, _id(backend, classify)),
        settings.flag("trim_offsets", True),
        settings.flag("add_prefix_space", False),
    )
    return _tokenizer(backend, names, settings, PLAIN)


def t5(model: SentencePieceModel, settings: TokenizerSettings) -> Tokenizer:
    """Unigram pieces; </s> at the end; 100 sentinels behind the vocabulary, <extra_id_0> with the highest id."""
    sentinels = settings.count("extra_ids", 100)
    backend = tokenizers.Tokenizer(model.unigram(sentinels=sentinels))
    if model.charsmap:
        backend.normalizer = normalizers.Precompiled(model.charsmap)
    _words(backend)
    more = [*_own_symbols(model), *(AddedToken(f"<extra_id_{i}>", special=True) for i in range(sentinels))]
    names = register(backend, _with(settings, more), _defaults(end="</s>", unknown="<unk>", pad="<pad>"))
    end = _need(names, "end")
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, _id(backend, end))]
    )
    return _tokenizer(backend, names, settings, PLAIN)


def albert(model: SentencePieceModel, settings: TokenizerSettings) -> Tokenizer:
    """Unigram pieces of lower-cased text without accents; [CLS] text [SEP]."""
    backend = tokenizers.Tokenizer(model.unigram())
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    backend.normalizer = normalizers.Sequence(steps)
    _words(backend, settings.flag("add_prefix_space", True))
    defaults = _defaults(
        unknown="<unk>", start="[CLS]", end="[SEP]", separator="[SEP]", pad="<pad>", classify="[CLS]", mask="[MASK]"
    )
    names = register(backend, _with(settings, _own_symbols(model)), defaults)
    backend.post_processor = _around(backend, _need(names, "classify"), _need(names, "separator"))
    return _tokenizer(backend, names, settings, PLAIN)


def llama(model: SentencePieceModel, settings: TokenizerSettings) -> Tokenizer:
    """SentencePiece BPE; <s> and a space in front; characters without a piece become bytes such as <0x0A>.

    <s> is added unless add_bos_token is false: so Llama was trained, and so transformers documents it, though version 5
    leaves it out where neither tokenizer.json nor tokenizer_config.json mentions it. The space is also added to a text
    that begins with one, as in SentencePiece: indented code keeps its indentation. transformers 5 loses one.
    """
    backend = tokenizers.Tokenizer(model.bpe(byte_fallback=True))
    space = settings.flag("add_prefix_space", model.dummy_prefix)
    # legacy: a space after every special token; otherwise only at the start of the text
    first = "always" if settings.flag("legacy", False) or model.charsmap or model.squeeze else "first"
    _blanks(backend, model, first if space else "never")
    backend.decoder = _byte_decoder(strip=space)
    defaults = _defaults(unknown="<unk>", start="<s>", end="</s>")
    names = register(backend, _with(settings, _own_symbols(model)), defaults)
    backend.post_processor = _bounds(backend, names, settings, start=True)
    return _tokenizer(backend, names, settings, PLAIN)


def plain_sentencepiece(model: SentencePieceModel, settings: TokenizerSettings) -> Tokenizer:
    """A SentencePiece model of no known family, by its own settings (transformers 5 ignores dummy_prefix).

    `tokenizers` normalises rare combined characters differently (see segment.py).
    """
    backend = tokenizers.Tokenizer(
        model.bpe(byte_fallback=model.byte_fallback)
        if model.is_bpe
        else model.unigram(byte_fallback=model.byte_fallback)
    )
    _blanks(backend, model, "always" if model.dummy_prefix else "never")
    backend.decoder = _byte_decoder(strip=model.dummy_prefix)
    texts = {piece.text for piece in model.pieces}
    usual = {"start": "<s>", "end": "</s>", "pad": "<pad>"}
    defaults = _defaults(
        unknown=model.unknown_piece, **{role: token for role, token in usual.items() if token in texts}
    )
    names = register(backend, _with(settings, _own_symbols(model)), defaults)
    backend.post_processor = _bounds(backend, names, settings, start=False)
    return _tokenizer(backend, names, settings, PLAIN)


VOCABULARIES: dict[str, Callable[[Mapping[str, int], TokenizerSettings], Tokenizer]] = {
    "bert": bert,
    "distilbert": distilbert,
}
BYTE_LEVEL = {"gpt2": gpt2, "roberta": roberta}
SENTENCEPIECES: dict[str, Callable[[SentencePieceModel, TokenizerSettings], Tokenizer]] = {
    "albert": albert,
    "llama": llama,
    "sentencepiece": plain_sentencepiece,
    "t5": t5,
}


def guess(model: SentencePieceModel) -> str:
    """The family of a bare SentencePiece file."""
    first = [piece.text for piece in model.pieces[:5]]
    if model.is_bpe and model.byte_fallback:
        return "llama"
    if not model.is_bpe and "[CLS]" in first and "[SEP]" in first:
        return "albert"
    if not model.is_bpe and first[:3] == ["<pad>", "</s>", "<unk>"]:
        return "t5"
    return "sentencepiece"


def _defaults(**names: str) -> dict[str, str]:
    return names


def _named(settings: TokenizerSettings, defaults: Mapping[str, str], role: str) -> str:
    token = settings.named.get(role)
    return defaults[role] if token is None else token.content


def _with(settings: TokenizerSettings, more: list[AddedToken]) -> TokenizerSettings:
    """The model's own symbols as special tokens, unless the files list others, as in transformers."""
    if settings.extra:
        return settings
    return TokenizerSettings(settings.values, settings.named, settings.added, tuple(more), settings.chat_template)


def _need(names: Mapping[str, str], role: str) -> str:
    if role not in names:
        raise CheckpointError(
            f"tokenizer_config.json says that there is no {ROLES[role]}, but this tokenizer needs one"
        )
    return names[role]


def _id(backend: tokenizers.Tokenizer, token: str) -> int:
    found = backend.token_to_id(token)
    assert found is not None, f"register() has added {token}"
    return found


def _own_symbols(model: SentencePieceModel) -> list[AddedToken]:
    """Control symbols (special) and the model's own (not): both are found in text as they stand."""
    return [
        AddedToken(piece.text, normalized=False, special=piece.kind == CONTROL)
        for piece in model.pieces
        if piece.kind in (CONTROL, USER_DEFINED)
    ]


def _byte_level(
    vocabulary: Mapping[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings
) -> tokenizers.Tokenizer:
    known = set(vocabulary)
    for left, right in merges:
        if not {left, right, left + right} <= known:
            raise CheckpointError(f"merges.txt joins '{left}' and '{right}', which vocab.json does not hold")
    backend = tokenizers.Tokenizer(BPE(dict(vocabulary), merges, continuing_subword_prefix="", end_of_word_suffix=""))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()
    return backend


def _blanks(backend: tokenizers.Tokenizer, model: SentencePieceModel, prefix: str) -> None:
    """The model's own rules, blanks as the space symbol, and one more in front: `prefix` "always", "never", or "first",
    which is not after a special token (nor before a text whose beginning the rules removed).

    Metaspace adds no blank to a text that begins with one. So the blanks become symbols first; then one Metaspace adds
    a blank, and a second one makes it a symbol.
    """
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.squeeze:
        steps += [normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=prefix, split=False),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False),
        ]
    )


def _words(backend: tokenizers.Tokenizer, space: bool = True) -> None:
    """Text split at white space, each word with the space symbol in front."""
    scheme = "always" if space else "never"
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def _byte_decoder(strip: bool) -> Any:
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if strip else steps)


def _around(backend: tokenizers.Tokenizer, first: str, last: str) -> Any:
    """[CLS] text [SEP], [CLS] text [SEP] text [SEP]."""
    return processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(first, _id(backend, first)), (last, _id(backend, last))],
    )


def _bounds(backend: tokenizers.Tokenizer, names: Mapping[str, str], settings: TokenizerSettings, start: bool) -> Any:
    """Start and end tokens around each text, by add_bos_token and add_eos_token."""
    before = names.get("start") if settings.flag("add_bos_token", start) else None
    after = names.get("end") if settings.flag("add_eos_token", False) else None
    single, second = ["$A:0"], ["$B:1"]
    if before is not None:
        single, second = [f"{before}:0", *single], [f"{before}:1", *second]
    if after is not None:
        single, second = [*single, f"{after}:0"], [*second, f"{after}:1"]
    used = [token for token in {before, after} if token is not None]
    return processors.TemplateProcessing(
        single=single, pair=single + second, special_tokens=[(token, _id(backend, token)) for token in used]
    )


def _tokenizer(
    backend: tokenizers.Tokenizer, names: Mapping[str, str], settings: TokenizerSettings, inputs: list[str]
) -> Tokenizer:
    return FastTokenizer(
        backend,
        names,
        max_length=settings.max_length,
        chat_template=settings.chat_template,
        settings={"model_input_names": inputs, **settings.values},
    )
