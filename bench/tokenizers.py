"""Our tokenizers beside transformers', on real vocabulary files: python -m bench.tokenizers FOLDER

FOLDER holds one folder per vocabulary (gpt2/, bert-base-uncased/, t5/, ...). Counts texts whose ids, offsets or decoded
texts differ, and tokens per second of both.
"""

import argparse
import random
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cutaway.errors import CheckpointError
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer
from tests.support.text_samples import CORPUS, SAMPLES

SPECIAL = re.compile("<s>|</s>|<unk>")


def texts(count: int, seed: int = 0) -> list[str]:
    """The samples of the tests, and `count` texts put together from their characters, words and lines."""
    rng = random.Random(seed)
    lines = [*SAMPLES, *CORPUS]
    words = [word for line in lines for word in line.split(" ")]
    characters = sorted({character for line in lines for character in line})
    made = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.5:
            made.append(" ".join(rng.choices(words, k=rng.randint(1, 30))))
        elif kind < 0.75:
            made.append("".join(rng.choices(characters, k=rng.randint(1, 40))))
        elif kind < 0.9:
            made.append(
                "".join(chr(rng.choice([rng.randrange(32, 0x3000), rng.randrange(0x3000, 0xD800)])) for _ in range(20))
            )
        else:
            made.append(rng.choice(["", "\n", "  "]).join(rng.choices(lines, k=3)))
    return [*lines, *made]


def reference(folder: Path, mine: Tokenizer) -> Any:
    """transformers' tokenizer for the same files; it is told that Llama begins with <s> (see recipes.llama)."""
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if (folder / "tokenizer_config.json").exists() or (folder / "config.json").exists():
            return transformers.AutoTokenizer.from_pretrained(str(folder))
        classes = {
            "Marian": transformers.MarianTokenizer,
            "WordPiece": transformers.BertTokenizer,
            "BPE with byte fallback": transformers.LlamaTokenizer,
        }
        if mine.kind == "byte-level BPE":
            cls = transformers.GPT2Tokenizer if mine.special.mask is None else transformers.RobertaTokenizer
        elif mine.kind == "unigram":
            cls = transformers.T5Tokenizer if mine.special.mask is None else transformers.AlbertTokenizer
        else:
            cls = classes[mine.kind]
        options = {"add_bos_token": True} if cls is transformers.LlamaTokenizer else {}
        return cls.from_pretrained(str(folder), **options)


def compare(mine: Tokenizer, theirs: Any, lines: list[str]) -> tuple[int, int, int, list[str]]:
    """How many texts differ in ids, offsets and decoded text, and the first few of them."""
    ids = offsets = decoded = 0
    shown: list[str] = []
    for text in lines:
        encoding = mine.encode(text)
        found = theirs(text, **({"return_offsets_mapping": True} if theirs.is_fast else {}))
        wrong_ids = encoding.ids != found["input_ids"]
        wrong_offsets = theirs.is_fast and encoding.offsets != found["offset_mapping"]
        wrong_text = any(
            mine.decode(encoding.ids, skip_special=skip) != theirs.decode(encoding.ids, skip_special_tokens=skip)
            for skip in (True, False)
        )
        ids, offsets, decoded = ids + wrong_ids, offsets + wrong_offsets, decoded + wrong_text
        if wrong_ids or wrong_offsets or wrong_text:
            shown.append(text)
    return ids, offsets, decoded, shown[:3]


def beside_sentencepiece(mine: Tokenizer, path: Path, lines: list[str]) -> tuple[int, int]:
    """Texts compared, and those with other ids; no special tokens, no space in front (see recipes.llama)."""
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    chosen = [text for text in lines if text and text[0] not in " ▁" and not SPECIAL.search(text)]
    return len(chosen), sum(mine.encode(text, special=False).ids != theirs.encode(text) for text in chosen)


def speed(encode: Callable[[], list[list[int]]], repeats: int = 3) -> float:
    """Tokens per second, the best of a few runs."""
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        rows = encode()
        best = max(best, sum(map(len, rows)) / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=5000)
    options = parser.parse_args()
    table = Table(title=f"{options.folder}")
    for name in ("files", "kind", "vocabulary", "texts", "ids ≠", "offsets ≠", "decoded ≠", "ours tok/s", "HF tok/s"):
        table.add_column(name, justify="left" if name in ("files", "kind") else "right")
    lines = texts(options.texts)
    plain = [line for line in CORPUS if line.isascii()] * 200
    for folder in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        try:
            mine = load_tokenizer(folder)
        except CheckpointError as error:
            print(f"{folder.name}: {error}")
            continue
        if mine is None:
            print(f"{folder.name}: no tokenizer files that we know")
            continue
        if mine.kind == "BPE with byte fallback" and (folder / "tokenizer.model").exists():
            count, differing = beside_sentencepiece(mine, folder / "tokenizer.model", lines)
            print(f"{folder.name} beside SentencePiece: {differing} of {count} texts have other ids")
        theirs = reference(folder, mine)
        ids, offsets, decoded, shown = compare(mine, theirs, lines)
        for text in shown:
            print(f"{folder.name} differs on {text!r}")
        ours = speed(lambda mine=mine: mine.encode_ids(plain))  # type: ignore[misc]
        other = speed(lambda theirs=theirs: theirs(plain)["input_ids"])  # type: ignore[misc]
        counts = (mine.vocabulary_size, len(lines), ids, offsets, decoded)
        table.add_row(folder.name, mine.kind, *map(str, counts), f"{ours:,.0f}", f"{other:,.0f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
