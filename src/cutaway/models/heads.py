"""The heads: the next token, a masked token, a class, an answer, or one vector for the sentence, from the last block.

Every head takes hidden_BTD, the mask of real tokens, and the embedding's table, which tied heads multiply by.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.models import config as c
from cutaway.parts.dropout import Dropout
from cutaway.parts.feedforward import ACTIVATIONS, Activation
from cutaway.parts.norms import LayerNorm
from cutaway.parts.tap import Tap, heard


class VocabularyProjection(nn.Module):
    """logits_BTV = hidden_BTD [/ √D] · tableᵀ [+ b]: the last layer (§3.4), by the embedding's table or its own."""

    def __init__(self, d_model: int, n_words: int, *, tied: bool, bias: bool, scaled: bool = False) -> None:
        super().__init__()
        self.scale = d_model**-0.5 if scaled else 1.0
        self.weight = None if tied else nn.Parameter(torch.empty(n_words, d_model))
        if self.weight is not None and not self.weight.is_meta:  # see Table
            nn.init.normal_(self.weight, std=d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_words)) if bias else None
        self.logits = Tap("BTV", f"hidden{' / √D' if scaled else ''} · tableᵀ{' + b' if bias else ''}")
        self.probabilities = Tap("BTV", "softmax(logits)", replaceable=False)

    def forward(self, hidden_BTD: Tensor, table_VD: Tensor) -> Tensor:
        weight_VD = table_VD if self.weight is None else self.weight
        hidden_BTD = hidden_BTD * self.scale if self.scale != 1.0 else hidden_BTD
        logits_BTV = self.logits(F.linear(hidden_BTD, weight_VD, self.bias))
        if heard(self.probabilities):
            self.probabilities(logits_BTV.softmax(-1, dtype=torch.float32))
        return logits_BTV


class LanguageModelHead(nn.Module):
    """The next token, at every position. -> logits [B, T, V]"""

    def __init__(self, config: c.LanguageModel, d_model: int, n_words: int) -> None:
        super().__init__()
        self.vocabulary = VocabularyProjection(
            d_model, n_words, tied=config.tied, bias=config.bias, scaled=config.scaled
        )

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor | None, table_VD: Tensor) -> Tensor:
        return self.vocabulary(hidden_BTD, table_VD)


class MaskedLanguageModelHead(nn.Module):
    """The token that stood there. -> logits [B, T, V]"""

    def __init__(self, config: c.MaskedLanguageModel, d_model: int, n_words: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.activated = Tap("BTD", f"{config.activation}(hidden W + b)")
        self.norm = LayerNorm(d_model, config.norm_epsilon)
        self.vocabulary = VocabularyProjection(d_model, n_words, tied=config.tied, bias=True)

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor | None, table_VD: Tensor) -> Tensor:
        return self.vocabulary(self.norm(self.activated(self.activation(self.dense(hidden_BTD)))), table_VD)


class Pooler(nn.Module):
    """One vector from all tokens: the first, the mean, or the last real one; then a dense layer if asked. -> [B, D]"""

    def __init__(self, pooling: c.Pooling, hidden: Activation | None, d_model: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(d_model, d_model) if hidden is not None else None
        self.activation = None if hidden is None else ACTIVATIONS[hidden]
        self.pooled = Tap("BD", f"the {pooling} of the tokens" + ("" if hidden is None else f", {hidden}(· W + b)"))

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        x_BD = self._pool(hidden_BTD, mask_BT)
        if self.dense is not None and self.activation is not None:
            x_BD = self.activation(self.dense(x_BD))
        return self.pooled(x_BD)

    def _pool(self, hidden_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        if self.pooling == "mean":
            if mask_BT is None:
                return hidden_BTD.mean(1)
            real_BT1 = mask_BT.unsqueeze(-1).to(hidden_BTD.dtype)
            return (hidden_BTD * real_BT1).sum(1) / real_BT1.sum(1)
        if mask_BT is None:
            return hidden_BTD[:, 0 if self.pooling == "first" else -1]
        real_BT = mask_BT.long()
        at_B = (
            real_BT.argmax(1) if self.pooling == "first" else real_BT.cumsum(1).argmax(1)
        )  # argmax: the first of equals
        return hidden_BTD[torch.arange(len(at_B), device=at_B.device), at_B]


class ClassifierHead(nn.Module):
    """The class of the whole input. -> logits [B, C]"""

    def __init__(self, config: c.Classifier, d_model: int) -> None:
        super().__init__()
        self.pool = Pooler(config.pooling, config.hidden, d_model)
        self.dropout = Dropout(config.dropout)
        self.classes = nn.Linear(d_model, config.n_classes, bias=config.bias)
        self.logits = Tap("BC", "pooled W + b" if config.bias else "pooled W")

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor | None, table_VD: Tensor | None) -> Tensor:
        return self.logits(self.classes(self.dropout(self.pool(hidden_BTD, mask_BT))))


class AnswerSpanHead(nn.Module):
    """The start and the end of an answer, scored for each token. -> logits [B, T, 2]; padding can be neither."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.ends = nn.Linear(d_model, 2)
        self.logits = Tap("BT2", "hidden W + b: start, end")

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor | None, table_VD: Tensor | None) -> Tensor:
        logits_BT2 = self.logits(self.ends(hidden_BTD))
        return logits_BT2 if mask_BT is None else logits_BT2.masked_fill(~mask_BT.unsqueeze(-1), -torch.inf)


class SentenceVectorHead(nn.Module):
    """The meaning of a sentence as one vector, to compare with others. -> [B, D]"""

    def __init__(self, config: c.SentenceVector, d_model: int) -> None:
        super().__init__()
        self.normalized = config.normalized
        self.pool = Pooler(config.pooling, config.hidden, d_model)
        self.vector = Tap("BD", "pooled / |pooled|" if config.normalized else "pooled")

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor | None, table_VD: Tensor | None) -> Tensor:
        x_BD = self.pool(hidden_BTD, mask_BT)
        return self.vector(F.normalize(x_BD, dim=-1) if self.normalized else x_BD)


AnyHead = LanguageModelHead | MaskedLanguageModelHead | ClassifierHead | AnswerSpanHead | SentenceVectorHead


def build_head(config: c.Head, d_model: int, n_words: int | None) -> AnyHead:
    """The head a config asks for; `n_words` is the vocabulary of the stack it reads (None: it reads images)."""
    match config:
        case c.LanguageModel():
            return LanguageModelHead(config, d_model, n_words or 0)
        case c.MaskedLanguageModel():
            return MaskedLanguageModelHead(config, d_model, n_words or 0)
        case c.Classifier():
            return ClassifierHead(config, d_model)
        case c.AnswerSpan():
            return AnswerSpanHead(d_model)
        case c.SentenceVector():
            return SentenceVectorHead(config, d_model)
