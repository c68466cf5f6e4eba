"""Every formula once more, in numpy: one sequence at a time, float64, no batch, no padding, no cache, no fused path.

Written from the papers, and from what the published models compute, not from our code: where a mask would hide a key,
the key is left out of the sum. Whole models are functions of a dict of arrays with our parameter names; they give their
stages under our tap names, the result last, so that a test can say which stage is the first to differ.
"""

import math

import numpy as np

# The elements -------------------------------------------------------------------------------------------------------


def softmax(x):  # [..., n] -> [..., n]
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(0, x)


def gelu(x):  # x Φ(x), Hendrycks & Gimpel 2016
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):  # their approximation of it
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x * sigmoid(x)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu, "tanh": np.tanh}


def linear(p, x):  # [T, n_in] -> [T, n_out]; torch keeps W as [n_out, n_in]
    y = x @ p["weight"].T
    return y + p["bias"] if "bias" in p else y


def layer_norm(p, x, epsilon):  # each row of [T, D] to mean 0 and variance 1, then γ and β
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).sum(-1, keepdims=True) / x.shape[-1]
    return p["weight"] * (x - mean) / np.sqrt(variance + epsilon) + p["bias"]


def rms_norm(p, x, epsilon):
    return p["weight"] * x / np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1] + epsilon)


def batch_norm(p, x, mean, variance, epsilon):  # [N, D]: each *column* by its own mean and variance
    y = np.empty_like(x)
    for d in range(x.shape[1]):
        y[:, d] = p["weight"][d] * (x[:, d] - mean[d]) / math.sqrt(variance[d] + epsilon) + p["bias"][d]
    return y


def feedforward(p, x, activation):  # [T, D] -> [T, D]; gated (Shazeer 2020) if there is a gate
    up = linear(under(p, "up."), x)
    act = ACTIVATIONS[activation]
    inner = act(linear(under(p, "gate."), x)) * up if "gate.weight" in p else act(up)
    return linear(under(p, "down."), inner)


# Positions ----------------------------------------------------------------------------------------------------------


def sinusoidal(n_positions, d_model, layout="interleaved"):  # -> [n_positions, d_model]; §3.5
    table = np.zeros((n_positions, d_model))
    for pos in range(n_positions):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            if layout == "interleaved":
                table[pos, 2 * i], table[pos, 2 * i + 1] = math.sin(angle), math.cos(angle)
            else:  # Marian: all sines, then all cosines
                table[pos, i], table[pos, d_model // 2 + i] = math.sin(angle), math.cos(angle)
    return table


def rotary_frequencies(d_head, base=10000.0, scaling=None):  # -> [K/2]
    frequencies = [base ** (-2 * i / d_head) for i in range(d_head // 2)]
    return frequencies if scaling is None else [llama3_frequency(f, **scaling) for f in frequencies]


def llama3_frequency(frequency, factor, low_frequency_factor, high_frequency_factor, original_positions):
    """Llama 3's bands: short waves are kept, those longer than the context it was trained on are stretched."""
    longest_kept = original_positions / high_frequency_factor
    shortest_stretched = original_positions / low_frequency_factor
    wavelength = 2 * math.pi / frequency
    if wavelength < longest_kept:
        return frequency
    if wavelength > shortest_stretched:
        return frequency / factor
    smooth = (original_positions / wavelength - low_frequency_factor) / (high_frequency_factor - low_frequency_factor)
    return (1 - smooth) * frequency / factor + smooth * frequency


def rotary(x, positions, frequencies):  # [T, K] -> [T, K]: the plane (x_i, x_{i+K/2}) is turned by pos · frequency_i
    y = np.empty_like(x)
    half = x.shape[1] // 2
    for t, pos in enumerate(positions):
        for i, frequency in enumerate(frequencies):
            cos, sin = math.cos(pos * frequency), math.sin(pos * frequency)
            turn = np.array([[cos, -sin], [sin, cos]])
            y[t, i], y[t, half + i] = turn @ np.array([x[t, i], x[t, half + i]])
    return y


def t5_bucket(distance, n_buckets, max_distance, both_ways):
    """Key position - query position -> bucket (Raffel 2020, §2.1): exact up to half of the buckets, then by logarithm.

    The logarithm's floor is taken in whole numbers: bucket e + j begins at the least d with (d/e)^k ≥ (max/e)^j.
    """
    if both_ways:
        n_buckets //= 2
        first = n_buckets if distance > 0 else 0
        d = abs(distance)
    else:
        first = 0
        d = max(-distance, 0)
    exact = n_buckets // 2
    if d < exact:
        return first + d
    k = n_buckets - exact
    j = 0
    while j + 1 < k and d**k * exact ** (j + 1) >= max_distance ** (j + 1) * exact**k:
        j += 1
    return first + exact + j


def t5_bias(table, n_queries, n_keys, n_buckets, max_distance, both_ways):  # -> [H, T, S]
    bias = np.zeros((table.shape[1], n_queries, n_keys))
    for t in range(n_queries):
        for s in range(n_keys):
            bias[:, t, s] = table[t5_bucket(s - t, n_buckets, max_distance, both_ways)]
    return bias


# Attention ----------------------------------------------------------------------------------------------------------


def attend(q, k, v, scale, causal=False, bias=None):  # [T, K], [S, K], [S, V] -> [T, V]; eq. 1, one query at a time
    rows = []
    for t in range(len(q)):
        n_seen = t + 1 if causal else len(k)
        scores = k[:n_seen] @ q[t] * scale
        if bias is not None:
            scores = scores + bias[t, :n_seen]
        rows.append(softmax(scores) @ v[:n_seen])
    return np.array(rows)


def attention(
    p, x, memory=None, *, n_heads, n_kv_heads=None, causal=False, frequencies=None, scale_scores=True, bias=None
):
    """Multi-head (§3.2.2); with fewer key/value heads, neighbouring query heads share one. `bias` is [H, T, S]."""
    n_kv_heads = n_kv_heads or n_heads
    memory = x if memory is None else memory
    q, k, v = linear(under(p, "q."), x), linear(under(p, "k."), memory), linear(under(p, "v."), memory)
    K = q.shape[1] // n_heads
    heads = []
    for h in range(n_heads):
        g = h * n_kv_heads // n_heads
        q_h, k_g, v_g = q[:, h * K : (h + 1) * K], k[:, g * K : (g + 1) * K], v[:, g * K : (g + 1) * K]
        if frequencies is not None:
            q_h = rotary(q_h, range(len(q_h)), frequencies)
            k_g = rotary(k_g, range(len(k_g)), frequencies)
        scale = 1 / math.sqrt(K) if scale_scores else 1
        heads.append(attend(q_h, k_g, v_g, scale, causal, None if bias is None else bias[h]))
    return linear(under(p, "out."), np.concatenate(heads, axis=1))


def t5_attention(p, x, memory=None, *, n_heads, causal=False, bias=None):
    """T5's scores are not scaled, and its positions are a bias on them."""
    return attention(p, x, memory, n_heads=n_heads, causal=causal, scale_scores=False, bias=bias)


def additive_attention(p, s, states):  # Bahdanau: score = vᵀ tanh(W s + U h). [D], [S, E] -> context [E], weights [S]
    scores = [p["energy.weight"][0] @ np.tanh(linear(under(p, "q."), s) + p["k.weight"] @ h) for h in states]
    weights = softmax(np.array(scores))
    return weights @ states, weights


def dot_attention(p, s, states):  # Luong's "general": score = sᵀ U h
    weights = softmax(np.array([s @ p["k.weight"] @ h for h in states]))
    return weights @ states, weights


# Recurrence ---------------------------------------------------------------------------------------------------------


def gates(p, x, h, n):  # W x + b and U h + b', each in n parts
    return np.split(linear(under(p, "input."), x), n), np.split(linear(under(p, "state."), h), n)


def rnn_step(p, x, state):  # Elman 1990
    (wx,), (uh,) = gates(p, x, state[0], 1)
    return (np.tanh(wx + uh),)


def gru_step(p, x, state):  # Cho 2014, reset after the product as in torch; gates in the order r, z, n
    (h,) = state
    (x_r, x_z, x_n), (h_r, h_z, h_n) = gates(p, x, h, 3)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)
    return ((1 - z) * n + z * h,)


def lstm_step(p, x, state):  # Hochreiter 1997, with a forget gate (Gers 2000); gates in the order i, f, g, o
    h, c = state
    i, f, g, o = (wx + uh for wx, uh in zip(*gates(p, x, h, 4), strict=True))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


STEPS = {"rnn": rnn_step, "gru": gru_step, "lstm": lstm_step}


def zero_state(p, cell):
    zeros = np.zeros(p["state.weight"].shape[1])
    return (zeros, zeros) if cell == "lstm" else (zeros,)


def recurrent_layer(p, cell, x, state=None, reverse=False):  # [T, E] -> [T, D], last state
    state = zero_state(p, cell) if state is None else state
    outputs = np.zeros((len(x), len(state[0])))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        state = STEPS[cell](p, x[t], state)
        outputs[t] = state[0]
    return outputs, state


# Images -------------------------------------------------------------------------------------------------------------


def patches(image, size):  # [C, I, J] -> [P, C · size · size], row by row from the top left; in a patch: channel first
    C, rows, columns = image.shape
    cut = []
    for top in range(0, rows, size):
        for left in range(0, columns, size):
            cut.append([image[c, top + i, left + j] for c in range(C) for i in range(size) for j in range(size)])
    return np.array(cut)


# Names --------------------------------------------------------------------------------------------------------------


def under(p, prefix):
    """The parameters below a name, without it."""
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def numbered(p, prefix):
    """(name, parameters) of `prefix.0`, `prefix.1`, ... as many as there are."""
    n = len({name.removeprefix(prefix + ".").split(".")[0] for name in p if name.startswith(prefix + ".")})
    return [(f"{prefix}.{i}", under(p, f"{prefix}.{i}.")) for i in range(n)]


# Whole Transformers: dict of arrays, tokens -> stages ---------------------------------------------------------------


def post_norm(p, name, x, f, epsilon):
    return layer_norm(under(p, f"{name}_norm."), x + f(under(p, f"{name}."), x), epsilon)


def pre_norm(p, name, x, f, norm, epsilon):
    return x + f(under(p, f"{name}."), norm(under(p, f"{name}_norm."), x, epsilon))


def transformer(p, source, target, *, n_heads, activation="relu", layout="interleaved", epsilon=1e-5):
    """Vaswani 2017: post-norm, sinusoids, ReLU, one table (times √D when it is read, plain when it is the output).

    MarianMT: SiLU, sinusoids in halves, and a bias on the logits.
    """
    table = p["encoder.embedding.tokens.weight"]
    D = table.shape[1]

    def embed(tokens):
        return table[tokens] * math.sqrt(D) + sinusoidal(len(tokens), D, layout)

    def look(p, x):
        return attention(p, x, n_heads=n_heads)

    def look_back(p, x):
        return attention(p, x, n_heads=n_heads, causal=True)

    def look_at_source(p, x):
        return attention(p, x, memory, n_heads=n_heads)

    def ff(p, x):
        return feedforward(p, x, activation)

    stages = {}
    x = stages["encoder.embedding.output"] = embed(source)
    for name, block in numbered(p, "encoder.blocks"):
        x = post_norm(block, "self_attention", x, look, epsilon)
        x = stages[f"{name}.output"] = post_norm(block, "feedforward", x, ff, epsilon)
    memory = x
    x = stages["decoder.embedding.output"] = embed(target)
    for name, block in numbered(p, "decoder.blocks"):
        x = post_norm(block, "self_attention", x, look_back, epsilon)
        x = post_norm(block, "cross_attention", x, look_at_source, epsilon)
        x = stages[f"{name}.output"] = post_norm(block, "feedforward", x, ff, epsilon)
    stages["head.vocabulary.logits"] = x @ table.T + p.get("head.vocabulary.bias", 0)
    return stages


def bert_encoder(p, tokens, segments=None, *, n_heads, epsilon=1e-12):
    """Devlin 2019: the Transformer's encoder with learned positions, segments, a norm on their sum, and GELU."""
    stages = {}
    x = p["encoder.embedding.tokens.weight"][tokens] + p["encoder.embedding.positions.weight"][: len(tokens)]
    if segments is not None:
        x = x + p["encoder.embedding.segments.weight"][segments]
    x = stages["encoder.embedding.output"] = layer_norm(under(p, "encoder.embedding.norm."), x, epsilon)
    for name, block in numbered(p, "encoder.blocks"):
        x = post_norm(block, "self_attention", x, lambda p, x: attention(p, x, n_heads=n_heads), epsilon)
        x = post_norm(block, "feedforward", x, lambda p, x: feedforward(p, x, "gelu"), epsilon)
        stages[f"{name}.output"] = x
    return stages


def bert(p, tokens, segments=None, *, n_heads, epsilon=1e-12):
    """With BERT's pooler, tanh(W · the first token + b); without one (DistilBERT) the first token itself."""
    stages = bert_encoder(p, tokens, segments, n_heads=n_heads, epsilon=epsilon)
    first = list(stages.values())[-1][0]
    pooler = under(p, "head.pool.dense.")
    stages["head.vector"] = np.tanh(linear(pooler, first)) if pooler else first
    return stages


def gpt2(p, tokens, *, n_heads, epsilon=1e-5):
    """Radford 2019: pre-norm, learned positions, tanh-GELU, tied."""
    table = p["decoder.embedding.tokens.weight"]
    stages = {}
    x = stages["decoder.embedding.output"] = table[tokens] + p["decoder.embedding.positions.weight"][: len(tokens)]
    for name, block in numbered(p, "decoder.blocks"):
        x = pre_norm(
            block, "self_attention", x, lambda p, x: attention(p, x, n_heads=n_heads, causal=True), layer_norm, epsilon
        )
        x = pre_norm(block, "feedforward", x, lambda p, x: feedforward(p, x, "gelu_tanh"), layer_norm, epsilon)
        stages[f"{name}.output"] = x
    x = stages["decoder.final_norm.output"] = layer_norm(under(p, "decoder.final_norm."), x, epsilon)
    stages["head.vocabulary.logits"] = x @ table.T
    return stages


def llama(p, tokens, *, n_heads, n_kv_heads, base, scaling=None, epsilon=1e-5):
    """Touvron 2023: pre-norm with RMS, rotary positions, SwiGLU, no bias; grouped queries in the later ones."""
    table = p["decoder.embedding.tokens.weight"]
    K = p["decoder.blocks.0.self_attention.q.weight"].shape[0] // n_heads
    frequencies = rotary_frequencies(K, base, scaling)

    def look_back(p, x):
        return attention(p, x, n_heads=n_heads, n_kv_heads=n_kv_heads, causal=True, frequencies=frequencies)

    stages = {}
    x = stages["decoder.embedding.output"] = table[tokens]
    for name, block in numbered(p, "decoder.blocks"):
        x = pre_norm(block, "self_attention", x, look_back, rms_norm, epsilon)
        x = pre_norm(block, "feedforward", x, lambda p, x: feedforward(p, x, "silu"), rms_norm, epsilon)
        stages[f"{name}.output"] = x
    x = stages["decoder.final_norm.output"] = rms_norm(under(p, "decoder.final_norm."), x, epsilon)
    stages["head.vocabulary.logits"] = x @ p.get("head.vocabulary.weight", table).T
    return stages


def t5(p, source, target, *, n_heads, n_buckets, max_distance, activation="relu", epsilon=1e-6):
    """Raffel 2020: pre-norm with RMS, unscaled scores with a relative bias that all blocks of a stack share.

    Tied: the output is first scaled by D^-½. FLAN-T5 (on T5 1.1): a gate with tanh-GELU, a table of its own, no scale.
    """
    table = p["encoder.embedding.tokens.weight"]
    D = table.shape[1]

    def bias(stack, n, both_ways):
        return t5_bias(p[f"{stack}.relative_bias.weight"], n, n, n_buckets, max_distance, both_ways)

    def look(p, x):
        return t5_attention(p, x, n_heads=n_heads, bias=encoder_bias)

    def look_back(p, x):
        return t5_attention(p, x, n_heads=n_heads, bias=decoder_bias, causal=True)

    def look_at_source(p, x):
        return t5_attention(p, x, memory, n_heads=n_heads)

    def ff(p, x):
        return feedforward(p, x, activation)

    stages = {}
    encoder_bias = bias("encoder", len(source), True)
    x = stages["encoder.embedding.output"] = table[source]
    for name, block in numbered(p, "encoder.blocks"):
        x = pre_norm(block, "self_attention", x, look, rms_norm, epsilon)
        x = stages[f"{name}.output"] = pre_norm(block, "feedforward", x, ff, rms_norm, epsilon)
    memory = stages["encoder.final_norm.output"] = rms_norm(under(p, "encoder.final_norm."), x, epsilon)

    decoder_bias = bias("decoder", len(target), False)
    x = stages["decoder.embedding.output"] = table[target]
    for name, block in numbered(p, "decoder.blocks"):
        x = pre_norm(block, "self_attention", x, look_back, rms_norm, epsilon)
        x = pre_norm(block, "cross_attention", x, look_at_source, rms_norm, epsilon)
        x = stages[f"{name}.output"] = pre_norm(block, "feedforward", x, ff, rms_norm, epsilon)
    x = stages["decoder.final_norm.output"] = rms_norm(under(p, "decoder.final_norm."), x, epsilon)
    if "head.vocabulary.weight" in p:
        stages["head.vocabulary.logits"] = x @ p["head.vocabulary.weight"].T
    else:
        stages["head.vocabulary.logits"] = x / math.sqrt(D) @ table.T
    return stages


def flan_t5(p, source, target, **sizes):
    return t5(p, source, target, activation="gelu_tanh", **sizes)


def vit(p, image, *, n_heads, patch_size, epsilon=1e-12):
    """Dosovitskiy 2021: patches as words, a class token in front, pre-norm; the class is read off that token."""
    words = linear(under(p, "encoder.embedding.patches."), patches(image, patch_size))
    x = np.concatenate([p["encoder.embedding.start"][0], words]) + p["encoder.embedding.positions.weight"]
    stages = {"encoder.embedding.output": x}
    for name, block in numbered(p, "encoder.blocks"):
        x = pre_norm(block, "self_attention", x, lambda p, x: attention(p, x, n_heads=n_heads), layer_norm, epsilon)
        x = pre_norm(block, "feedforward", x, lambda p, x: feedforward(p, x, "gelu"), layer_norm, epsilon)
        stages[f"{name}.output"] = x
    x = stages["encoder.final_norm.output"] = layer_norm(under(p, "encoder.final_norm."), x, epsilon)
    stages["head.logits"] = linear(under(p, "head.classes."), x[0])
    return stages


# Whole recurrent models ---------------------------------------------------------------------------------------------


def recurrent_encoder(p, cell, tokens, backward=False):  # -> states [S, E], last state of each layer
    x = p["embedding.tokens.weight"][tokens]
    final = []
    backwards = dict(numbered(p, "backwards"))
    for i, (_, forwards) in enumerate(numbered(p, "forwards")):
        outputs, state = recurrent_layer(forwards, cell, x, reverse=backward)
        if backwards:
            back, back_state = recurrent_layer(backwards[f"backwards.{i}"], cell, x, reverse=True)
            outputs = np.concatenate([outputs, back], axis=1)
            state = tuple(np.concatenate(pair) for pair in zip(state, back_state, strict=True))
        x = outputs
        final.append(state)
    return x, final


def bridge(p, final, n_layers):
    """tanh(W · the encoder's last state + b), layer by layer; a deeper decoder repeats the encoder's top layer."""
    n = len(final[0])
    start = []
    for layer in range(n_layers):
        below = final[min(layer, len(final) - 1)]
        start.append(tuple(np.tanh(linear(under(p, f"bridge.{layer * n + i}."), below[i])) for i in range(n)))
    return start


def recurrent_encoder_decoder(p, source, target, *, cell, attention=None, backward=False):
    """Sutskever 2014 (None), Bahdanau 2015 ("additive": looks before it reads the word), Luong 2015 ("dot": after)."""
    memory, final = recurrent_encoder(under(p, "encoder."), cell, source, backward)
    q = under(p, "decoder.")
    layers = [layer for _, layer in numbered(q, "layers")]
    states = bridge(q, final, len(layers))
    words = q["embedding.tokens.weight"][target]
    outputs = []
    for word in words:
        context = np.zeros(0)
        if attention == "additive":
            context, _ = additive_attention(under(q, "attention."), states[-1][0], memory)
        x = np.concatenate([word, context])
        for i, layer in enumerate(layers):
            states[i] = STEPS[cell](layer, x, states[i])
            x = states[i][0]
        if attention == "dot":
            context, _ = dot_attention(under(q, "attention."), x, memory)
        seen = [x, context, word] if attention == "additive" else [x, context]
        outputs.append(np.tanh(linear(under(q, "readout."), np.concatenate(seen))))
    hidden = np.array(outputs)
    logits = hidden @ q["embedding.tokens.weight"].T
    return {"encoder.output": memory, "decoder.output": hidden, "head.vocabulary.logits": logits}


def recurrent_language_model(p, tokens, *, cell):
    """Layers one above the other; the top one is as wide as the words, which are also the output (AWD-LSTM)."""
    table = p["decoder.embedding.tokens.weight"]
    x = table[tokens]
    for _, layer in numbered(p, "decoder.layers"):
        x, _ = recurrent_layer(layer, cell, x)
    return {"decoder.output": x, "head.vocabulary.logits": x @ table.T + p["head.vocabulary.bias"]}


# Heads --------------------------------------------------------------------------------------------------------------


def masked_language_model(p, x, table, activation, epsilon):  # [T, D] -> [T, V]
    x = layer_norm(under(p, "norm."), ACTIVATIONS[activation](linear(under(p, "dense."), x)), epsilon)
    return x @ p.get("vocabulary.weight", table).T + p["vocabulary.bias"]


def pool(p, x, pooling, hidden=None):  # [T, D] -> [D]
    vector = {"first": x[0], "mean": x.sum(0) / len(x), "last": x[-1]}[pooling]
    return vector if hidden is None else ACTIVATIONS[hidden](linear(under(p, "dense."), vector))


def sentence_vector(p, x, pooling, hidden=None, normalized=False):
    vector = pool(under(p, "pool."), x, pooling, hidden)
    return vector / math.sqrt((vector**2).sum()) if normalized else vector
