"""RNN, GRU and LSTM layers, step by step; the bridge between encoder and decoder, and their outputs."""

from cutaway.seeing.explain.expression import Call, Expression, Number, Product, Sum, Vector
from cutaway.seeing.explain.linear import Row, linear, minus, tapped, zeros
from cutaway.seeing.explain.source import Source


def layer(source: Source, here: str, value: str, at: tuple[int, ...]) -> Expression | None:
    """A number of a layer ("encoder.forwards.0"): W x + U h, with rows of W and U for each gate.

    rnn   h = tanh(W x + U h)
    gru   r, z = σ(W x + U h);  n = tanh(W x + r · U h);  h = (1 - z) · n + z · h
    lstm  i, f, o = σ(W x + U h);  g = tanh(W x + U h);  c = f · c + i · g;  h = o · tanh(c)
    """
    b, t, d = at
    width = source.shape(f"{here}.hidden")[2]

    def from_input(gate: int) -> Expression:
        return linear(source, f"{here}.input", gate * width + d, *_inputs(source, here, b, t))

    def from_state(gate: int) -> Expression:
        return linear(source, f"{here}.state", gate * width + d, previous_state(source, here, "hidden", b, t).all())

    def both(gate: int) -> Expression:
        return Sum((from_input(gate), from_state(gate)))

    def now(name: str) -> Number:
        return source.number(f"{here}.{name}", *at)

    match source.recurrent.decoder.cell, value:
        case "rnn", "hidden":
            return Call("tanh", both(0))
        case "gru", "reset_gate":
            return Call("sigmoid", both(0))
        case "gru", "update_gate":
            return Call("sigmoid", both(1))
        case "gru", "candidate":
            return Call("tanh", Sum((from_input(2), Product((now("reset_gate"), from_state(2))))))
        case "gru", "hidden":
            new = Product((Sum((Number(1.0), minus(now("update_gate")))), now("candidate")))
            return Sum((new, Product((now("update_gate"), previous_state(source, here, "hidden", b, t).one(d)))))
        case "lstm", "input_gate":
            return Call("sigmoid", both(0))
        case "lstm", "forget_gate":
            return Call("sigmoid", both(1))
        case "lstm", "candidate":
            return Call("tanh", both(2))
        case "lstm", "output_gate":
            return Call("sigmoid", both(3))
        case "lstm", "cell_state":
            kept = Product((now("forget_gate"), previous_state(source, here, "cell_state", b, t).one(d)))
            return Sum((kept, Product((now("input_gate"), now("candidate")))))
        case "lstm", "hidden":
            return Product((now("output_gate"), Call("tanh", now("cell_state"))))
    return None


def previous_state(source: Source, here: str, part: str, b: int, t: int) -> Row:
    """The state before a step: that of the last real token, as padding leaves it unchanged, or the initial state."""
    side, _, number = here.split(".")
    n = source.shape(f"{here}.{part}")[1]
    real = source.real(side, b, n)
    past = range(t + 1, n) if _reads_backwards(source, here) else range(t - 1, -1, -1)
    for earlier in past:
        if real[earlier]:
            return tapped(source, f"{here}.{part}", b, earlier)
    if side == "decoder" and source.recurrent.encoder is not None:
        parts = _parts(source)
        return tapped(source, f"decoder.bridge.{int(number) * len(parts) + parts.index(part)}.output", b)
    return zeros(source.shape(f"{here}.{part}")[2])


def bridge(source: Source, number: int, at: tuple[int, ...]) -> Expression:
    """A decoder's initial state tanh(W · the encoder's last state + b), layer by layer: of an LSTM h, then c."""
    b, d = at
    encoder, parts = source.recurrent_encoder, _parts(source)
    depth, part = min(number // len(parts), encoder.n_layers - 1), parts[number % len(parts)]
    finals = []
    for direction in _directions(source):
        here = f"encoder.{direction}.{depth}"
        real = source.real("encoder", b, source.shape(f"{here}.{part}")[1])
        ends = [s for s, is_real in enumerate(real) if is_real]
        finals.append(source.vector(f"{here}.{part}", b, ends[0 if _reads_backwards(source, here) else -1], None))
    return Call("tanh", linear(source, f"decoder.bridge.{number}", d, *finals))


def _parts(source: Source) -> tuple[str, ...]:
    """The values that a layer's state consists of."""
    return ("hidden", "cell_state") if source.recurrent.decoder.cell == "lstm" else ("hidden",)


def _directions(source: Source) -> tuple[str, ...]:
    return ("forwards", "backwards") if source.recurrent_encoder.bidirectional else ("forwards",)


def _reads_backwards(source: Source, here: str) -> bool:
    direction = here.split(".")[1]
    return direction == "backwards" or (direction == "forwards" and source.recurrent_encoder.backward)


def _inputs(source: Source, here: str, b: int, t: int) -> list[Vector]:
    """A layer's inputs at a step: the word vector and the context of Bahdanau's attention, or the layer below."""
    side, _, number = here.split(".")
    if number == "0":
        x = [source.vector(f"{side}.embedding.output", b, t, None)]
        if side == "decoder" and source.recurrent.attention == "additive":
            x.append(source.vector("decoder.attention.output", b, t, None))
        return x
    below = int(number) - 1
    if side == "decoder":
        return [layer_output(source, f"decoder.layers.{below}", b, t)]
    return [layer_output(source, f"encoder.{direction}.{below}", b, t) for direction in _directions(source)]


def layer_output(source: Source, here: str, b: int, t: int) -> Vector:
    """A layer's output: its state, and 0 for padding."""
    _, n, width = source.shape(f"{here}.hidden")
    if not source.real(here.split(".")[0], b, n)[t]:
        return zeros(width).all()
    return source.vector(f"{here}.hidden", b, t, None)


def encoder_output(source: Source, at: tuple[int, ...]) -> Expression:
    """The states of the top layer, both directions side by side."""
    b, s, e = at
    encoder = source.recurrent_encoder
    direction = _directions(source)[e // encoder.d_hidden]
    return _output_number(source, f"encoder.{direction}.{encoder.n_layers - 1}", b, s, e % encoder.d_hidden)


def decoder_output(source: Source, at: tuple[int, ...]) -> Expression:
    """tanh(W [state; context; word] + b); a language model's output is its states."""
    b, t, d = at
    top = f"decoder.layers.{source.recurrent.decoder.n_layers - 1}"
    if source.recurrent.encoder is None:
        return _output_number(source, top, b, t, d)
    inputs = [layer_output(source, top, b, t)]
    if source.recurrent.attention is not None:
        inputs.append(source.vector("decoder.attention.output", b, t, None))
    if source.recurrent.attention == "additive":
        inputs.append(source.vector("decoder.embedding.output", b, t, None))
    return Call("tanh", linear(source, "decoder.readout", d, *inputs))


def _output_number(source: Source, here: str, b: int, t: int, d: int) -> Expression:
    """A number of `layer_output`."""
    side = here.split(".")[0]
    state, mask = source.number(f"{here}.hidden", b, t, d), source.mask(side)
    if mask is None:
        return state
    return Product((state, Number(float(mask[b, t]), source.mask_name(side), (b, t))))
