"""torch.compile, tried before it is trusted: what it can't do is done without it, and the reason is told."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cutaway.models.network import Network


def compile_network(network: Network, trial: Callable[[], object], warn: Callable[[str], None]) -> bool:
    """Lets torch make code for `network.hidden`, all that training calls but the loss; whether it could.

    `trial` computes a loss and its gradients once, which is when code is made. The next batch has another shape, and
    torch then leaves shapes open; should a later one need code of its own and fail, that too ends in a warning.
    """
    plain = network.hidden
    made: Callable[..., Tensor] = torch.compile(plain)

    def give_up(error: Exception) -> None:
        if "hidden" in vars(network):
            del network.hidden
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warn(f"torch.compile can't make code for this model here ({reason[:200]}); going on without it")

    def hidden(*arguments: Any, **options: Any) -> Tensor:
        try:
            return made(*arguments, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            give_up(error)
            return plain(*arguments, **options)

    network.hidden = hidden  # type: ignore[method-assign]  # found before the method of that name
    try:
        trial()
    except Exception as error:  # whatever a compiler may come to say
        give_up(error)
    return "hidden" in vars(network)
