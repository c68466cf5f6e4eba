"""A tiny model of each family with random weights, in folders, as a person would name them to the studio."""

from pathlib import Path

from bench.parity import MARIAN, Case, make
from tests.support import hf_models as tiny
from tests.support import small_models as small

SENTENCE = "The animal didn't cross the street because it was too tired."
TEXTS = {
    "en-fr": SENTENCE, "marian": "The cat sat.", "t5": "A dog ate the cat's hat.", "bert": "the cat [MASK] on the mat.",
    "gpt2": "the cat sat", "llama": "The cat", "bahdanau": "The cat sat.",
}  # fmt: skip
"""What each of them is asked."""


def marian(folder: Path) -> Path:
    """As Hugging Face saves one, with a tokenizer of its own."""
    words = small.tokenizer()
    sizes = MARIAN | {
        "vocab_size": words.vocabulary_size, "pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0,
        "max_position_embeddings": 64, "bad_words_ids": [[0]],
    }  # fmt: skip
    make(Case("marian", "MarianConfig", "MarianMTModel", sizes)).save_pretrained(folder)
    words.save(folder)
    return folder


def all_families(folder: Path) -> dict[str, Path]:
    """By the name of the family."""
    paths = {name: folder / name for name in ("marian", "t5", "bert", "gpt2", "llama", "vit", "bahdanau")}
    folder.mkdir(parents=True, exist_ok=True)
    marian(paths["marian"])
    small.t5(paths["t5"])
    tiny.bert(paths["bert"], "BertForMaskedLM")
    tiny.gpt2(paths["gpt2"])
    small.model("llama-3.2-1b").save(paths["llama"])
    tiny.vit(paths["vit"])
    small.model("bahdanau-gru").save(paths["bahdanau"])
    return paths
