"""Functions that run at once, each in a thread."""

import threading
from collections.abc import Callable


def at_once(*functions: Callable[[], object], seconds: float = 120.0) -> None:
    """Runs them, waits for all, and raises the first error of any."""
    errors: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"still at work after {seconds} s"
