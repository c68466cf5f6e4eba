"""What an image shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Union, Unpack, overload

import torch
from torch import Tensor

from cutaway.checks import Size, check
from cutaway.decoding.windows import prepared, windows
from cutaway.devices import DTYPES
from cutaway.models.config import Classifier, StackConfig
from cutaway.tasks.batching import map_inputs
from cutaway.tasks.classify import Label, labels, probabilities
from cutaway.tasks.image_processing import pixels_of, processing_of
from cutaway.tasks.options import RuntimeOptions
from cutaway.tasks.requirements import unsupported

if TYPE_CHECKING:
    import PIL.Image

    from cutaway.engines.engine import Engine
    from cutaway.model import Model

IMAGES = 32
"""Images in one batch."""
Image = Union[str, Path, bytes, "PIL.Image.Image", Tensor]
Images = Union[list[str], list[Path], list[bytes], "list[PIL.Image.Image]", list[Tensor], list[Image]]


class RecognizeOptions(RuntimeOptions, total=False):
    """Keyword arguments of recognize."""

    top: int | None
    batch: int


@overload
def recognize(model: "Model", images: Image, **options: Unpack[RecognizeOptions]) -> list[Label]: ...
@overload
def recognize(
    model: "Model", images: Images | tuple[Image, ...], **options: Unpack[RecognizeOptions]
) -> list[list[Label]]: ...
@overload
def recognize(
    model: "Model", images: Iterator[Image], **options: Unpack[RecognizeOptions]
) -> Iterator[list[Label]]: ...
def recognize(
    model: "Model",
    images: Image | Images | tuple[Image, ...] | Iterator[Image],
    *,
    top: int | None = 5,
    engine: str | None = None,
    precision: str | None = None,
    batch: int = IMAGES,
) -> list[Label] | list[list[Label]] | Iterator[list[Label]]:
    """The `top` classes (None: all) of an image, best first.

    An image is a path, the bytes of a file, a Pillow image, a tensor of bytes [C, height, width], or a tensor of floats
    [C, I, J] that is ready for the network. `batch` images are read at once. An empty path has no class: its list is
    empty.
    """
    config = model.config
    stack = config.encoder
    if not isinstance(config.head, Classifier) or not isinstance(stack, StackConfig) or stack.patches is None:
        raise unsupported(model, "recognize")
    check("top", top, Size | None)
    check("batch", batch, Size)
    patches, processing = stack.patches, processing_of(model, stack.patches)
    runner = model.engine(engine, precision).logged(model.name)

    def ready(image: Image) -> Tensor | None:
        return None if isinstance(image, str) and not image.strip() else pixels_of(image, processing, patches)

    def run(stream: Iterator[Image]) -> Iterator[list[Label]]:
        for window in windows(prepared(stream, ready), lambda _: 1, batch):
            seen = [pixels for pixels in window if pixels is not None]
            said = iter(probabilities(model, _read(runner, torch.stack(seen))) if seen else ())
            yield from ([] if pixels is None else labels(model, next(said), top) for pixels in window)

    return map_inputs(images, run, _is_one, "path, bytes, Pillow image or tensor")


def _read(engine: "Engine", images_BCIJ: Tensor) -> Tensor:
    """A network takes images in the dtype that it computes in; tokens have none."""
    dtype = DTYPES.get(engine.precision, torch.float32)
    return engine.read(images_BCIJ.to(engine.device, dtype)).detach().float().cpu()


def _is_one(given: object) -> bool:
    if isinstance(given, Tensor):
        return given.dim() < 4
    return isinstance(given, str | Path | bytes) or hasattr(given, "getexif")  # Pillow's images have it
