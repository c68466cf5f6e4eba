"""Whole models against the numpy oracle, stage by stage; and their heads, sizes and first weights."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import cutaway
from cutaway.info.size import PARTS
from cutaway.kernels import attention as attention_file
from cutaway.models.build import empty, on_meta
from cutaway.models.config import (
    AnswerSpan,
    Classifier,
    Config,
    LanguageModel,
    MaskedLanguageModel,
    RecurrentConfig,
    SentenceVector,
    TransformerConfig,
)
from cutaway.models.init import initialize
from cutaway.models.network import Network
from cutaway.models.presets import PRESETS
from cutaway.parts.cache import Cache
from cutaway.parts.norms import LayerNorm, RMSNorm
from cutaway.parts.tap import listening
from tests.numbers import oracle
from tests.support.families import FAMILIES, TRANSFORMERS, Inputs, arrays, example_inputs, noisy, shrunk, with_stacks

# float32 keeps 6e-8 of a number, and sums here have at most 60 terms of size 1 to 10: errors up to 3e-6 were seen.
CLOSE = {"rtol": 0, "atol": 2e-5}
# T5 does not scale its scores (they reach 18 here), so each softmax makes their rounding larger, and its stream
# is never normed, so it reaches 17: errors up to 5e-5 were seen.
CLOSE_T5 = {"rtol": 0, "atol": 2e-4}


def with_half(name: str, half: str, **changes: object) -> Config:
    config = shrunk(name)
    return replace(config, **{half: replace(getattr(config, half), **changes)})


VARIANTS: dict[str, Config] = {
    "marian": replace(
        with_stacks(shrunk("transformer-tiny"), positions="sinusoidal_halves", activation="silu"),
        head=LanguageModel(bias=True),
    ),
    "llama-2, untied": replace(shrunk("llama-15m"), head=LanguageModel(tied=False)),
    "deeper decoder":  # than its encoder, whose top layer then starts two layers
        with_half("lstm-seq2seq", "decoder", n_layers=4),
    "both directions, two layers, dot": with_half("luong-gru", "encoder", bidirectional=True, backward=False),
    "additive lstm":  # attends with h, not with c; and with the top layer's
        replace(with_half("lstm-seq2seq", "encoder", bidirectional=True, backward=False), attention="additive"),
    "reads forward": with_half("gru-seq2seq", "encoder", backward=False),
}  # fmt: skip
"""Behaviour that a config can ask for and no preset of FAMILIES has."""


def real(values: torch.Tensor, mask: torch.Tensor | None, row: int) -> np.ndarray:
    """One row without its padding."""
    return (values[row] if mask is None else values[row][mask[row]]).detach().numpy()


def oracle_stages(config: Config, network: Network, inputs: Inputs, row: int, **options: float) -> dict:
    """What the oracle says of one row, alone and without its padding."""
    p = arrays(network)
    tokens = real(inputs.tokens, inputs.mask, row)
    target = None if inputs.target is None else real(inputs.target, inputs.target_mask, row)
    if isinstance(config, RecurrentConfig):
        if config.encoder is None:
            return oracle.recurrent_language_model(p, tokens, cell=config.decoder.cell)
        kinds = {"cell": config.decoder.cell, "attention": config.attention, "backward": config.encoder.backward}
        return oracle.recurrent_encoder_decoder(p, tokens, target, **kinds)
    last = config.last
    options["n_heads"] = last.n_heads
    if last.patches is not None:
        return oracle.vit(p, tokens.astype(float), patch_size=last.patches.patch_size, **options)
    if config.decoder is None:
        segments = None if inputs.segments is None else real(inputs.segments, inputs.mask, row)
        return oracle.bert(p, tokens, segments, **options)
    if last.positions == "rotary":
        scaling = last.rotary_scaling and asdict(last.rotary_scaling)
        return oracle.llama(p, tokens, n_kv_heads=last.kv_heads, base=last.rotary_base, scaling=scaling, **options)
    if config.encoder is None:
        return oracle.gpt2(p, tokens, **options)
    if last.positions == "t5_bias":
        model = oracle.flan_t5 if last.gated else oracle.t5
        buckets = {"n_buckets": last.t5_buckets, "max_distance": last.t5_max_distance}
        return model(p, tokens, target, **buckets, **options)
    layout = "interleaved" if last.positions == "sinusoidal" else "halves"
    return oracle.transformer(p, tokens, target, activation=last.activation, layout=layout, **options)


def check_against_oracle(config: Config, inputs: Inputs, *, listen_to_all: bool, **options: float) -> None:
    network = noisy(cutaway.build(config), seed=1)
    expected = [oracle_stages(config, network, inputs, row, **options) for row in range(len(inputs.tokens))]
    is_t5 = isinstance(config, TransformerConfig) and config.last.positions == "t5_bias"
    seen: dict[str, torch.Tensor] = {}

    def keep(value: torch.Tensor, name: str) -> None:
        seen[name] = value

    # The stages are outputs of whole parts: hearing only them leaves attention, norms and recurrence fused.
    with torch.no_grad(), listening(network, dict.fromkeys(["*"] if listen_to_all else expected[0], keep)):
        result = network(*inputs.args, **inputs.options)
    for row, stages in enumerate(expected):
        for name, theirs in stages.items():
            on_target = inputs.target is not None and not name.startswith("encoder.")
            mask = inputs.target_mask if on_target else inputs.mask
            ours = real(seen[name], mask if theirs.ndim == 2 else None, row)
            message = f"first stage to differ: {name}, row {row}"
            np.testing.assert_allclose(ours, theirs, err_msg=message, **(CLOSE_T5 if is_t5 else CLOSE))
        assert torch.equal(result, seen[name])  # the last stage is what the network returns


@pytest.mark.parametrize("listen_to_all", [False, True], ids=["fused", "written_out"])
@pytest.mark.parametrize("padding", ["right", "left", None])
@pytest.mark.parametrize("name", [name for name in (*FAMILIES, *VARIANTS) if name != "vit-tiny"])
def test_model_equals_oracle(name, padding, listen_to_all, monkeypatch):
    monkeypatch.setattr(attention_file, "torch_is_faster", lambda *_: not listen_to_all)
    config = VARIANTS.get(name) or shrunk(name)
    check_against_oracle(config, example_inputs(config, seed=2, padding=padding), listen_to_all=listen_to_all)


@pytest.mark.parametrize("listen_to_all", [False, True], ids=["fused", "written_out"])
def test_vit_equals_oracle(listen_to_all, monkeypatch):
    monkeypatch.setattr(attention_file, "torch_is_faster", lambda *_: not listen_to_all)
    config = shrunk("vit-tiny")
    check_against_oracle(config, example_inputs(config, seed=2), listen_to_all=listen_to_all)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_epsilon_reaches_every_norm(name):
    config = with_stacks(shrunk(name), norm_epsilon=0.25)  # true ones, 1e-5 and less, drown in float32's rounding
    check_against_oracle(config, example_inputs(config, seed=2), listen_to_all=False, epsilon=0.25)


def test_presets_have_the_published_epsilon():
    published = {
        "bert": 1e-12,
        "distilbert": 1e-12,
        "gpt2": 1e-5,
        "llama": 1e-5,
        "t5": 1e-6,
        "flan": 1e-6,
        "vit": 1e-12,
    }
    for name in PRESETS:
        if (family := name.split("-")[0]) in published:
            assert cutaway.preset(name).last.norm_epsilon == published[family], name


# Heads --------------------------------------------------------------------------------------------------------------


def bert_with(head, padding="right"):
    """A noisy BERT with this head, its inputs, and the oracle's hidden states of each row."""
    config = replace(shrunk("bert-tiny"), head=head)
    network = noisy(cutaway.build(config), seed=3)
    inputs = example_inputs(config, seed=4, padding=padding)
    hidden = []
    for row in range(len(inputs.tokens)):
        tokens, segments = real(inputs.tokens, inputs.mask, row), real(inputs.segments, inputs.mask, row)
        stages = oracle.bert_encoder(arrays(network), tokens, segments, n_heads=config.encoder.n_heads)
        hidden.append(list(stages.values())[-1])
    with torch.no_grad():
        result = network(*inputs.args, **inputs.options)
    return result, inputs, hidden, oracle.under(arrays(network), "head."), network


def close(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), theirs, **CLOSE)


@pytest.mark.parametrize("padding", ["right", "left", None])
def test_without_a_head_the_hidden_states(padding):
    result, inputs, hidden, _, _ = bert_with(None, padding)
    for row, x in enumerate(hidden):
        np.testing.assert_allclose(real(result, inputs.mask, row), x, **CLOSE)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_masked_language_model(tied, activation):
    # epsilon 0.5: unlike the stack's, and large enough to be seen
    head = MaskedLanguageModel(tied=tied, activation=activation, norm_epsilon=0.5)
    result, inputs, hidden, p, network = bert_with(head)
    assert ("vocabulary.weight" in p) is not tied
    table = network.encoder.embedding.tokens.weight.detach().double().numpy()
    for row, x in enumerate(hidden):
        theirs = oracle.masked_language_model(p, x, table, activation, 0.5)
        np.testing.assert_allclose(real(result, inputs.mask, row), theirs, **CLOSE)


@pytest.mark.parametrize("padding", ["right", "left", None])
@pytest.mark.parametrize("hidden", [None, "tanh", "relu"])
@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
def test_classifier(pooling, hidden, padding):
    head = Classifier(n_classes=11, pooling=pooling, hidden=hidden, bias=padding is not None)
    result, _, states, p, _ = bert_with(head, padding)
    assert ("classes.bias" in p) is (padding is not None)
    for row, x in enumerate(states):
        pooled = oracle.pool(oracle.under(p, "pool."), x, pooling, hidden)
        close(result[row], oracle.linear(oracle.under(p, "classes."), pooled))


def test_classifier_on_a_decoder_reads_its_last_token():
    config = replace(shrunk("gpt2"), head=Classifier(n_classes=11, pooling="last"))
    network = noisy(cutaway.build(config), seed=3)
    inputs = example_inputs(config, seed=4)
    p = arrays(network)
    for row in range(len(inputs.tokens)):
        stages = oracle.gpt2(p, real(inputs.tokens, inputs.mask, row), n_heads=config.decoder.n_heads)
        last = stages["decoder.final_norm.output"][-1]
        close(network(*inputs.args, **inputs.options)[row], oracle.linear(oracle.under(p, "head.classes."), last))


@pytest.mark.parametrize("padding", ["right", "left", None])
def test_answer_span(padding):
    result, inputs, hidden, p, _ = bert_with(AnswerSpan(), padding)
    for row, x in enumerate(hidden):
        theirs = oracle.linear(oracle.under(p, "ends."), x)
        np.testing.assert_allclose(real(result, inputs.mask, row), theirs, **CLOSE)
    if inputs.mask is not None:
        assert (result[~inputs.mask] == -torch.inf).all()  # an answer can't start or end in padding


@pytest.mark.parametrize("padding", ["right", "left", None])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("pooling", "hidden"), [("mean", None), ("mean", "tanh"), ("first", "tanh"), ("last", None)])
def test_sentence_vector(pooling, hidden, normalized, padding):
    head = SentenceVector(pooling=pooling, hidden=hidden, normalized=normalized)
    result, _, states, p, _ = bert_with(head, padding)
    for row, x in enumerate(states):
        close(result[row], oracle.sentence_vector(p, x, pooling, hidden, normalized))
    if normalized:
        close(result.square().sum(-1), np.ones(len(result)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_language_model_head(tied, scaled, bias):
    config = replace(shrunk("gpt2"), head=LanguageModel(tied=tied, scaled=scaled, bias=bias))
    network = noisy(cutaway.build(config), seed=3)
    tokens = example_inputs(config, seed=4, padding=None).tokens
    p = arrays(network)
    hidden = oracle.gpt2(p, tokens[1].numpy(), n_heads=config.decoder.n_heads)["decoder.final_norm.output"]
    if scaled:
        hidden = hidden / math.sqrt(config.decoder.d_model)
    table = p["decoder.embedding.tokens.weight" if tied else "head.vocabulary.weight"]
    logits = hidden @ table.T + (p["head.vocabulary.bias"] if bias else 0)
    close(network(tokens)[1], logits)
    trace = cutaway.trace(network, tokens, keep="head.*")
    close(trace["head.vocabulary.probabilities"][1], oracle.softmax(logits))


# Sizes --------------------------------------------------------------------------------------------------------------

PUBLISHED = {
    "transformer-base": 63_082_496,  # Table 3's "65 M": with 37,000 word pieces, one table, sinusoids
    "transformer-big": 214_245_376,  # "213 M"
    "bert-tiny": 4_385_920,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "distilbert-base": 66_362_880,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "vit-tiny": 5_717_416,
    "vit-small": 22_050_664,
    "vit-base": 86_567_656,
    "llama-15m": 15_191_712,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_count(name):
    counted = cutaway.size(name)
    assert counted.parameters == PUBLISHED[name]
    assert set(counted.by_part) == set(PARTS)
    assert sum(counted.by_part.values()) == counted.parameters


def test_awd_lstm_has_the_published_parameter_count():
    config = cutaway.preset("awd-lstm")
    penn_treebank = replace(config, decoder=replace(config.decoder, vocabulary=10_000))
    assert cutaway.size(penn_treebank).parameters == 24_221_600  # Merity 2017's "24 M"


@pytest.mark.parametrize("name", [*PRESETS, *(f"shrunk {name}" for name in FAMILIES)])
def test_size_equals_a_full_count(name):
    """`size` counts one block as often as there are blocks; here, all of them."""
    config = shrunk(name.removeprefix("shrunk ")) if name.startswith("shrunk ") else cutaway.preset(name)
    assert cutaway.size(config).parameters == sum(weight.numel() for weight in on_meta(config).parameters())


D, F, V, E, CONTEXT = 24, 20, 19, 20, 9  # E: all heads of a T5 side by side
T5_ATTENTION = 4 * D * E + 2 * E * CONTEXT
PARAMETERS = {
    "bert-tiny": {
        "embedding": V * D + 13 * D + 2 * D,
        "attention": 3 * 4 * (D * D + D),
        "cross-attention": 0,
        "feed-forward": 3 * (D * F + F + F * D + D),
        "recurrent": 0,
        "norm": 2 * D + 3 * 2 * 2 * D,
        "head": D * D + D,
    },
    "flan-t5-small": {
        "embedding": V * D,
        "attention": (3 + 2) * 4 * D * E + 2 * 8 * 4,
        "cross-attention": 2 * 4 * D * E,
        "feed-forward": (3 + 2) * 3 * D * F,
        "recurrent": 0,
        "norm": 3 * 2 * D + 2 * 3 * D + 2 * D,
        "head": V * D,
    },
}
MULTIPLICATIONS = {
    "gpt2": 2 * (4 * D * D + 2 * D * F + 2 * D * CONTEXT) + D * V,  # 2 blocks, each: q k v o, ff, q·k and w·v
    "llama-15m": 2 * (2 * D * D + 2 * D * 12 + 3 * D * F + 2 * D * CONTEXT) + D * V,  # k and v have G · K = 12 rows
    "t5-small": 3 * (T5_ATTENTION + 2 * D * F) + 2 * (2 * T5_ATTENTION + 2 * D * F) + D * V,
    "awd-lstm": 4 * 12 * (8 + 12) + 4 * 12 * (12 + 12) + 4 * 8 * (12 + 8) + 8 * 19,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_by_part_by_hand(name):
    assert cutaway.size(shrunk(name)).by_part == PARAMETERS[name]


@pytest.mark.parametrize("name", MULTIPLICATIONS)
def test_flops_by_hand(name):
    counted = cutaway.size(shrunk(name), context=CONTEXT)
    assert counted.flops_forward == 2 * MULTIPLICATIONS[name]
    assert counted.flops_training == 3 * counted.flops_forward
    assert counted.context == CONTEXT
    assert name != "gpt2" or counted.flops_forward == 15_696


def test_an_image_s_context_is_its_number_of_places():
    config = cutaway.preset("vit-base")
    counted = cutaway.size(config, context=7)
    assert counted.context == 1 + (224 // 16) ** 2
    assert counted.flops_forward == cutaway.size(config).flops_forward


def test_bytes():
    llama2, llama3 = cutaway.size("llama-2-7b"), cutaway.size("llama-3.2-1b")
    assert llama2.weight_bytes(2) == 13_476_831_232
    assert llama2.kv_cache_bytes() == 32 * 2 * 4096 * 2  # half a megabyte a token
    assert llama3.kv_cache_bytes() == 16 * 2 * 8 * 64 * 2  # 8 key/value heads instead of 32
    assert cutaway.size("bert-base").kv_cache_floats == 0  # an encoder keeps nothing
    assert cutaway.size("t5-small").kv_cache_floats == 6 * 2 * 8 * 64  # the decoder's self-attention only


# First weights ------------------------------------------------------------------------------------------------------


def has_std(weight, std):
    """The spread of n draws is off by std/√(2n) (one deviation, of a normal; less for a uniform); 5 of those pass."""
    n = weight.numel()
    assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)


def is_glorot(weight):
    bound = math.sqrt(6 / sum(weight.shape))
    assert weight.abs().max() <= bound
    has_std(weight, bound / math.sqrt(3))


def wide(name: str) -> Network:
    """A network of few blocks and some 10⁴ numbers a matrix, so that spreads can be told apart."""
    sizes = {"d_model": 96, "n_heads": 4, "d_ff": 160}
    sizes |= {"d_head": 20} if "t5" in name else {}
    sizes |= {"vocabulary": 211} if "vit" not in name else {}
    return cutaway.build(with_stacks(shrunk(name), **sizes), seed=7)


def linears(network):
    return {name: m for name, m in network.named_modules() if isinstance(m, torch.nn.Linear)}


@pytest.mark.parametrize("name", FAMILIES)
def test_same_seed_same_weights(name):
    first, again, other = (cutaway.build(shrunk(name), seed=seed).state_dict() for seed in (5, 5, 6))
    for key, weight in first.items():
        assert torch.equal(weight, again[key]), key
        if weight.unique().numel() > 2:  # all but biases and norms, which start at 0 and 1
            assert not torch.equal(weight, other[key]), key


@pytest.mark.parametrize("name", FAMILIES)
def test_global_random_state_is_left_alone(name):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = cutaway.build(shrunk(name), seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    for key, weight in cutaway.build(shrunk(name), seed=5).state_dict().items():
        assert torch.equal(weight, first[key]), key


HEADS = [
    (name, head)
    for names, heads in (
        (("transformer-tiny", "t5-small", "gpt2", "awd-lstm"), [LanguageModel(tied=False, bias=True)]),
        (("bert-tiny",), [MaskedLanguageModel(tied=False), AnswerSpan(), SentenceVector(hidden="tanh")]),
        (("transformer-tiny", "vit-tiny", "t5-small"), [Classifier(n_classes=11, hidden="relu")]),
    )
    for name in names
    for head in heads
]


@pytest.mark.parametrize(("name", "head"), [*((name, shrunk(name).head) for name in FAMILIES), *HEADS])
def test_every_parameter_is_filled(name, head):
    network = empty(replace(shrunk(name), head=head))
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(torch.nan)
    initialize(network, seed=5)
    for key, weight in network.state_dict().items():
        assert weight.isfinite().all(), key
        if weight.dim() == 2:
            assert weight.unique().numel() > 2, key  # drawn, not a constant


@pytest.mark.parametrize("name", FAMILIES)
def test_biases_start_at_0_and_norms_at_1(name):
    network = cutaway.build(shrunk(name))
    remembers = name not in TRANSFORMERS and network.config.decoder.cell != "rnn"  # test_recurrent_start looks there
    for key, weight in network.named_parameters():
        if key.endswith(".bias") and not (".input." in key and remembers):
            assert (weight == 0).all(), key
    for key, module in network.named_modules():
        if isinstance(module, LayerNorm | RMSNorm):
            assert (module.weight == 1).all(), key


def test_transformer_starts_with_glorot_and_words_of_length_1():
    network = wide("transformer-tiny")
    for linear in linears(network).values():
        is_glorot(linear.weight)
    has_std(network.encoder.embedding.tokens.weight, 96**-0.5)
    untied = cutaway.build(replace(network.config, head=LanguageModel(tied=False)))
    has_std(untied.head.vocabulary.weight, 96**-0.5)


@pytest.mark.parametrize("name", ["distilbert-base", "llama-15m"])
def test_distilbert_and_llama_start_with_a_spread_of_002(name):
    network = wide(name)
    matrices = {key: weight for key, weight in network.named_parameters() if weight.dim() == 2}
    assert {key.rsplit(".", 2)[-2] for key in matrices} >= {"tokens", "q", "k", "v", "out", "up", "down"}
    for weight in matrices.values():
        has_std(weight, 0.02)


def test_gpt2_shrinks_what_is_added_to_the_stream_by_depth():
    network = wide("gpt2")
    n_added = 2 * 2  # attention and feed-forward in each of 2 blocks
    for name, linear in linears(network).items():
        has_std(linear.weight, 0.02 / math.sqrt(n_added) if name.endswith(("out", "down")) else 0.02)
    has_std(network.decoder.embedding.tokens.weight, 0.02)
    has_std(network.decoder.embedding.positions.weight, 0.01)


@pytest.mark.parametrize("name", ["bert-tiny", "vit-tiny"])
def test_bert_and_vit_are_cut_at_two_deviations(name):
    network = wide(name)
    # the spread of a normal that is cut at ±2: √(1 - 4 φ(2) / (Φ(2) - Φ(-2)))
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    cut = 0.02 * math.sqrt(1 - 4 * density / math.erf(math.sqrt(2)))
    for linear in linears(network).values():
        has_std(linear.weight, cut)
        assert 0.035 < linear.weight.abs().max() <= 0.04
    if name == "vit-tiny":
        has_std(network.encoder.embedding.start, cut)
    has_std(network.encoder.embedding.positions.weight, cut)


@pytest.mark.parametrize("name", ["t5-small", "flan-t5-small"])
def test_t5_spreads(name):
    network = wide(name)
    D, K, H, F = 96, 20, 4, 160
    expected = {"q": (D * K) ** -0.5, "k": D**-0.5, "v": D**-0.5, "out": (H * K) ** -0.5}
    expected |= {"up": D**-0.5, "gate": D**-0.5, "down": F**-0.5}
    for key, linear in linears(network).items():
        has_std(linear.weight, expected[key.rsplit(".", 1)[-1]])
    has_std(network.encoder.embedding.tokens.weight, 1.0)
    has_std(network.encoder.relative_bias.weight, D**-0.5)
    has_std(network.decoder.relative_bias.weight, D**-0.5)
    if name.startswith("flan"):
        has_std(network.head.vocabulary.weight, 1.0)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in TRANSFORMERS])
def test_recurrent_start(name):
    config = shrunk(name)
    network = cutaway.build(with_stacks(config, d_model=30, d_hidden=40, vocabulary=211), seed=7)
    layers = 0
    for key, module in network.named_modules():
        if key.endswith(".state"):  # orthogonal: lengths and angles survive many steps. 2e-6: 40 products in float32
            layers += 1
            for gate in module.weight.split(module.in_features):
                torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), rtol=0, atol=2e-6)
        elif isinstance(module, torch.nn.Linear):
            is_glorot(module.weight)
        if key.endswith(".input") and config.decoder.cell == "lstm":
            i, f, g, o = module.bias.chunk(4)
            assert (f == 1).all()  # begins by remembering
            assert (torch.stack((i, g, o)) == 0).all()
        if key.endswith(".input") and config.decoder.cell == "gru":
            r, z, n = module.bias.chunk(3)
            assert (z == (1 if config.attention is None else 0)).all()  # without attention it must remember
            assert (torch.stack((r, n)) == 0).all()
    assert layers == sum(len(halves) for halves in stacks_of_layers(network))
    has_std(network.decoder.embedding.tokens.weight, 30**-0.5)


def stacks_of_layers(network):
    encoder = [] if network.encoder is None else [network.encoder.forwards, network.encoder.backwards]
    return [*encoder, network.decoder.layers]


def test_rotary_encoder_decoder_turns_self_attention_only():
    """Distances between two sequences mean nothing, so cross-attention is not turned."""
    stack = shrunk("llama-15m").decoder
    network = cutaway.build(TransformerConfig(encoder=stack, decoder=stack, head=LanguageModel()))
    x = torch.ones(1, 3, dtype=torch.long)
    names = set(cutaway.trace(network, x, x))
    assert "decoder.blocks.0.self_attention.rotated_queries" in names
    assert "decoder.blocks.0.cross_attention.queries" in names
    assert "decoder.blocks.0.cross_attention.rotated_queries" not in names


@pytest.mark.parametrize("name", ["gpt2", "gru-seq2seq", "bahdanau-gru"])
def test_a_cached_step_may_be_padding_for_rows_that_have_ended(name):
    config = shrunk(name)
    network, inputs = cutaway.build(config), example_inputs(config, padding=None)
    target = inputs.tokens if inputs.target is None else inputs.target
    with torch.no_grad():
        memory = None if inputs.target is None else network.encode(inputs.tokens)
        cache = Cache()
        network.decode(target[:, :3], memory, cache)
        network.decode(target[:, 3:4], memory, cache, mask=torch.tensor([[True], [False], [True]]))
        last = network.decode(target[:, 4:5], memory, cache)
        skipped = torch.cat((target[1:2, :3], target[1:2, 4:5]), dim=1)
        expected = network.decode(skipped, None if memory is None else memory.select(torch.tensor([1])))
    torch.testing.assert_close(last[1, -1], expected[0, -1], rtol=2e-5, atol=2e-5)


def test_weight_dropout_is_drawn_once_for_a_sequence():
    config = shrunk("bahdanau-gru")
    network = cutaway.build(replace(config, decoder=replace(config.decoder, weight_dropout=0.5, dropout=0.0))).train()
    layer, drawn = network.decoder.layers[0], []
    draw = layer.recurrent_weight
    layer.recurrent_weight = lambda: drawn.append(draw()) or drawn[-1]
    inputs = example_inputs(config)
    network(*inputs.args, **inputs.options)
    assert len(drawn) == 1
    assert (drawn[0] == 0).float().mean() > 0.3
