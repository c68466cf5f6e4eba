"""int8: close to float32, the same with kernels and without, kept in a cache, heard by who listens."""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway
from cutaway import kernels
from cutaway.cache import cache_folder
from cutaway.decoding.search import write
from cutaway.engines import choose, fused_modules, int8, int8_files, int8_layers
from cutaway.engines.fused_stack import FusedStack
from cutaway.engines.int8 import Quantizer, in_int8
from cutaway.engines.int8_layers import Int8Linear
from cutaway.engines.quantization import QuantizedWeight, WeightFormat, quantized, weight_format
from cutaway.errors import ConfigError
from cutaway.generation import Generation, Prompt
from cutaway.kernels.attention import by_torch
from cutaway.loading import load
from cutaway.model import Model
from cutaway.models.usage import Usage
from cutaway.parts.feedforward import ACTIVATIONS
from cutaway.parts.kv_cache import KV
from cutaway.parts.masks import Bias
from cutaway.parts.norms import RMSNorm
from cutaway.parts.positions import rotary
from cutaway.parts.stack import Stack
from tests.support.families import FAMILIES, TRANSFORMERS, example_inputs, noisy_network, shrunk

BUILT = kernels.kernels()
needs_compiler = pytest.mark.skipif(
    BUILT is None, reason="the kernels are off, or no C compiler built them; torch's steps are tested without"
)
needs_products = pytest.mark.skipif(
    BUILT is None or not BUILT.multiply,
    reason="int8 kernels are off, or lack a C compiler, AVX2 or AVX-512 VNNI; torch's steps are tested without",
)


def layer(n_out: int, n_in: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(n_out * 1000 + n_in)
    return nn.Linear(n_in, n_out, bias=bias)


FAR, WIDER, FARTHEST = 5.0, 1.25, 200.0
FEW = 96 if (built := kernels.kernels()) is not None and built.group == 8 else 48  # with AVX2 each costs more
"""Beyond FAR times the mean magnitude of a row a number is an outlier; if more than one of FEW is, the range is WIDER;
the largest is at most FARTHEST times the range (kernels/products.c)."""


def ranges(x: Tensor) -> Tensor:
    """How far the 255 steps of each row reach at most."""
    magnitudes = x.abs()
    far = torch.maximum(FAR * magnitudes.mean(-1, keepdim=True), magnitudes.amax(-1, keepdim=True) / FARTHEST)
    while (too_many := (magnitudes > far).sum(-1, keepdim=True) > x.shape[-1] // FEW).any():
        far = torch.where(too_many, far * WIDER, far)
    return far


def exact(linear: Int8Linear, weight: QuantizedWeight, x: Tensor) -> Tensor:
    """y = x Wᵀ + b of the quantised numbers, in float64; x is quantised too, where kernels are."""
    rows = x.double()
    if linear.kernels is not None:
        far = ranges(x).double()
        low, high = rows.amin(-1, keepdim=True).maximum(-far), rows.amax(-1, keepdim=True).minimum(far)
        step = ((high - low) / 255).clamp(min=1e-30)
        rows = low + ((rows - low) / step + 0.5).floor() * step  # an outlier's, too, which are below 0 or beyond 255
    y = rows @ weight.dequantized().double().T
    return y if linear.bias is None else y + linear.bias.double()


# Rows: up to the three that are computed at once, and more. Widths: of four and not, of whole groups and not; columns:
# tiles of 64 and not.
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 40, 600])
@pytest.mark.parametrize(("n_out", "n_in"), [(64, 64), (33, 100), (7, 5), (4, 130), (3, 65), (500, 192), (70, 1200)])
@pytest.mark.parametrize("outliers", [0, 1, 9])
@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_products), False])
def test_products_are_those_of_the_quantised_numbers(
    rows: int, n_out: int, n_in: int, outliers: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_layers, "kernels", kernels.kernels if compiled else lambda: None)
    plain = layer(n_out, n_in, bias=rows % 2 == 0)
    linear, weight = Quantizer().linear("", plain), quantized(plain.weight)
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, n_in, generator=generator)
    x[:, torch.randint(n_in, (outliers,), generator=generator)] *= 1000
    # Sums of a group are whole numbers, exact; the rest is a handful of float32 operations. A number between two steps
    # may go to either, as a product's last bit falls: a step is 1/255 of the row's span, times a weight (under 0.5).
    span = 2 * float(ranges(x).max())
    difference = (linear(x).double() - exact(linear, weight, x)).abs()
    assert difference.max() < span / 255 * 0.5
    assert difference.median() < 1e-6 * float(x.abs().amax())


@needs_products
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    linear = Quantizer().linear("", layer(70, 300))
    x = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    x[::3, 7] = 500.0
    together = linear(x)
    for n in (1, 2, 3, 5):
        assert torch.equal(torch.cat([linear(rows) for rows in x.split(n)]), together)


@needs_products
@pytest.mark.parametrize("value", [1e4, -1e4])
def test_an_outlier_does_not_make_the_others_coarse(value: float) -> None:
    """One number of ten thousand times the others: with a scale for the whole row, all others became 0."""
    plain = layer(64, 512, bias=False)
    x = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
    x[:, 100] = value
    with torch.no_grad():
        plain.weight[:, 100] = 0.0
        expected, found = plain(x), Quantizer().linear("", plain)(x)
    # the outlier raises the mean to 20, so that the range is ±100 and a step 0.4, where a whole row's would be 39
    assert F.cosine_similarity(found, expected).min() > 0.9


@needs_products
def test_the_largest_sums_fit() -> None:
    """Neighbouring weights and numbers as large as can be: what is added in 16 bits on the way must not be cut off."""
    plain = nn.Linear(2000, 3, bias=False)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([1.0, -1.0, 0.5])[:, None])
    x = torch.full((2, 2000), 2.0)
    x[:, 0] = 0.0
    expected = x @ quantized(plain.weight).dequantized().t()  # what is rounded there is not this test's
    torch.testing.assert_close(Quantizer().linear("", plain)(x), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("wanted", [WeightFormat(64, None), WeightFormat(8, 128)])
@pytest.mark.parametrize("width", [31, 64, 200])
def test_quantised_weights_are_within_half_a_step(wanted: WeightFormat, width: int) -> None:
    weight = torch.randn(200, width)
    weight[:, 0] *= 100  # one group has wide steps, and no other
    found = quantized(weight, wanted)
    found.check(200, width)
    steps = (found.multipliers * found.scales[:, None]).repeat_interleave(wanted.group, dim=1)[:, :width]
    assert ((found.dequantized() - weight).abs() <= steps * 0.5001).all()
    assert found.multipliers.amax(1).eq(255).all()
    fours = F.pad(found.numbers.int(), (0, -width % 8)).unflatten(1, (-1, 2, 2, 2))
    together = torch.maximum(*(part.clamp(min=0).sum((2, 4)) for part in (fours, -fours)))
    if wanted.largest_four is not None:
        assert together.max() in (126, 127, 128)
    else:
        assert found.numbers.abs().amax(-1).ge(126).all()  # a multiplier is rounded up


def test_stored_numbers_of_another_layer_are_refused() -> None:
    """The kernels read as much as the sizes promise."""
    weight = quantized(torch.randn(8, 130))
    with pytest.raises(ValueError, match="expected"):
        weight.check(8, 64)
    for wrong in ({"scales": weight.scales.double()}, {"multipliers": weight.multipliers[:, :1]}):
        with pytest.raises(ValueError, match="expected"):
            replace(weight, **wrong).check(8, 130)


@pytest.mark.parametrize("rows", [2, 20])
def test_rows_without_a_span(rows: int) -> None:
    """Zeros give the bias; a constant is exact but for the weights."""
    plain = layer(8, 8)
    linear = Quantizer().linear("", plain)
    assert torch.equal(linear(torch.zeros(rows, 8)), linear.bias.expand(rows, 8))
    expected = 3 * quantized(plain.weight).totals() + linear.bias
    torch.testing.assert_close(linear(torch.full((rows, 8), 3.0)), expected.expand(rows, 8))


@needs_products
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("rows", [2, 20])
def test_activations_of_the_kernels(name: str, rows: int) -> None:
    linear = Quantizer().linear("", layer(70, 40))
    x = 5 * torch.randn(rows, 40, generator=torch.Generator().manual_seed(1))
    activated = linear.activated(int8_layers.FUSED[ACTIVATIONS[name]])(x)
    # GELU is a polynomial off by 1.3e-4 at most, where it ends; the others are exact to rounding.
    atol = 1.5e-4 if name.startswith("gelu") else 2e-6
    torch.testing.assert_close(activated, ACTIVATIONS[name](linear(x)), rtol=1e-5, atol=atol)


@needs_compiler
@pytest.mark.parametrize("T", [1, 2, 5, 9])
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 32), (4, 2, 8), (6, 1, 24)])
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_of_the_kernels(T: int, heads: int, groups: int, width: int, repeats: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(T)
    B, S = 6, 11
    q = torch.randn(B, T, heads, width, generator=generator).transpose(1, 2)
    k, v = (torch.randn(B // repeats, groups, 2 * S, width, generator=generator)[:, :, :S] for _ in range(2))
    dense = None
    if biased:
        dense = torch.randn(B // repeats, 1, 1, S, generator=generator)
        dense[0, ..., 3:] = -torch.inf
    fused = fused_modules.FusedAttention(heads * width, heads, n_kv_heads=groups, d_head=width)
    fused.kernels, fused.scale = kernels.kernels(), 0.3
    ours = fused.kernel(q, KV(k, v), Bias(dense), 0.0)
    wide = [each.repeat_interleave(repeats, dim=0) for each in (k, v)]
    bias = None if dense is None else dense.repeat_interleave(repeats, dim=0)
    torch.testing.assert_close(ours, by_torch(q, *wide, bias, 0.3), rtol=1e-5, atol=1e-6)  # float32, in another order


@needs_compiler
def test_the_smallest_numbers_stay() -> None:
    """Loading a library that was linked with -ffast-math would round them to 0, in all of the process."""
    assert torch.tensor(1e-40).mul(0.5) > 0


@needs_compiler
def test_rms_norm_of_the_kernels() -> None:
    norm = RMSNorm(37, 1e-5)
    nn.init.normal_(norm.weight)
    x = torch.randn(3, 5, 37)
    exact = norm(x)
    norm.__class__ = fused_modules.FusedRMSNorm
    torch.testing.assert_close(norm(x), exact, rtol=1e-5, atol=1e-6)  # float32, in another order


@needs_compiler
@pytest.mark.parametrize("places", [torch.arange(5), torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])])
def test_rotation_of_the_kernels(places: torch.Tensor) -> None:
    plain = rotary(places, 8)
    x = torch.randn(2, 5, 3, 8).transpose(1, 2)
    torch.testing.assert_close(fused_modules.FusedRotation(plain.cos, plain.sin).rotate(x), plain.rotate(x))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_runs_close_to_float32(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)).eval(), example_inputs(shrunk(name))
    with torch.inference_mode():
        plain, quick = (each(*inputs.args, **inputs.options) for each in (network, in_int8(network)))
    real = torch.isfinite(plain)
    # 8 bits are steps of 1/127 of the largest number; a few layers of them turn an output by a few per cent.
    assert F.cosine_similarity(plain[real], quick[real], dim=0) > 0.99


@pytest.mark.parametrize("name", FAMILIES)
def test_who_listens_hears_the_int8_network(name: str) -> None:
    """Taps are shared: looking at model.network shows what the engine computes, and changes nothing."""
    network, inputs = noisy_network(shrunk(name)).eval(), example_inputs(shrunk(name))
    quick = in_int8(network)
    with torch.inference_mode():
        alone = quick(*inputs.args, **inputs.options)
        heard: list[str] = []
        with cutaway.listening(network, {"*": lambda value, name: heard.append(name)}):
            looked_at = quick(*inputs.args, **inputs.options)
    assert heard
    real = torch.isfinite(alone)
    # The steps add in another order than the fused kernels, which moves a number to the next of its 255 steps at times.
    assert F.cosine_similarity(alone[real], looked_at[real], dim=0) > 0.999


@pytest.fixture
def saved(tmp_path):
    return load(Model(noisy_network(shrunk("gpt2"))).save(tmp_path / "model"))


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """Where int8 weights are kept: an empty cache."""
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    int8_files._warn.cache_clear()
    return tmp_path / "cache" / "int8"


def read(folder: Path) -> torch.Tensor:
    return load(folder).engine("native", "int8").read(torch.tensor([[1, 2, 3]]))


def place(folder: Path) -> Path:
    entry = int8_files.entry(folder, weight_format())
    return cache_folder(entry.kind) / entry.name


def test_int8_weights_are_kept_and_found_again(saved: Model, kept: Path, monkeypatch) -> None:
    first = read(saved.folder)
    assert len(list(kept.iterdir())) == 1
    monkeypatch.setattr(int8, "quantized", lambda weight: pytest.fail("quantised again"))
    assert torch.equal(first, read(saved.folder))


def test_nothing_is_written_beside_a_model(saved: Model, kept: Path) -> None:
    """Its folder may be a package's, whose next wheel would pack it; an old file there is not believed either."""
    old = saved.folder / "cutaway-int8.safetensors"
    old.write_bytes(b"of an earlier version")
    before = {path: path.stat().st_mtime_ns for path in (saved.folder, *saved.folder.iterdir())}
    expected = read(saved.folder)
    assert {path: path.stat().st_mtime_ns for path in (saved.folder, *saved.folder.iterdir())} == before
    old.unlink()
    assert torch.equal(read(saved.folder), expected)
    assert len(list(kept.iterdir())) == 1


def test_kept_weights_of_another_model_are_not_used(saved: Model, kept: Path, tmp_path) -> None:
    read(saved.folder)
    other = noisy_network(shrunk("gpt2"), seed=7)
    folder = Model(other, None).save(tmp_path / "other")
    shutil.copytree(place(saved.folder), place(folder))
    assert torch.equal(read(folder), in_int8(other)(torch.tensor([[1, 2, 3]])))
    assert len(list(kept.iterdir())) == 2


def test_a_model_saved_again_replaces_what_was_kept(saved: Model, kept: Path) -> None:
    read(saved.folder)
    other = noisy_network(shrunk("gpt2"), seed=7)
    Model(other, None).save(saved.folder)
    assert torch.equal(read(saved.folder), in_int8(other)(torch.tensor([[1, 2, 3]])))
    assert len(list(kept.iterdir())) == 1


def test_a_model_of_the_same_size_and_time_is_not_taken_for_the_one_before(saved: Model, kept: Path) -> None:
    """Whoever unpacks an archive over a model sets both; the time of the last change (ctime) nobody can set."""
    read(saved.folder)
    weights = saved.folder / "model.safetensors"
    before = weights.stat()
    other = noisy_network(shrunk("gpt2"), seed=7)
    shutil.copyfile(Model(other, None).save(kept.parent / "other") / weights.name, weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size
    assert torch.equal(read(saved.folder), in_int8(other)(torch.tensor([[1, 2, 3]])))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: data[:-9] + bytes(9)], ids=["cut", "changed"])
def test_a_damaged_file_is_made_again(saved: Model, kept: Path, damage: Callable[[bytes], bytes]) -> None:
    expected = read(saved.folder)
    (path,) = kept.glob("*/*.safetensors")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert torch.equal(read(saved.folder), expected)
    assert path.read_bytes() == whole


def test_scales_of_another_dtype_are_not_believed(saved: Model) -> None:
    """A kernel takes their address, and reads four bytes for each."""
    quantizer = Quantizer()
    in_int8(saved.network, quantizer)
    halves = {name: value.half() if value.is_floating_point() else value for name, value in quantizer.made.items()}
    with pytest.raises(ValueError, match="quantised numbers are .*float16.*expected"):
        in_int8(saved.network, Quantizer(halves))


def test_the_cache_is_bounded(saved: Model, kept: Path, tmp_path, monkeypatch) -> None:
    read(saved.folder)
    first = place(saved.folder)
    n_bytes = sum(path.stat().st_size for path in first.iterdir())
    monkeypatch.setattr(int8_files, "LARGEST", int(2.5 * n_bytes))
    folders = [Model(noisy_network(shrunk("gpt2"), seed=i), None).save(tmp_path / f"model {i}") for i in (1, 2)]
    read(folders[0])
    (kept / "of-an-earlier-version.safetensors").write_bytes(bytes(n_bytes))
    os.utime(kept / "of-an-earlier-version.safetensors", (0, 0))
    read(saved.folder)  # used last, so it stays
    abandoned = kept / ".writing-x"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    read(folders[1])
    assert set(kept.iterdir()) == {first, place(folders[1])}
    monkeypatch.setattr(int8_files, "LARGEST", n_bytes // 2)
    Model(noisy_network(shrunk("gpt2"), seed=3), None).save(folders[1])
    read(folders[1])
    assert first.is_dir(), "what is too large is not kept, and drives nothing out"


def test_a_cache_that_cant_be_written_costs_time_only(saved: Model, kept: Path, monkeypatch, caplog) -> None:
    expected = read(saved.folder)
    kept.parent.with_name("file").write_text("no folder")
    monkeypatch.setenv("CUTAWAY_CACHE", str(kept.parent.with_name("file")))
    assert torch.equal(read(saved.folder), expected)
    assert torch.equal(read(saved.folder), expected)
    assert [record.getMessage() for record in caplog.records] == [
        "int8 weights can't be kept in the cache (Not a directory), and are computed at every start; "
        "CUTAWAY_CACHE names another folder"
    ]


def test_a_full_disk_costs_time_only(saved: Model, kept: Path, monkeypatch, caplog) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(int8_files, "write_weights", full)
    assert len(read(saved.folder)) == 1
    assert "No space left on device" in caplog.text
    assert list(kept.iterdir()) == []


def test_an_engine_follows_changed_weights(saved: Model) -> None:
    before = saved.engine("native", "int8")
    assert saved.engine("native", "int8") is before
    with torch.no_grad():
        next(saved.network.parameters()).add_(0.1)
    assert saved.engine("native", "int8") is not before


def test_unknown_engines_and_precisions_are_told(saved: Model) -> None:
    with pytest.raises(ConfigError, match="no engine 'nativ'; did you mean 'native'"):
        saved.engine("nativ")
    with pytest.raises(ConfigError, match="no precision 'int4'"):
        saved.engine("native", "int4")


def test_small_models_go_to_ctranslate2_where_it_is_installed(saved: Model, monkeypatch) -> None:
    monkeypatch.setattr(choose, "ctranslate2_is_faster", lambda n_weights: True)
    assert saved.engine().name == "ctranslate2"
    saved.engines.clear()
    monkeypatch.setattr(choose, "has_ctranslate2", lambda: False)
    assert saved.engine().name == "native"


def test_bfloat16_is_a_copy(saved: Model) -> None:
    engine = saved.engine("native", "bfloat16")
    assert engine.read(torch.tensor([[1, 2]])).dtype == torch.bfloat16
    assert next(saved.network.parameters()).dtype == torch.float32


@pytest.mark.parametrize("beams", [1, 3])
def test_int8_writes_as_float32_does_on_a_decided_model(beams: int) -> None:
    """Where the best token is well ahead, 8 bits do not change it."""
    network = noisy_network(shrunk("transformer-tiny")).eval()
    with torch.no_grad():
        network.table.mul_(8)
    usage = Usage(start=1, end=(2,))
    prompts = [Prompt(tuple(range(3, 3 + n))) for n in (4, 7, 2)]
    options = Generation(beams=beams, max_new_tokens=6)
    texts = [
        [best.ids for best, *_ in Model(network, usage=usage).engine("native", precision).write(prompts, options)]
        for precision in ("float32", "int8")
    ]
    same = [a == b for a, b in zip(*texts, strict=True)]
    assert sum(same) >= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_another_dtype_are_widened(dtype: torch.dtype) -> None:
    """The kernels read float32 only."""
    network = noisy_network(shrunk("gpt2")).to(dtype)
    tokens = torch.tensor([[1, 2, 3]])
    wide = noisy_network(shrunk("gpt2")).to(dtype).float()
    for precision in ("float32", "int8"):
        read, expected = (Model(each).engine("native", precision).read(tokens) for each in (network, wide))
        assert read.dtype == torch.float32
        assert torch.equal(read, expected)
    assert next(network.parameters()).dtype == dtype


# All blocks in one call


@needs_products
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_stack_in_one_call_is_the_stack_block_by_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole pass over several tokens, padded and not."""
    network, inputs = noisy_network(shrunk(name)).eval(), example_inputs(shrunk(name))
    quick = in_int8(network)
    whole = [module for module in quick.modules() if isinstance(module, FusedStack)]
    assert len(whole) == quick.has_encoder + quick.has_decoder
    with torch.inference_mode():
        exact = network(*inputs.args, **inputs.options)
        at_once = quick(*inputs.args, **inputs.options)
        monkeypatch.setattr(FusedStack, "kernel", Stack.kernel)
        one_by_one = quick(*inputs.args, **inputs.options)
    real = torch.isfinite(at_once)

    def apart(one: Tensor, other: Tensor) -> float:
        return 1.0 - float(F.cosine_similarity(one[real].double(), other[real].double(), dim=0))

    # Norms and softmax add in another order, which moves a number to the next of its 255 steps at times: some of what
    # the steps themselves cost, never all of it.
    assert apart(at_once, one_by_one) < 0.5 * apart(at_once, exact) < 0.001


@needs_products
@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if shrunk(name).decoder is not None])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_in_one_call_is_the_search_block_by_block(
    name: str, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached steps: prompts of unlike length, rows that join and leave, beams that share a memory and hold each other's
    keys. The scores of the tokens are as close as 8 bits allow."""
    network = noisy_network(shrunk(name)).eval()
    usage = Usage(start=1, end=(2,))
    generator = torch.Generator().manual_seed(3)
    prompts = [
        Prompt(tuple(torch.randint(3, 10, (n,), generator=generator).tolist())) for n in (4, 7, 2, 5, 3, 6, 1, 2)
    ]  # fmt: skip
    options = Generation(beams=beams, max_new_tokens=7, batch_tokens=40)
    quick = in_int8(network)
    texts = []
    for at_once in (True, False):
        if not at_once:
            monkeypatch.setattr(FusedStack, "kernel", Stack.kernel)
        texts.append([best for best, *_ in write(quick, prompts, options, usage)])
    same = [a.ids == b.ids for a, b in zip(*texts, strict=True)]
    assert sum(same) >= 6
    differences = [
        abs(x.logprob - y.logprob)
        for a, b, equal in zip(*texts, same, strict=True) if equal
        for x, y in zip(a.tokens, b.tokens, strict=True)
    ]  # fmt: skip
    # A number that falls on the next of its 255 steps moves a log-probability by a hundredth or so.
    assert sum(differences) / len(differences) < 0.05


@needs_products
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["transformer-tiny", "gpt2"])
def test_a_batch_gives_the_very_numbers_of_one_by_one(name: str, beams: int) -> None:
    """Not only close: a number that is rounded to another of its 255 steps could change a text."""
    network = in_int8(noisy_network(shrunk(name)).eval())
    usage = Usage(start=1, end=(2,))
    generator = torch.Generator().manual_seed(3)
    lengths = [9, 1, 17, 4, 10, 12, 2, 3] if network.has_encoder else [5, 1, 4, 2, 3]
    prompts = [Prompt(tuple(torch.randint(3, 10, (n,), generator=generator).tolist())) for n in lengths]
    options = Generation(beams=beams, max_new_tokens=6, batch_tokens=80)
    together = list(write(network, prompts, options, usage))
    alone = [next(write(network, [prompt], options, usage)) for prompt in prompts]
    for texts, again in zip(together, alone, strict=True):
        assert [text.tokens for text in texts] == [text.tokens for text in again]
