"""`cutaway studio`: the page that shows models at work, on this machine."""

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.options import SHIPPED_TRANSLATOR, DeviceOptions, with_options
from cutaway.cli.terminal import show
from cutaway.errors import ConfigError, InputError

HOST = "127.0.0.1"
PORTS = range(8300, 8320)
"""Tried in this order if none is asked for."""


@with_options(DeviceOptions)
def studio(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Folders or hub names; by default the translator in cutaway."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="By default the first free one from 8300.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    **given: Any,
) -> None:
    """A page on this machine that shows models at work: every value, every head, every word; change them and see."""
    options, names = DeviceOptions(**given), models or [SHIPPED_TRANSLATOR]
    try:
        from cutaway.studio.connections import uvicorn_server
        from cutaway.studio.server import server
        from cutaway.studio.studio import Studio
    except ModuleNotFoundError as error:
        raise ConfigError(f"the studio needs {error.name}: pip install 'cutaway[studio]'") from None
    from cutaway.loading import load

    if len(set(names)) < len(names):
        raise InputError("a model is named twice; name each once")
    listener = _listener(port)
    served = [load(name, device=options.device, dtype=options.dtype) for name in names]
    for model, name in zip(served, _short(names), strict=True):
        model.name = name
    token = secrets.token_urlsafe(32)
    runner = uvicorn_server(server(Studio(served), token))
    address = f"http://{HOST}:{listener.getsockname()[1]}/?token={token}"
    show(f"{address}  (Ctrl-C ends it)", flush=True)
    if browser and _has_screen():
        threading.Timer(0.5, webbrowser.open, [address]).start()
    runner.run(sockets=[listener])


def _short(names: Sequence[str]) -> list[str]:
    """A folder goes by its own name, where that is not another's too."""
    last = [Path(name).name if Path(name).is_dir() else name for name in names]
    return [short if short and last.count(short) == 1 else name for short, name in zip(last, names, strict=True)]


def _listener(port: int | None) -> socket.socket:
    """A socket on the port asked for, or on the first free one."""
    problem = ""
    for number in PORTS if port is None else [port]:
        # by its protocol asyncio knows that small answers need not wait for each other (TCP_NODELAY)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
        except OSError as error:
            listener.close()
            problem = error.strerror or str(error)
            continue
        listener.listen(128)
        return listener
    which = f"port {port}" if port is not None else f"any port from {PORTS.start} to {PORTS.stop - 1}"
    raise ConfigError(f"can't listen on {which} of {HOST}: {problem}; choose another with --port")


def _has_screen() -> bool:
    """Over ssh, or in a script, there is nobody to show a browser to."""
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
