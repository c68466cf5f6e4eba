"""torch.compile, tried first: where it fails, the run goes on without it, with a warning."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cutaway.models.network import Network


def compile_network(network: Network, trial: Callable[[], object], warn: Callable[[str], None]) -> bool:
    """Compiles `network.hidden`, all that training calls but the loss; True on success.

    `trial` computes a loss and its gradients once, which compiles. The next batch has another shape, and torch then
    compiles for dynamic shapes; if a later shape needs another compilation and fails, that is a warning, too.
    """
    plain = network.hidden
    made: Callable[..., Tensor] = torch.compile(plain)

    def give_up(error: Exception) -> None:
        if "hidden" in vars(network):
            del network.hidden
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warn(f"torch.compile fails for this model here ({reason[:200]}); going on without it")

    def hidden(*arguments: Any, **options: Any) -> Tensor:
        try:
            return made(*arguments, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            give_up(error)
            return plain(*arguments, **options)

    network.hidden = hidden  # type: ignore[method-assign]  # found before the method of that name
    try:
        trial()
    except Exception as error:  # any error of a compiler
        give_up(error)
    return "hidden" in vars(network)
