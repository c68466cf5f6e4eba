"""A table that is looked up: one learned vector for each word, segment, position or distance."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.checks import describe
from cutaway.errors import InputError


class EmbeddingTable(nn.Module):
    """table[id]. ids [...] -> [..., D]; `what` names a row in errors."""

    def __init__(self, n_rows: int, d_model: int, what: str) -> None:
        super().__init__()
        self.n_rows, self.what = n_rows, what
        self.weight = nn.Parameter(torch.empty(n_rows, d_model))
        if not self.weight.is_meta:  # normal_ on the meta device loads torch's compiler: a second, to do nothing
            nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        if not isinstance(ids, Tensor):
            raise InputError(f"{self.what} ids are {describe(ids)}; give a torch tensor of whole numbers")
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            dtype = str(ids.dtype).removeprefix("torch.")
            raise InputError(f"{self.what} ids have dtype {dtype}; they must be whole numbers (torch.long)")
        if ids.dtype not in (torch.int64, torch.int32):  # the two that torch looks up
            ids = ids.long()
        if torch.compiler.is_compiling():
            return F.embedding(ids, self.weight)
        try:
            return F.embedding(ids, self.weight)
        except RuntimeError:
            if ids.device == self.weight.device:
                raise
            raise InputError(
                f"{self.what} ids are on {ids.device}, this model on {self.weight.device}; move them with "
                f".to(network.device)"
            ) from None
        except IndexError:
            wrong = ids[(ids < 0) | (ids >= self.n_rows)].flatten()[0].item()
            raise InputError(
                f"{self.what} id {wrong} is outside this model's {self.n_rows} (0 to {self.n_rows - 1}); "
                "was the input prepared for another model?"
            ) from None

    def extra_repr(self) -> str:
        return f"{self.n_rows}, {self.weight.shape[1]}"
