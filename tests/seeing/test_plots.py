"""Pictures: what is drawn are the numbers of the trace, with its tokens along the axes, and files are whole or not there."""

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib")

import cutaway
from cutaway.errors import CutawayError, InputError
from cutaway.model import Model
from cutaway.models.config import TransformerConfig
from cutaway.models.network import Network
from cutaway.parts.positions import sinusoidal
from cutaway.seeing.attribution.analysis import Attribution, HeadImportance, logit_lens, residual_lengths, rollout
from cutaway.seeing.render import plots
from cutaway.seeing.render.plotting import label_size, layer_name, spoken, written
from cutaway.seeing.trace.labels import Words
from cutaway.seeing.trace.trace import Trace
from tests.support import families
from tests.support import small_models as small
from tests.support.families import TRANSFORMERS, example_inputs, shrunk
from tests.support.mistakes import assert_mistakes

CROSS = "decoder.blocks.1.cross_attention"


@cache
def model(name: str) -> Model:
    return small.model(name)


@cache
def traced(name: str, text: str = "The cat sat on the mat.", target: str | None = "Le chat est assis") -> Trace:
    both = model(name).network.has_encoder and model(name).network.has_decoder
    return model(name).trace(text, target if both else None)


def images(figure: Any) -> list[np.ndarray]:
    """The heat maps of a picture, without its colour bars."""
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def labels(axes: Any, axis: str) -> list[str]:
    return [each.get_text() for each in getattr(axes, f"get_{axis}ticklabels")()]


def bare(tokens: Any) -> list[str]:
    return [written(token) for token in tokens]


def test_all_heads_are_drawn_with_their_weights() -> None:
    trace = traced("transformer-tiny")
    figure = plots.heads(trace, CROSS)
    weights = trace[f"{CROSS}.weights"][0].numpy()
    drawn = images(figure)
    assert len(drawn) == len(weights) == 4
    for ours, theirs in zip(drawn, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)
    first = figure.axes[0]
    assert labels(first, "y") == bare(trace.words.target)
    assert labels(figure.axes[3], "x") == bare(trace.words.source)
    assert [axes.get_title() for axes in figure.axes[:4]] == [f"head {h}" for h in range(4)]
    assert figure.get_suptitle() == "Attention weights: decoder, block 1, cross-attention"
    assert figure.get_supxlabel() == "key"
    assert figure.get_supylabel() == "query"
    top = float(weights.max())
    assert all(axes.images[0].get_clim() == (0.0, pytest.approx(top)) for axes in figure.axes[:4]), "one scale for all"


@pytest.mark.parametrize("name", ["bahdanau-gru", "luong-gru"])
def test_a_recurrent_attention_is_one_head(name: str) -> None:
    trace = traced(name)
    [drawn] = images(plots.heads(trace, "decoder.attention"))
    np.testing.assert_allclose(drawn, trace["decoder.attention.weights"][0].numpy(), atol=1e-7)


def test_one_head_has_its_numbers_in_it() -> None:
    trace = traced("transformer-tiny", "The cat", "Le chat")
    figure = plots.head(trace, CROSS, 2)
    weights = trace[f"{CROSS}.weights"][0, 2]
    [drawn] = images(figure)
    np.testing.assert_allclose(drawn, weights.numpy(), atol=1e-7)
    axes = figure.axes[0]
    numbers = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}
    for (i, j), text in numbers.items():
        assert text == f"{float(weights[i, j]):.2f}"
    missing = [
        float(weights[i, j]) for i in range(len(weights)) for j in range(weights.shape[1]) if (i, j) not in numbers
    ]
    assert all(weight < 0.005 for weight in missing)
    assert axes.get_xlabel() == "key"

    assert axes.get_ylabel() == "query"
    assert labels(axes, "x") == bare(trace.words.source)


def test_sixty_tokens_can_be_read(tmp_path: Path) -> None:
    """No label lies over its neighbour: each has its own height of room."""
    network = families.noisy(cutaway.build(shrunk("transformer-tiny")), std=0.3).eval()
    trace = cutaway.trace(network, torch.randint(19, (1, 60)), torch.randint(19, (1, 60)))
    trace.words = Words(("▁children",) * 60, ("▁enfants",) * 60, tuple(range(60)), tuple(range(60)))
    lens_ = logit_lens(network, trace)  # type: ignore[arg-type]
    figures = [
        plots.heads(trace, CROSS),
        plots.head(trace, CROSS, 0),
        plots.norms(trace, "encoder.blocks.0.feedforward_norm"),
        plots.residual(trace),
        plots.lens(lens_),
    ]
    for figure in figures:
        figure.draw_without_rendering()
        n_checked = 0
        for axes in figure.axes:
            room = axes.get_window_extent()
            for axis, length in (("y", room.height), ("x", room.width)):
                texts = getattr(axes, f"get_{axis}ticklabels")()
                if len(texts) >= 20:
                    n_checked += 1
                    assert texts[0].get_fontsize() >= 5.5
                    assert length / len(texts) >= texts[0].get_fontsize() * figure.dpi / 72, axis
        assert n_checked
    assert plots.save(figures[0], tmp_path / "long.png").stat().st_size < 2_000_000


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_positions_are_what_the_network_adds(name: str) -> None:
    config = shrunk(name)
    network, inputs = families.noisy(cutaway.build(config), std=0.1), example_inputs(config, padding=None)
    assert isinstance(config, TransformerConfig)
    assert isinstance(network, Network)
    trace = cutaway.trace(network, *inputs.args)
    for side in ("encoder", "decoder"):
        half = getattr(config, side)
        if half is None:
            continue
        n = trace[f"{side}.embedding.output"].shape[1]
        [drawn] = images(plots.positions(trace, side))
        [of_network] = images(plots.positions(network, side, n=n))
        np.testing.assert_array_equal(drawn, of_network)
        if half.positions == "t5_bias":
            bias = trace[f"{side}.relative_bias.output"][0]
            distances = range(-n + 1, n if side == "encoder" else 1)
            assert drawn.shape == (half.n_heads, len(distances))
            for column, distance in enumerate(distances):
                np.testing.assert_allclose(drawn[:, column], bias[:, max(0, -distance), max(0, distance)], atol=1e-6)
        elif half.positions == "rotary":
            queries, turned = (
                trace[f"decoder.blocks.0.self_attention.{each}"][0, 0] for each in ("queries", "rotated_queries")
            )
            first, second = queries.chunk(2, dim=-1)
            cos = torch.as_tensor(drawn)
            sin = (first * cos - turned.chunk(2, dim=-1)[0]) / second  # turned = first · cos - second · sin
            np.testing.assert_allclose((cos**2 + sin**2).numpy(), 1.0, atol=1e-3)
        else:
            np.testing.assert_allclose(drawn, trace[f"{side}.embedding.position_vectors"][0].numpy(), atol=1e-6)


def test_positions_are_told_in_words() -> None:
    figure = plots.positions(traced("transformer-tiny"), "decoder")
    assert labels(figure.axes[0], "y") == bare(traced("transformer-tiny").words.target)
    [drawn] = images(figure)
    np.testing.assert_allclose(drawn, sinusoidal(torch.arange(len(drawn)), 24).numpy(), atol=1e-6)
    assert figure.get_suptitle() == "Position vectors (decoder)"


@pytest.mark.parametrize("name", ["transformer-tiny", "t5-small", "gpt2", "llama-15m"])
def test_norms_show_what_went_in_and_what_came_out(name: str) -> None:
    trace = traced(name)
    config = model(name).config
    assert isinstance(config, TransformerConfig)
    post = config.last.norm_place == "post"
    place = "decoder.blocks.0.self_attention_norm"
    before = trace["decoder.blocks.0.self_attention_add" if post else "decoder.blocks.0.input"][0].double()
    after = trace[f"{place}.output"][0].double()
    for asked in (place, f"{place}.output"):
        figure = plots.norms(trace, asked)
        for axes, value in zip(figure.axes, (before, after), strict=True):
            [dots] = [line for line in axes.lines if len(line.get_xdata()) == len(value)]
            np.testing.assert_allclose(dots.get_xdata(), value.mean(-1), atol=1e-5)
            thin, thick = (np.asarray(lines.get_segments()) for lines in axes.collections)
            spread = value.std(-1, correction=0)
            np.testing.assert_allclose(thick[:, 0, 0], value.mean(-1) - spread, atol=1e-4)
            np.testing.assert_allclose(thick[:, 1, 0], value.mean(-1) + spread, atol=1e-4)
            np.testing.assert_allclose(thin[:, 0, 0], value.min(-1).values, atol=1e-4)
            np.testing.assert_allclose(thin[:, 1, 0], value.max(-1).values, atol=1e-4)
        assert labels(figure.axes[0], "y") == bare(trace.words.target)
        assert [axes.get_title() for axes in figure.axes] == ["before", "after"]


def test_the_lens_is_drawn_in_lines() -> None:
    trace = traced("transformer-tiny")
    record = logit_lens(model("transformer-tiny"), trace)
    n = len(trace.words.target)
    figure = plots.lens(record, at_once=4)
    drawn = images(figure)
    assert len(drawn) == -(-n // 4)
    p = [[place.top[0].p for place in layer.places] for layer in record.layers]
    np.testing.assert_allclose(drawn[0], np.array(p)[:, :4], atol=1e-7)
    axes = figure.axes[0]
    assert labels(axes, "x") == bare(trace.words.target[:4])
    assert labels(axes, "y") == ["embedding", "block 0", "block 1"]
    assert axes.get_ylim()[0] < axes.get_ylim()[1], "the last block is on top"
    said = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}
    assert said == {
        (i, j): written(layer.places[j].top[0].text, 9) for i, layer in enumerate(record.layers) for j in range(4)
    }


def test_the_residual_stream_is_drawn() -> None:
    trace = traced("transformer-tiny")
    drawn = images(plots.residual(trace))
    records = residual_lengths(trace)
    for ours, record in zip(drawn, records, strict=True):
        np.testing.assert_allclose(ours, record.values.numpy())


def test_records_of_analyses_are_drawn(tmp_path: Path) -> None:
    trace = traced("transformer-tiny")
    [drawn] = images(plots.rollout(rollout(trace, "encoder")))
    np.testing.assert_allclose(drawn, rollout(trace, "encoder").values.numpy())
    figure = plots.importance(
        HeadImportance(
            ("encoder.blocks.0.self_attention", "decoder.blocks.0.cross_attention"), ((0.5, -0.1), (2.0,)), -3.0
        )
    )
    [drawn] = images(figure)
    np.testing.assert_allclose(drawn[0], [0.5, -0.1], atol=1e-7)
    assert np.ma.getmaskarray(np.ma.masked_invalid(drawn))[1].tolist() == [False, True]
    assert figure.axes[0].images[0].get_clim() == (-2.0, 2.0)
    words = Words(("a", "b"), ("c",))
    bars = plots.attribution(Attribution(words, (0.5, -0.25), (0.1,), 0, "▁x", -0.1, -0.45, 32, 0.0))
    assert [bar.get_width() for bar in bars.axes[0].patches] == [0.5, -0.25]
    assert [bar.get_width() for bar in bars.axes[1].patches] == [0.1]
    assert bars.get_suptitle() == "Integrated gradients of “x”"
    for name, each in (("a.png", figure), ("b.svg", bars)):
        assert plots.save(each, tmp_path / name).stat().st_size > 5000


def test_pictures_are_saved_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, same = (plots.head(traced("transformer-tiny", "The cat", "Le chat"), CROSS, 0) for _ in range(2))
    svg = plots.save(figure, str(tmp_path / "head.svg"))
    text = svg.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert ">Attention weights: decoder, block 1, cross-attention, head 0<" in text, "text stays text"
    again = plots.save(same, tmp_path / "again.svg")
    assert again.read_text(encoding="utf-8") == text, "the same picture is the same file"
    with pytest.raises(CutawayError, match=r"can't write .*head\.PNG: No such file or directory"):
        plots.save(figure, tmp_path / "new" / "head.PNG")
    png = plots.save(figure, tmp_path / "head.PNG")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CutawayError, match="can't write .*head.svg: No space left on device"):
        plots.save(figure, svg)
    assert svg.read_text(encoding="utf-8") == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.svg", "head.PNG", "head.svg"], (
        "nothing is left over"
    )


def test_a_label_is_never_a_formula_and_always_has_letters(tmp_path: Path) -> None:
    assert written("▁cat") == "cat"
    assert written("▁") == "▁"
    assert written("$a$") == r"\$a\$"
    assert written("a" * 20) == "a" * 15 + "…"
    assert written("\n") == r"\n"
    assert written("\U00013000") == "□", "no font has hieroglyphs"
    trace = model("transformer-tiny").trace("naïve 😀 日本 $x$ ^ _ \\frac", "Le chat")
    plots.save(plots.heads(trace, "encoder.blocks.0.self_attention"), tmp_path / "odd.png")
    assert spoken("decoder.blocks.10.cross_attention") == "decoder, block 10, cross-attention"
    assert spoken("decoder.final_norm") == "decoder, final norm"
    assert layer_name("encoder.blocks.3.output") == "block 3"
    assert label_size(10, 9.5) == 9.5
    assert label_size(60, 9.5) >= 5.5


def test_mistakes_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, recurrent = traced("transformer-tiny"), traced("gru-seq2seq")
    kept = model("gpt2").trace("The cat", keep="*.normalized")
    figure = plots.head(trace, CROSS, 0)
    loaded = Trace.load(model("t5-small").trace("The cat", "Le", keep="*.embedding.output").save(tmp_path / "trace"))
    mistakes: list[tuple[Any, str]] = [
        (lambda: plots.heads(trace, "decoder.blocks.1.cross_atention"), f"no attention 'decoder.blocks.1.cross_atention'; did you mean '{CROSS}'?"),
        (lambda: plots.head(trace, CROSS, 4), f"'{CROSS}' has 4 heads, counted from 0: there is no head 4"),
        (lambda: plots.heads(recurrent, "decoder.attention"), "no attention 'decoder.attention'"),
        (lambda: plots.positions(recurrent, "decoder"), "there are no positions in the decoder of this model"),
        (lambda: plots.positions(traced("gpt2"), "encoder"), "there are no positions in the encoder of this model"),
        (lambda: plots.positions(loaded, "decoder"), "this trace has no weights, so no relative positions; give the network"),
        (lambda: plots.norms(trace, "decoder.blocks.0.feedforward"), "no norm 'decoder.blocks.0.feedforward'; did you mean 'decoder.blocks.0.feedforward_norm'?"),
        (lambda: plots.norms(kept, "decoder.final_norm"), "this trace did not keep 'decoder.final_norm.output'; trace again with keep='*'"),
        (lambda: plots.residual(recurrent), "this trace has no encoder made of blocks"),
        (lambda: plots.save(figure, tmp_path / "head.jpg"), f"{tmp_path / 'head.jpg'} ends in '.jpg'; a picture is saved as .png or .svg"),
        (lambda: plots.save(figure, tmp_path / "head"), f"{tmp_path / 'head'} ends in ''; a picture is saved as .png or .svg"),
        (lambda: plots.save(figure, "/proc/nowhere/head.png"), "can't write /proc/nowhere/head.png: "),
    ]  # fmt: skip
    assert_mistakes(mistakes)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"matplotlib, which is not installed: pip install 'cutaway\[plots\]'"):
        plots.residual(trace)


def test_looking_does_not_ask_for_matplotlib() -> None:
    """It is imported when something is drawn."""
    import subprocess

    code = "import sys, cutaway.seeing.render.plots; assert 'matplotlib' not in sys.modules and 'captum' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ruff: noqa: E501
