"""Images as a network reads them: decoded with care, resized, rescaled and normalised as the checkpoint says."""

import ctypes
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from cutaway.checkpoints.keys import Keys
from cutaway.checkpoints.usage import IMAGES
from cutaway.errors import CheckpointError, InputError
from cutaway.models.config import PatchConfig

if TYPE_CHECKING:
    import PIL.Image

    from cutaway.model import Model

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # others run programs, or nobody needs them
LARGEST = 100_000_000  # bytes of a file; its pixels are bounded by Pillow's MAX_IMAGE_PIXELS


@dataclass(frozen=True)
class Processing:
    """What is done to the pixels, in this order; the defaults are those of transformers' ViTImageProcessor."""

    resize: tuple[int, int] | int | None  # (height, width), or the shorter side, or as it is
    resample: int = 2  # Pillow's number: bilinear
    crop: tuple[int, int] | None = None
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = (0.5,)
    std: tuple[float, ...] = (0.5,)


def processing_of(model: "Model", patches: PatchConfig) -> Processing:
    """By preprocessor_config.json, if the model came with one; mean and deviation as its usage says."""
    files: Mapping[str, Mapping[str, Any]] = {} if model.origin is None else model.origin.files
    keys = Keys(files.get(IMAGES, {}), f"{IMAGES} of {model.name}")
    size = patches.image_size

    def flag(name: str, default: bool) -> bool:
        value = keys.get(name, default)
        if not isinstance(value, bool):
            raise keys.wrong(name, value, "true or false")
        return value

    def is_size(value: int) -> bool:
        return not isinstance(value, bool) and value > 0

    def two(name: str, default: Any) -> tuple[int, int] | int:
        value = keys.get(name, default)
        match value:
            case int() if is_size(value):
                return value, value
            case {"height": int(height), "width": int(width)} if is_size(height) and is_size(width):
                return height, width
            case {"shortest_edge": int(edge)} if is_size(edge) and len(value) == 1:
                return edge
        raise keys.wrong(name, value, "a height and a width, or a shortest_edge")

    resample = keys.get("resample", 2)
    if type(resample) is not int or resample not in range(6):
        raise keys.wrong("resample", resample, "one of Pillow's filters, 0 to 5")
    crop = two("crop_size", size) if flag("do_center_crop", False) else None
    if isinstance(crop, int):
        raise keys.wrong("crop_size", keys.get("crop_size"), "a height and a width")
    return Processing(
        resize=two("size", size) if flag("do_resize", True) else None,
        resample=resample,
        crop=crop,
        scale=keys.number("rescale_factor", 1 / 255) if flag("do_rescale", True) else None,
        mean=(model.usage.image_mean or (0.5,)) if flag("do_normalize", True) else None,
        std=model.usage.image_std or (0.5,),
    )


def pixels_of(image: object, processing: Processing, patches: PatchConfig) -> Tensor:
    """[C, I, J], ready for the network. A float tensor is taken as it is: it was made ready before."""
    wanted = (patches.channels, patches.image_size, patches.image_size)
    if _is_ready(image):
        pixels = image
    else:
        picture = _decoded(image, patches.channels)
        size = processing.crop or _resized(picture, processing)
        _check_shape((patches.channels, *size), wanted, image)  # before anything of that size is made
        pixels = _processed(picture, processing)
    _check_shape(tuple(pixels.shape), wanted, image)
    return pixels


def _check_shape(shape: tuple[int, ...], wanted: tuple[int, ...], image: object) -> None:
    if shape != wanted:
        raise InputError(
            f"{_called(image)} gives pixels of shape {list(shape)}, and the model reads {list(wanted)}"
            + ("; give bytes (uint8) to have them resized" if _is_ready(image) else "")
        )


def _is_ready(image: object) -> TypeGuard[Tensor]:
    return isinstance(image, Tensor) and image.is_floating_point()


def import_pillow() -> None:
    """A sentence where it is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError("images need Pillow, which is not installed: pip install 'cutaway[images]'") from None


def _decoded(image: object, channels: int) -> "PIL.Image.Image":
    """A picture in memory, upright, in as many channels as the model reads."""
    import_pillow()
    import PIL.Image
    import PIL.ImageOps

    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
    if mode is None:
        raise InputError(f"the model reads images of {channels} channels; pictures have 1, 3 or 4: give it a tensor")
    if isinstance(image, Tensor):
        return to_picture(image).convert(mode)
    if isinstance(image, PIL.Image.Image):
        source: PIL.Image.Image | io.BytesIO = image
    else:
        source = io.BytesIO(_bytes(image))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of colours and transparency that RGB can't have
            warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
            picture = source if isinstance(source, PIL.Image.Image) else PIL.Image.open(source, formats=FORMATS)
            return PIL.ImageOps.exif_transpose(picture).convert(mode)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        limit = PIL.Image.MAX_IMAGE_PIXELS
        raise InputError(f"{_called(image)} has more than {limit:,} pixels, as a decompression bomb has") from None
    except PIL.UnidentifiedImageError:
        raise InputError(f"{_called(image)} is not an image (known: {', '.join(FORMATS)})") from None
    except Exception as error:  # decoders of broken files raise whatever they stumble over
        raise InputError(f"{_called(image)} can't be read as an image: {error}") from None


def _called(image: object) -> str:
    if isinstance(image, str | Path):
        return str(image)[:200]
    return f"the image ({len(image):,} bytes)" if isinstance(image, bytes) else f"the image ({type(image).__name__})"


def _bytes(image: object) -> bytes:
    if isinstance(image, str | Path):
        try:
            with Path(image).expanduser().open("rb") as file:
                data = file.read(LARGEST + 1)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"{_called(image)} can't be read: {getattr(error, 'strerror', None) or error}") from None
    elif isinstance(image, bytes):
        data = image
    else:
        raise InputError(f"expected an image: a path, bytes, a Pillow image or a tensor, found {type(image).__name__}")
    if len(data) > LARGEST:
        raise InputError(f"{_called(image)} has more than {LARGEST:,} bytes; make it smaller")
    return data


def to_picture(pixels: Tensor) -> "PIL.Image.Image":
    """Bytes [channels, height, width] as a picture of Pillow's."""
    import_pillow()
    import PIL.Image

    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(pixels.shape[0] if pixels.dim() == 3 else 0)
    if pixels.dtype != torch.uint8 or mode is None or 0 in pixels.shape:
        raise InputError(
            f"a tensor of {str(pixels.dtype).removeprefix('torch.')} {list(pixels.shape)} is no image; give bytes "
            f"(uint8) [channels, height, width], or floats that are ready for the network"
        )
    last = pixels.cpu().permute(1, 2, 0).contiguous()
    data = ctypes.string_at(last.data_ptr(), last.numel())  # without numpy, which torch does not need
    return PIL.Image.frombytes(mode, (pixels.shape[2], pixels.shape[1]), data)


def _resized(picture: "PIL.Image.Image", processing: Processing) -> tuple[int, int]:
    """Height and width before anything is cut off."""
    height, width = picture.height, picture.width
    if isinstance(processing.resize, int):
        short, long = sorted((height, width))
        longer = int(processing.resize * long / short)
        return (longer, processing.resize) if height > width else (processing.resize, longer)
    return processing.resize or (height, width)


def _processed(picture: "PIL.Image.Image", processing: Processing) -> Tensor:
    height, width = _resized(picture, processing)
    if (width, height) != picture.size:
        import PIL.Image

        if width * height > (PIL.Image.MAX_IMAGE_PIXELS or width * height):
            raise InputError(f"an image of {picture.width} × {picture.height} would be resized to {width} × {height}")
        picture = picture.resize((width, height), processing.resample)
    flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    pixels_CIJ = flat.view(height, width, -1).permute(2, 0, 1)
    if processing.crop is not None:
        pixels_CIJ = _cropped(pixels_CIJ, processing.crop)
    # in transformers' order and precisions, so that not even the last bit differs
    x_CIJ = pixels_CIJ.float() if processing.scale is None else (pixels_CIJ.double() * processing.scale).float()
    if processing.mean is not None:
        mean_C, std_C = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (processing.mean, processing.std))
        if len(x_CIJ) % len(mean_C) or len(x_CIJ) % len(std_C):
            raise CheckpointError(f"image_mean has {len(mean_C)} numbers, an image {len(x_CIJ)} channels")
        x_CIJ = (x_CIJ - mean_C) / std_C
    return x_CIJ.contiguous()


def _cropped(pixels_CIJ: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle; what is missing around a smaller image is black."""
    height, width = pixels_CIJ.shape[1:]
    down, right = max(size[0] - height, 0), max(size[1] - width, 0)
    if down or right:
        around = (-(-right // 2), right // 2, -(-down // 2), down // 2)
        pixels_CIJ = torch.nn.functional.pad(pixels_CIJ, around)
        height, width = pixels_CIJ.shape[1:]
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return pixels_CIJ[:, top : top + size[0], left : left + size[1]]
