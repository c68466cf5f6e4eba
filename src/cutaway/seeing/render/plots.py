"""Pictures for papers and slides: heads, positions, norms, the logit lens, the residual stream. Each is a Figure of
matplotlib's; `save` writes it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError, unknown
from cutaway.models.config import StackConfig
from cutaway.models.network import Network
from cutaway.parts.positions import RelativeBias, rotary, sinusoidal
from cutaway.seeing.attribution.analysis import Attribution, HeadImportance, Lens, Rollout, Side, residual_lengths
from cutaway.seeing.render.plotting import (
    BLUE,
    GREY,
    INK,
    LARGEST,
    ORANGE,
    WEIGHTS,
    colour_bar,
    finished,
    heat,
    label_size,
    layer_name,
    matrix,
    new_figure,
    plain_axes,
    spoken,
    words_along,
    write_numbers,
    written,
)
from cutaway.seeing.render.plotting import save as save
from cutaway.seeing.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heads(trace: Trace, attention: str, *, row: int = 0) -> "Figure":
    """All heads of an attention side by side. `attention` is its name, such as `decoder.blocks.0.cross_attention`."""
    weights_HTS = _weights(trace, attention, row)
    queries, keys = _queries_and_keys(trace, attention, weights_HTS)
    H, T, S = weights_HTS.shape
    columns = min(H, 4 if H != 6 else 3)
    rows = math.ceil(H / columns)
    size = label_size(max(T, S), 8.0)
    across, down = (min(LARGEST * 0.6, max(1.5, n * size * 1.22 / 72)) for n in (S, T))
    figure = new_figure(columns * (across + 0.15) + 1.9, rows * (down + 0.35) + 1.5)
    every = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    top = float(weights_HTS.max())
    for h, axes in enumerate(every.flat):
        if h >= H:
            axes.set_visible(False)
            continue
        image = heat(axes, weights_HTS[h], WEIGHTS, 0.0, top)
        axes.set_title(f"head {h}", fontsize=9, color=INK, pad=3)
        last_row = h + columns >= H
        left = h % columns == 0
        words_along(
            axes, keys if last_row else None, queries if left else None, size, room=across / S, line=down / T
        )  # fmt: skip
        axes.tick_params(labelbottom=last_row, labelleft=left)
    colour_bar(figure, image, list(every.flat[:H]), "attention weight")
    figure.supxlabel("key", fontsize=10, color=GREY)
    figure.supylabel("query", fontsize=10, color=GREY)
    return finished(figure, f"Attention weights: {spoken(attention)}")


def head(trace: Trace, attention: str, head: int, *, row: int = 0) -> "Figure":
    """One head of an attention, large; with its numbers if there is room for them."""
    weights_HTS = _weights(trace, attention, row)
    if type(head) is not int or not 0 <= head < len(weights_HTS):
        raise InputError(f"'{attention}' has {len(weights_HTS)} heads, counted from 0: there is no head {head}")
    queries, keys = _queries_and_keys(trace, attention, weights_HTS)
    title = f"Attention weights: {spoken(attention)}, head {head}"
    return matrix(weights_HTS[head], queries, keys, title=title, down="query", across="key", bar="attention weight")


def rollout(record: Rollout) -> "Figure":
    """Attention rollout: the share of each input token in each token's last vector."""
    tokens = record.tokens or [str(i) for i in range(len(record.values))]
    return matrix(
        record.values, tokens, tokens, title=f"Attention rollout: {record.stack}", down="after the last block",
        across="came from", bar="share",
    )  # fmt: skip


def positions(seen: Trace | Network, stack: Side, *, n: int = 64) -> "Figure":
    """The positions of a stack: its position vectors, its angles, or its bias by distance.

    Of a trace, at the positions of its tokens; of a network, at the first `n`.
    """
    config = seen.run.config if isinstance(seen, Trace) else seen.config
    half = getattr(config, stack, None)
    if not isinstance(half, StackConfig) or half.positions == "none":
        raise InputError(f"there are no positions in the {stack} of this model")
    weights = seen.run.weights if isinstance(seen, Trace) else seen.state_dict()
    labels: Sequence[str] = ()
    if isinstance(seen, Trace):
        labels = seen.words.source if stack == "encoder" else seen.words.target
        n = len(labels) or next((seen[name].shape[1] for name in seen if name == f"{stack}.embedding.output"), n)
    if half.positions == "t5_bias":
        return _bias_by_distance(weights, half, stack, n)
    if half.positions == "rotary":
        turned = rotary(torch.arange(n), half.head_width, base=half.rotary_base, scaling=half.rotary_scaling).cos
        value, across, bar = turned[:, : half.head_width // 2], "pair of numbers in a head", "cos of the angle"
        title = f"Rotary positions: the angle by which queries and keys are rotated ({stack})"
    else:
        value = _position_vectors(seen, weights, half, stack, n)
        across, bar, title = "place in the vector", "value", f"Position vectors ({stack})"
    rows = labels if len(labels) == len(value) else None
    return matrix(value, rows, None, title=title, down="position", across=across, bar=bar, signed=True)


def _position_vectors(
    seen: Trace | Network, weights: Mapping[str, Tensor], half: StackConfig, stack: str, n: int
) -> Tensor:  # fmt: skip
    added = f"{stack}.embedding.position_vectors"
    if isinstance(seen, Trace) and added in set(seen):
        return seen[added][0]
    if half.positions == "learned":
        table = weights.get(f"{stack}.embedding.positions.weight")
        if table is None:
            raise InputError("this trace has no weights, so no learned positions; give the network")
        return table[:n].detach().cpu()
    return sinusoidal(
        torch.arange(n), half.d_model, layout="interleaved" if half.positions == "sinusoidal" else "halves"
    )


def _bias_by_distance(weights: Mapping[str, Tensor], half: StackConfig, stack: str, n: int) -> "Figure":
    table = weights.get(f"{stack}.relative_bias.weight")
    if table is None:
        raise InputError("this trace has no weights, so no relative positions; give the network")
    both_ways = stack == "encoder"
    bias = RelativeBias(half.t5_buckets, half.t5_max_distance, half.n_heads, both_ways=both_ways)
    distances = torch.arange(-n + 1, n if both_ways else 1)
    value = table.detach().cpu()[bias.bucket(distances)].T
    apart = max(1, math.ceil(len(distances) / 24))  # of so many distances, one is written
    across = [f"{d:+d}".replace("-", "−").replace("+0", "0") if d % apart == 0 else "" for d in distances.tolist()]
    return matrix(
        value, [f"head {h}" for h in range(len(value))], across,
        title=f"Relative positions: the bias of a score by distance ({stack})", down="",
        across="distance: key − query", bar="bias", signed=True,
    )  # fmt: skip


def norms(trace: Trace, name: str, *, row: int = 0) -> "Figure":
    """The numbers of each token before and after a norm, such as `decoder.blocks.0.feedforward_norm`: their mean, their
    spread, the least and the greatest."""
    before, after = _around_norm(trace, name.removesuffix(".output"), row)
    side = trace.words.side(name, "T")
    labels = (trace.words.source if side == "source" else trace.words.target) or [str(i) for i in range(len(before))]
    size = label_size(len(labels), 9.0)
    high = min(2 * LARGEST, max(1.0, len(labels) * size * 1.45 / 72))
    figure = new_figure(8.6, high + 1.5)
    for axes, value, colour, title in zip(
        figure.subplots(1, 2, sharey=True), (before, after), (ORANGE, BLUE), ("before", "after"), strict=True
    ):
        mean, spread = value.mean(-1), value.std(-1, correction=0)
        places = torch.arange(len(value))
        axes.axvline(0, color=GREY, linewidth=0.6, zorder=0)
        axes.hlines(places, value.min(-1).values, value.max(-1).values, color=colour, alpha=0.35, linewidth=1.0)
        axes.hlines(places, mean - spread, mean + spread, color=colour, linewidth=max(2.0, size * 0.5))
        axes.plot(mean, places, "o", color="white", markeredgecolor=colour, markersize=max(2.5, size * 0.45))
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_xlabel("value", fontsize=9, color=GREY)
        plain_axes(axes, len(labels))
        words_along(axes, None, labels, size, line=high / len(labels))
    figure.text(
        0.5, 0.0, "dot: mean   thick: one standard deviation   thin: least to greatest", ha="center", va="top",
        fontsize=8, color=GREY,
    )  # fmt: skip
    return finished(figure, f"Before and after the norm: {spoken(name.removesuffix('.output'))}")


def _around_norm(trace: Trace, name: str, row: int) -> tuple[Tensor, Tensor]:
    """The input of a norm, by undoing it, and its output: [T, D] each."""
    wanted = [f"{name}.output", f"{name}.normalized", f"{name}.mean_square"]
    known = set(trace)
    if wanted[2] not in known:
        wanted[2:] = [f"{name}.mean", f"{name}.variance"]
    if missing := [each for each in wanted if each not in known]:
        norms_ = sorted({each.rpartition(".")[0] for each in known if each.endswith(".normalized")})
        if name in norms_ or not norms_:
            raise InputError(f"this trace did not keep '{missing[0]}'; trace again with keep='*'")
        raise InputError(unknown("norm", name, norms_, limit=12))
    half = getattr(trace.run.config, name.partition(".")[0], None)
    epsilon = half.norm_epsilon if isinstance(half, StackConfig) else 0.0
    output, normalized, *inside = (trace[each][row].double() for each in wanted)
    mean = inside[0] if len(inside) == 2 else 0.0
    return normalized * (inside[-1] + epsilon).sqrt() + mean, output


def lens(record: Lens, *, at_once: int = 20) -> "Figure":
    """The logit lens at each position; the darker, the more probable. `at_once`: positions in one line."""
    layers = record.layers
    labels = [place.label for place in layers[0].places]
    lines = [range(i, min(i + at_once, len(labels))) for i in range(0, len(labels), at_once)]
    widest = max(map(len, lines))
    names = [layer_name(layer.name) for layer in layers]
    figure = new_figure(1.6 + widest * 0.72, len(lines) * (0.27 * len(layers) + 0.75) + 0.9)
    every = figure.subplots(len(lines), 1, squeeze=False)[:, 0]
    for axes, places in zip(every, lines, strict=True):
        words = [[layer.places[i].top[0] for i in places] for layer in layers]
        value = torch.tensor([[each.p for each in row] for row in words])
        value = torch.nn.functional.pad(value, (0, widest - len(places)), value=math.nan)
        image = heat(axes, value, WEIGHTS, 0.0, 1.0)
        for i, line in enumerate(words):
            for j, each in enumerate(line):
                axes.text(
                    j, i, written(each.text, 9), ha="center", va="center", fontsize=7.5,
                    color="white" if each.p > 0.55 else INK,
                )  # fmt: skip
        axes.set_ylim(-0.5, len(layers) - 0.5)  # the last block on top
        words_along(axes, [labels[i] for i in places], names, 8.0, room=1.0)
    every[-1].set_xlabel("token that was read", fontsize=10, color=GREY)
    colour_bar(figure, image, list(every), "probability")
    return finished(figure, "Logit lens: the likeliest words after each block")


def residual(trace: Trace, *, row: int = 0) -> "Figure":
    """The lengths of the residual stream's vectors after each block, token by token."""
    records = residual_lengths(trace, row=row)
    n, depth = max(record.values.shape[1] for record in records), sum(len(record.names) for record in records)
    size = label_size(n, 9.0)
    numbers = n <= 18
    across = min(LARGEST, max(4.0, n * (0.46 if numbers else size * 1.3 / 72)))
    figure = new_figure(across + 2.2, depth * 0.32 + 1.15 * len(records) + 0.7)
    every = figure.subplots(
        len(records), 1, squeeze=False, gridspec_kw={"height_ratios": [len(record.names) for record in records]}
    )[:, 0]
    for axes, record in zip(every, records, strict=True):
        image = heat(axes, record.values, WEIGHTS, 0.0, float(record.values.max()))
        axes.set_ylim(-0.5, len(record.names) - 0.5)
        tokens = record.tokens or [str(i) for i in range(record.values.shape[1])]
        words_along(axes, tokens, [layer_name(name) for name in record.names], size, room=across / len(tokens))
        axes.set_title(record.stack, fontsize=10, color=INK)
        if numbers:
            write_numbers(axes, record.values, float(record.values.max()))
        colour_bar(figure, image, [axes], "length |x|")
    return finished(figure, "Lengths of the residual stream's vectors")


def importance(record: HeadImportance) -> "Figure":
    """The loss of log-probability without each head."""
    most = max(map(len, record.drops))
    value = torch.tensor([[*row, *[math.nan] * (most - len(row))] for row in record.drops])
    return matrix(
        value, [spoken(name) for name in record.attentions], [f"head {h}" for h in range(most)],
        title="Head importance: how much less likely the output gets without a head", down="", across="",
        bar="drop of its log-probability", signed=True,
    )  # fmt: skip


def attribution(record: Attribution) -> "Figure":
    """How much each token adds to the log-probability of an output."""
    words = record.words
    both = (("source", words.source, record.source), ("target", words.target, record.target))
    sides = [side for side in both if side[2]]
    n = max(len(scores) for _, _, scores in sides)
    size = label_size(n, 9.0)
    high = min(2 * LARGEST, max(1.2, n * size * 1.45 / 72))
    figure = new_figure(4.3 * len(sides) + 0.6, high + 1.3)
    every = figure.subplots(1, len(sides), squeeze=False, sharex=True)[0]
    for axes, (title, tokens, scores) in zip(every, sides, strict=True):
        colours = [BLUE if score >= 0 else ORANGE for score in scores]
        axes.barh(range(len(scores)), scores, color=colours, height=0.72)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_xlabel("adds to the log-probability", fontsize=9, color=GREY)
        plain_axes(axes, len(scores))
        names = tokens or [str(i) for i in range(len(scores))]
        words_along(axes, None, names, size, line=high / len(names))
    return finished(figure, f"Integrated gradients of “{written(record.text, 24)}”")


def _weights(trace: Trace, attention: str, row: int) -> Tensor:
    """[H, T, S]; a recurrent model's attention is one head."""
    name = f"{attention}.weights"
    if name not in set(trace):
        known = [each.removesuffix(".weights") for each in trace if each.endswith(".weights")]
        raise InputError(unknown("attention", attention, known, limit=12))
    value = trace[name][row].float()
    return value if value.dim() == 3 else value.unsqueeze(0)


def _queries_and_keys(trace: Trace, attention: str, weights_HTS: Tensor) -> list[Sequence[str]]:
    labels = trace.labels(f"{attention}.weights")[-2:]
    return [each or [str(i) for i in range(n)] for each, n in zip(labels, weights_HTS.shape[1:], strict=True)]
