"""What beam search chooses from at a step, and the finished texts it keeps."""

from dataclasses import dataclass, field

from torch import Tensor

from cutaway.generation import Written

NEG_INF = -1.0e9  # the score of what must not be chosen, but is if there is nothing else


def is_alive(score: float) -> bool:
    return score > NEG_INF / 2


@dataclass
class Candidates:
    """Continuations of each text, [B, K] each: the sum of log-probabilities, which beam of the text, which token."""

    scores: Tensor
    parents: Tensor
    tokens: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.scores, self.parents, self.tokens


@dataclass
class HypothesisPool:
    """The best finished texts of one prompt (or of one group of its beams), at most `size`, best first."""

    size: int
    texts: list[Written] = field(default_factory=list)

    def takes(self, score: float) -> bool:
        return len(self.texts) < self.size or score > self.texts[-1].score

    def add(self, written: Written) -> None:
        self.texts = sorted([*self.texts, written], key=lambda each: -each.score)[: self.size]

    @property
    def is_full(self) -> bool:
        return len(self.texts) == self.size

    @property
    def worst(self) -> float:
        """What a text must be better than to be taken."""
        return self.texts[-1].score if self.is_full else NEG_INF
