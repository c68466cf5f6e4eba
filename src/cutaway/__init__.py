"""cutaway: the Transformer that you can train, run and look inside."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.generation import Generation as Generation
    from cutaway.info.size import size as size
    from cutaway.loading import load as load
    from cutaway.model import Model as Model
    from cutaway.models.build import build as build
    from cutaway.models.presets import preset as preset
    from cutaway.models.recurrent import Recurrent as Recurrent
    from cutaway.models.transformer import Transformer as Transformer
    from cutaway.parts.tap import listening as listening
    from cutaway.seeing.trace.trace import trace as trace

__version__ = "0.1.0"

# A thread of torch's that waits for another spins before it sleeps, for milliseconds by default, which it takes from
# others where cores are busy: 100 captions took 8 s so, and 3.9 with this; on a quiet machine the two are alike. OpenMP
# reads it when torch is loaded, so it is set here.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "10000"

# Loaded on first use, so that `import cutaway` and `cutaway --help` do not wait for torch.
_PUBLIC = {
    "build": "cutaway.models.build",
    "Generation": "cutaway.generation",
    "listening": "cutaway.parts.tap",
    "load": "cutaway.loading",
    "Model": "cutaway.model",
    "preset": "cutaway.models.presets",
    "Recurrent": "cutaway.models.recurrent",
    "size": "cutaway.info.size",
    "trace": "cutaway.seeing.trace.trace",
    "Transformer": "cutaway.models.transformer",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cutaway' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not; the modules that were imported on the way are left out."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
