"""Sentences as vectors: texts of like meaning point the same way."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Unpack, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.checks import Size, check
from cutaway.models.config import SentenceVector
from cutaway.tasks.batching import BATCH_TOKENS, is_text, map_inputs, read_in_order
from cutaway.tasks.options import RuntimeOptions
from cutaway.tasks.pooling import Pooling, choose_pooling
from cutaway.tasks.reader import InputRow, Reader
from cutaway.tasks.requirements import require

if TYPE_CHECKING:
    from cutaway.model import Model


class EmbedOptions(RuntimeOptions, total=False):
    """Keyword arguments of embed."""

    pooling: Pooling | None
    batch_tokens: int


@overload
def embed(model: "Model", texts: str | list[str] | tuple[str, ...], **options: Unpack[EmbedOptions]) -> Tensor: ...
@overload
def embed(model: "Model", texts: Iterator[str], **options: Unpack[EmbedOptions]) -> Iterator[Tensor]: ...
def embed(
    model: "Model",
    texts: str | list[str] | tuple[str, ...] | Iterator[str],
    *,
    pooling: Pooling | None = None,
    engine: str | None = None,
    precision: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Tensor | Iterator[Tensor]:
    """The vector [D] of a text, [n, D] of a list, an iterator of [D] of an iterator; float32, on the CPU.

    Pooled and normalised as the checkpoint says; where it does not say (a bare BERT, whose pooler learnt something
    else), the mean of the tokens is taken and the log is told. `pooling` takes another. A text that is longer than the
    model reads is read in windows of one size, whose vectors are averaged (and made as long as one text's, if the model
    normalises): sentence-transformers would cut it. An empty text is read as the special tokens alone, as there; where
    there are none, its vector is 0.
    """
    require(model, "embed", SentenceVector, None)
    check("batch_tokens", batch_tokens, Size)
    pooling = choose_pooling(model, pooling)
    reader = Reader(model, "embed", engine, precision)
    head = model.config.head
    normalized = isinstance(head, SentenceVector) and head.normalized
    stack = model.config.encoder or model.config.decoder
    assert stack is not None

    def rows_of(window: list[str]) -> list[list[InputRow]]:
        return [[row for row in rows if row.ids] for rows in reader.texts(window)]

    def read(rows: list[InputRow]) -> Sequence[Tensor]:
        if pooling is None or pooling == "pooler":
            return reader.read(rows).cpu().unbind()
        hidden = zip(reader.hidden(rows).cpu().unbind(), rows, strict=True)
        found = [x_TD[0] if pooling == "cls" else x_TD[: len(row)].mean(0) for x_TD, row in hidden]
        return [F.normalize(x_D, dim=0) for x_D in found] if normalized else found

    def run(stream: Iterator[str]) -> Iterator[Tensor]:
        for one in read_in_order(
            stream, rows_of, len, read, length=len, batch_tokens=batch_tokens, device=reader.engine.device
        ):
            if len(one.said) == 1:
                yield one.said[0].clone()  # its own memory, not its batch's; and one that may be trained on
            elif one.said:
                mean_D = torch.stack(one.said).mean(0)
                yield F.normalize(mean_D, dim=0) if normalized else mean_D
            else:
                yield torch.zeros(stack.d_model)

    found = map_inputs(texts, run, is_text)
    if not isinstance(found, list):
        return found
    return torch.stack(found) if found else torch.zeros(0, stack.d_model)
