"""The kind of model that each task needs. Nothing here imports torch."""

from typing import NamedTuple


class Need(NamedTuple):
    """Models that can do a task: their kind, some of the Hugging Face hub, and the tag under which it lists more."""

    kind: str
    examples: tuple[str, ...]
    tag: str

    def __str__(self) -> str:
        return f"{self.kind}, like {' or '.join(self.examples)}"


_VECTORS = Need(
    "an encoder that makes sentence vectors", ("sentence-transformers/all-MiniLM-L6-v2",), "sentence-similarity"
)
NEEDS = {
    "fill": Need("an encoder with a masked-language-model head", ("google-bert/bert-base-uncased",), "fill-mask"),
    "classify": Need(
        "a model with a classifier's head",
        ("distilbert/distilbert-base-uncased-finetuned-sst-2-english",),
        "text-classification",
    ),
    "embed": _VECTORS,
    "search": _VECTORS,
    "answer": Need(
        "an encoder with an answer-span head (or a T5)",
        ("distilbert/distilbert-base-cased-distilled-squad",),
        "question-answering",
    ),
    "recognize": Need("a classifier of images", ("google/vit-base-patch16-224",), "image-classification"),
    "translate": Need(
        "an encoder-decoder that was taught to", ("Helsinki-NLP/opus-mt-en-fr", "google-t5/t5-small"), "translation"
    ),
    "summarize": Need("an encoder-decoder that was taught to", ("google-t5/t5-small",), "summarization"),
    "complete": Need("a decoder-only language model", ("openai-community/gpt2",), "text-generation"),
    "chat": Need(
        "a decoder-only language model with a chat template", ("Qwen/Qwen2-0.5B-Instruct",), "text-generation"
    ),
}
"""Task -> which models can do it."""
