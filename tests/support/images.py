"""Pictures of noise, and their files."""

import io

import torch
from PIL import Image


def picture(width: int = 31, height: int = 17, mode: str = "RGB", seed: int = 0) -> Image.Image:
    generator = torch.Generator().manual_seed(seed)
    channels = len(mode)
    data = torch.randint(256, (height * width * channels,), generator=generator).tolist()
    return Image.frombytes(mode, (width, height), bytes(data))


def as_bytes(image: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()
