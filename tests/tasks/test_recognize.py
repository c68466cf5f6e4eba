"""recognize beside transformers: the same pixels, the same classes."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image

import cutaway
from cutaway.errors import CheckpointError, InputError
from cutaway.model import Model
from cutaway.tasks import image_processing as module
from cutaway.tasks.image_processing import pixels_of, processing_of
from tests.support import hf_models as tiny
from tests.support.images import as_bytes, picture

PREPROCESSORS: dict[str, dict[str, Any]] = {
    "plain": {"do_resize": True, "size": {"height": 12, "width": 12}},
    "bicubic, own mean": {
        "size": {"height": 12, "width": 12}, "resample": 3, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]
    },
    "an old file: one number": {"size": 12, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    "shortest edge, then the middle": {
        "size": {"shortest_edge": 14}, "do_center_crop": True, "crop_size": {"height": 12, "width": 12}
    },
    "smaller than the crop": {
        "size": {"height": 9, "width": 10}, "do_center_crop": True, "crop_size": {"height": 12, "width": 12}
    },
    "not normalised": {"size": {"height": 12, "width": 12}, "do_normalize": False},
    "from 0 to 255": {"size": {"height": 12, "width": 12}, "do_rescale": False, "do_normalize": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return cutaway.load(tiny.vit(tmp_path_factory.mktemp("vit"), PREPROCESSORS["plain"]))


def pixels(model: Model, image: object) -> torch.Tensor:
    patches = model.config.encoder.patches  # type: ignore[union-attr]
    assert patches is not None
    return pixels_of(image, processing_of(model, patches), patches)


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_the_pixels_and_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = cutaway.load(tiny.vit(tmp_path, PREPROCESSORS[name]))
    processor = hf.ViTImageProcessorPil.from_pretrained(tmp_path)
    network = hf.ViTForImageClassification.from_pretrained(tmp_path).eval()
    for size in ((31, 17), (17, 31), (12, 12), (5, 6), (200, 150)):
        image = picture(*size)
        theirs = processor(image, return_tensors="pt")["pixel_values"]
        assert torch.equal(pixels(model, image), theirs[0]), f"to the last bit, {size}"
        with torch.no_grad():
            expected = network(theirs).logits.softmax(-1)[0]
        ours = {label.number: label.probability for label in model.recognize(image)}
        assert [ours[number] for number in range(5)] == pytest.approx(expected.tolist(), rel=1e-4)


def test_every_kind_of_input_gives_the_same(model: Model, tmp_path: Path) -> None:
    image = picture()
    path = tmp_path / "image.png"
    image.save(path)
    tensor = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(17, 31, 3).permute(2, 0, 1)
    inputs = [path, str(path), path.read_bytes(), image, tensor, pixels(model, image)]
    first = model.recognize(image)
    assert [label.label for label in first] == [model.usage.labels[label.number] for label in first]
    for given in inputs:
        assert model.recognize(given) == first, type(given)
    for found in (model.recognize(inputs), list(model.recognize(iter(inputs)))):
        assert len(found) == len(inputs)
        for labels in found:
            assert [label.number for label in labels] == [label.number for label in first]
            assert [label.probability for label in labels] == pytest.approx(
                [label.probability for label in first], rel=1e-4
            )
    assert isinstance(model.recognize(iter(inputs)), Iterator)
    assert len(model.recognize(torch.stack([tensor, tensor]))) == 2  # type: ignore[arg-type]
    assert len(model.recognize(image, top=2)) == 2
    assert model.recognize(["", image], top=1) == [[], first[:1]]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA", "I;16", "CMYK"])
def test_other_colours_are_read_as_transformers_pipeline_reads_them(model: Model, mode: str) -> None:
    image = picture(20, 20, "RGBA" if mode == "RGBA" else "RGB").convert("L" if mode == "I;16" else mode)
    image = image.convert("I").convert("I;16") if mode == "I;16" else image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(pixels(model, image), pixels(model, image.convert("RGB")))


def test_a_photograph_is_turned_upright(model: Model) -> None:
    image = picture()
    exif = image.getexif()
    exif[0x0112] = 6  # turned by 90°
    out = io.BytesIO()
    image.save(out, "PNG", exif=exif)
    upright = image.transpose(Image.Transpose.ROTATE_270)
    assert torch.equal(pixels(model, out.getvalue()), pixels(model, upright))
    assert not torch.equal(pixels(model, out.getvalue()), pixels(model, picture()))


def test_without_a_file_the_usage_says_how(tmp_path: Path) -> None:
    tiny.vit(tmp_path)
    model = cutaway.load(tmp_path)
    image = picture()
    processor = hf.ViTImageProcessorPil(size={"height": 12, "width": 12})
    assert torch.equal(pixels(model, image), processor(image, return_tensors="pt")["pixel_values"][0])


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes whose header says how large it is."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(10_000, 10_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused(model: Model, width: int, height: int) -> None:
    with pytest.raises(InputError, match="has more than 89,478,485 pixels, as a decompression bomb has"):
        model.recognize(bomb(width, height))


def test_what_is_no_image_is_told(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.png"
    text.write_text("this is no image")
    with pytest.raises(InputError, match=r"text.png is not an image \(known: BMP, GIF, JPEG, PNG"):
        model.recognize(text)
    with pytest.raises(InputError, match="nowhere.png can't be read: No such file"):
        model.recognize("nowhere.png")
    with pytest.raises(InputError, match="can't be read: Is a directory"):
        model.recognize(tmp_path)
    with pytest.raises(InputError, match=r"the image \(0 bytes\) is not an image"):
        model.recognize(b"")
    whole = as_bytes(picture(200, 200), "JPEG")
    with pytest.raises(InputError, match="can't be read as an image: .*truncated"):
        model.recognize(whole[: len(whole) // 2])
    for wrong in (torch.zeros(12, 12), torch.zeros(2, 12, 12, dtype=torch.uint8), torch.zeros(3, 0, 5).byte()):
        with pytest.raises(InputError, match="is no image|gives pixels of shape"):
            model.recognize(wrong)
    with pytest.raises(InputError, match=r"gives pixels of shape \[3, 30, 30\], and the model reads \[3, 12, 12\]"):
        model.recognize(torch.zeros(3, 30, 30))
    with pytest.raises(InputError, match="expected an image: a path, bytes, a Pillow image or a tensor, found int"):
        model.recognize([3])  # type: ignore[list-item]
    monkeypatch.setattr(module, "LARGEST", 100)
    with pytest.raises(InputError, match="has more than 100 bytes; make it smaller"):
        model.recognize(whole)


def test_the_images_before_a_bad_one_are_answered(model: Model) -> None:
    stream = model.recognize(iter([picture(), picture(), b"bad", picture()]))
    assert [len(next(stream)) for _ in range(2)] == [5, 5]
    with pytest.raises(InputError):
        next(stream)


def test_any_bytes_give_an_answer_or_a_sentence(model: Model) -> None:
    """Broken files of every kind, 40 each: never another error than ours."""
    generator = torch.Generator().manual_seed(0)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        whole = bytearray(as_bytes(picture(40, 30), kind))
        for _ in range(40):
            broken = bytearray(whole)
            for _ in range(6):
                place, byte = torch.randint(2**31, (2,), generator=generator).tolist()
                broken[place % len(broken)] = byte % 256
            try:
                found = len(model.recognize(bytes(broken)))
            except InputError as error:
                found = 5 * len(str(error).splitlines())
            assert found == 5


def test_settings_that_can_not_be_followed_are_told(tmp_path: Path) -> None:
    for i, (settings, message) in enumerate(
        [
            ({"size": {"longest_edge": 5}}, "a height and a width, or a shortest_edge"),
            ({"do_resize": "yes"}, "true or false"),
            ({"resample": 99}, "one of Pillow's filters"),
            ({"resample": 2.0}, "one of Pillow's filters"),
            ({"size": True}, "a height and a width, or a shortest_edge"),
            ({"size": {"height": 9, "width": 9}}, "the model reads"),
            ({"image_mean": [0.5, 0.5], "image_std": [0.5, 0.5]}, "image_mean has 2 numbers, an image 3 channels"),
        ]
    ):
        model = cutaway.load(tiny.vit(tmp_path / str(i), settings))
        with pytest.raises((CheckpointError, InputError), match=message):
            model.recognize(picture())
    with pytest.raises(CheckpointError, match=r"image_std is '\[0.5, 0, 0.5\]'; expected a number other than 0"):
        cutaway.load(tiny.vit(tmp_path / "none", {"image_std": [0.5, 0, 0.5]}))


def test_nothing_is_made_of_a_size_that_the_model_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder could ask for 5 GB, and for more than there is."""
    monkeypatch.setattr(module, "_processed", lambda *_: pytest.fail("pixels were made"))
    for i, settings in enumerate(
        [
            {"do_center_crop": True, "crop_size": {"height": 2**40, "width": 2**40}},
            {"size": {"height": 9000, "width": 9000}},
            {"size": {"shortest_edge": 9000}},
            {"do_resize": False},
        ]
    ):
        model = cutaway.load(tiny.vit(tmp_path / str(i), settings))
        with pytest.raises(InputError, match=r"gives pixels of shape .*, and the model reads \[3, 12, 12\]"):
            model.recognize(picture())


def test_models_that_can_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is an encoder with a classifier head; recognize needs a classifier of image"):
        cutaway.load(tiny.classifier(tmp_path)).recognize(picture())
