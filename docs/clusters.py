"""Writes docs/clusters.md, what training on a cluster takes, from the constants below: `python -m docs.clusters`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Literal

from cutaway.info.size import Size, size
from cutaway.models.config import TransformerConfig
from cutaway.models.presets import preset
from cutaway.training.config import Batches, Saving, TrainConfig
from cutaway.training.defaults import with_steps
from cutaway.training.loss import _ROWS
from cutaway.training.schedule import noam_rate

PATH = Path(__file__).parent / "clusters.md"


@dataclass(frozen=True)
class Run:
    """How the paper trained a model (§5.2, §5.3), and what it says that cost (table 2)."""

    model: str
    steps: int
    hours: float
    step_seconds: float
    flops: float


@dataclass(frozen=True)
class Device:
    """`peak`: FLOP/s of dense products, as its maker states them, in `dtype`."""

    name: str
    dtype: str
    peak: float


# The paper's
RUNS = (
    Run("transformer-base", 100_000, 12.0, 0.4, 3.3e18),
    Run("transformer-big", 300_000, 3.5 * 24, 1.0, 2.3e19),
)
BATCH = 25_000  # tokens of a step, on each side
GPUS, SUSTAINED = 8, 9.5e12  # P100s, and the FLOP/s the paper takes each to sustain (its footnote 5)
WARMUP = 4000
PAIRS = 4_500_000  # of WMT 2014 English–German

# The makers': peaks without sparsity
DEVICES = (
    Device("P100 SXM", "float32", 10.6e12),
    Device("V100 SXM", "float32", 15.7e12),
    Device("V100 SXM", "float16", 125e12),
    Device("A100", "bfloat16", 312e12),
    Device("H100 SXM", "bfloat16", 989e12),
)
EXAMPLE = DEVICES[3]

# Assumed
CONTEXT = 32  # tokens of a sentence
UTILISATIONS = (0.3, 0.4)
PRICE = 2.0  # of a device for an hour, in any currency
RANKS = 8
MEMORIES = (16e9, 80e9)  # of the smallest and of the largest of these devices
NETWORK = 100e9 / 8  # bytes a second between machines

# Measured: docs/performance.md, transformer-base, forward+backward, fp32, 256×17 → 256×16; and its products alone
CPU_TOKENS, CPU_CONTEXT, CPU_PRODUCTS = 583, 17, 300e9

# Bytes of a weight
WEIGHTS, GRADIENTS, MOMENTS, EMA, SHOWN, BUCKETS, HALVES = 4, 4, 8, 4, 4, 4, 2
Precision = Literal["bfloat16", "float32"]


@dataclass(frozen=True)
class Kept:
    """Bytes of a token that the backward pass needs: d_model times these, and d_ff times `inside` in each block."""

    encoder_block: int
    decoder_block: int
    inside: int
    memory: int = 8  # of a source token, in each block of the decoder
    embedding: int = 1


KEPT: dict[Precision, Kept] = {"bfloat16": Kept(19 + 7, 19 + 11 + 7, 2), "float32": Kept(25 + 9, 25 + 17 + 9, 4)}
LOSS = 12  # times d_model, of a target token
LOGIT = 8  # bytes of a logit: bfloat16, its log-probability in float32, and its gradient in bfloat16


# ------------------------------------------------------------------------------------------------------ the sums


@cache
def counted(model: str, context: int = CONTEXT) -> Size:
    return size(model, context=context)


def config_of(model: str) -> TransformerConfig:
    config = preset(model)
    assert isinstance(config, TransformerConfig)
    return config


def work(run: Run) -> float:
    """FLOPs to train: of a pair of tokens, times those of a step, times the steps."""
    return float(counted(run.model).flops_training) * BATCH * run.steps


def papers_estimate(run: Run) -> float:
    """Time, times GPUs, times what each sustains: what the paper did."""
    return run.hours * 3600 * GPUS * SUSTAINED


def activation_bytes(config: TransformerConfig, precision: Precision = "bfloat16") -> tuple[int, int]:
    """Of a source and of a target token: what the backward pass needs of the network, loss not included."""
    encoder, decoder, kept = config.encoder, config.decoder, KEPT[precision]
    assert encoder is not None
    assert decoder is not None
    source = encoder.n_blocks * (kept.encoder_block * encoder.d_model + kept.inside * encoder.d_ff)
    target = decoder.n_blocks * (kept.decoder_block * decoder.d_model + kept.inside * decoder.d_ff)
    read = decoder.n_blocks * kept.memory * decoder.d_model
    return source + read + kept.embedding * encoder.d_model, target + kept.embedding * decoder.d_model


def share_bytes(model: str, tokens: int) -> int:
    """Of all activations of a share with so many tokens on each side."""
    config = config_of(model)
    return tokens * (sum(activation_bytes(config)) + LOSS * config.last.d_model)


def loss_bytes(model: str) -> int:
    """The logits of some rows; the table of words in bfloat16 and its gradient in float32."""
    last = config_of(model).last
    assert last.vocabulary is not None
    return LOGIT * _ROWS * last.vocabulary + 6 * last.vocabulary * last.d_model


def matrices(model: str) -> int:
    """Weights of linear layers, which autocast copies."""
    parts = counted(model).by_part
    return counted(model).parameters - parts["embedding"] - parts["norm"]


def passing_bytes(model: str, ranks: int) -> int:
    """What comes and goes in each step, whatever the sharding: the step cut into a share a rank."""
    return HALVES * matrices(model) + share_bytes(model, BATCH // ranks) + loss_bytes(model)


def ddp_bytes(model: str, ranks: int) -> int:
    each = WEIGHTS + GRADIENTS + MOMENTS + EMA + SHOWN + BUCKETS
    return each * counted(model).parameters + passing_bytes(model, ranks)


def fsdp_held(model: str, ranks: int) -> int:
    """A part of each weight and of what belongs to it."""
    return (WEIGHTS + GRADIENTS + MOMENTS + EMA) * counted(model).parameters // ranks


def fsdp_bytes(model: str, ranks: int) -> int:
    """In a step: the table of words and two blocks are whole."""
    config, parts = config_of(model), counted(model).by_part
    block = matrices(model) // (2 * config.last.n_blocks)
    return fsdp_held(model, ranks) + WEIGHTS * (parts["embedding"] + 2 * block) + passing_bytes(model, ranks)


def fsdp_saving_bytes(model: str, ranks: int) -> int:
    """While a state is saved: one tensor after another is whole, the table of words at most."""
    return fsdp_held(model, ranks) + WEIGHTS * counted(model).by_part["embedding"]


def rate(model: str, device: Device, utilisation: float) -> float:
    """Pairs of tokens a second."""
    return utilisation * device.peak / counted(model).flops_training


def hours(run: Run, device: Device, utilisation: float, devices: int = 1) -> float:
    return work(run) / (utilisation * device.peak * devices) / 3600


def cpu_flops() -> float:
    """FLOP/s of the training measured on two cores."""
    return float(CPU_TOKENS) * counted("transformer-base", CPU_CONTEXT).flops_training


def open_shares(on_cpu: bool) -> int:
    """What batches.shares becomes if it is left open at the paper's batch."""
    config = TrainConfig(batches=Batches(tokens=BATCH))
    shares = with_steps(config, PAIRS, PAIRS * CONTEXT, lambda _: None, on_cpu=on_cpu).batches.shares
    assert shares is not None
    return shares


# ----------------------------------------------------------------------------------------------------- the page


def table(*rows: list[str]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def about(number: float) -> str:
    """To two digits: 12000, 3.4, 0.56."""
    digits = f"{number:.1e}"
    value = float(digits)
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def power(number: float, digits: int = 2) -> str:
    """3.28 · 10¹⁸"""
    first, exponent = f"{number:.{digits}e}".split("e")
    return f"{first} · 10{str(int(exponent)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def lasting(n_hours: float) -> str:
    if n_hours < 1:
        return f"{about(60 * n_hours)} min"
    return f"{about(n_hours)} h" if n_hours < 72 else f"{about(n_hours / 24)} days"


def spread(least: str, most: str) -> str:
    """A range, with its unit once if it is the same."""
    number, unit = least.split()
    return f"{number}–{most}" if unit == most.split()[1] else f"{least} – {most}"


def wrapped(text: str) -> str:
    """Each paragraph in lines of at most 120; code, tables and headings as they are."""
    parts = text.split("```")
    for i in range(0, len(parts), 2):
        paragraphs = parts[i].split("\n\n")
        parts[i] = "\n\n".join(
            paragraph
            if not paragraph.strip() or paragraph.lstrip().startswith(("|", "#"))
            else fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)
            for paragraph in paragraphs
        )
    return "```".join(parts)


def gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB"


def flops_table() -> str:
    return table(
        ["", *(run.model for run in RUNS)],
        ["parameters", *(f"{counted(run.model).parameters:,}" for run in RUNS)],
        ["FLOPs of a pair of tokens", *(f"{counted(run.model).flops_training:,}" for run in RUNS)],
        ["pairs of tokens in a step", *(f"{BATCH:,}" for _ in RUNS)],
        ["steps", *(f"{run.steps:,}" for run in RUNS)],
        ["**counted**: the product of these", *(f"**{power(work(run))}**" for run in RUNS)],
        [f"{GPUS} P100 × {SUSTAINED / 1e12:g} TFLOP/s × time", *(power(papers_estimate(run)) for run in RUNS)],
        ["the paper's table 2", *(power(run.flops, 1) for run in RUNS)],
        ["counted / table 2", *(percent(work(run) / run.flops) for run in RUNS)],
        [
            "counted, of the P100's peak",
            *(percent(work(run) / (run.hours * 3600 * GPUS * DEVICES[0].peak)) for run in RUNS),
        ],
    )


def memory_table() -> str:
    def each(what: str, per_weight: int, where: str) -> list[str]:
        return [
            what,
            f"{per_weight} × weights",
            *(gb(per_weight * counted(run.model).parameters) for run in RUNS),
            where,
        ]

    return table(
        ["what", "bytes", *(run.model for run in RUNS), "with fsdp"],
        each("weights, float32", WEIGHTS, "a part"),
        each("gradients, float32", GRADIENTS, "a part¹"),
        each("Adam's two moments, float32", MOMENTS, "a part"),
        each("moving average, if `averaging.ema` is set", EMA, "a part"),
        each("the copy that is judged at each look, on rank 0", SHOWN, "in the host's memory"),
        each("DDP's buckets, in which gradients travel", BUCKETS, "none"),
        [
            "bfloat16 copies of the matrices, kept by autocast for a step",
            f"{HALVES} × matrices",
            *(gb(HALVES * matrices(run.model)) for run in RUNS),
            "whole",
        ],
        [
            f"activations of {BATCH // RANKS:,} + {BATCH // RANKS:,} tokens",
            "formula below",
            *(gb(share_bytes(run.model, BATCH // RANKS)) for run in RUNS),
            "the same",
        ],
        ["the loss", "formula below", *(gb(loss_bytes(run.model)) for run in RUNS), "the same"],
    )


def activations_table() -> str:
    kept = KEPT["bfloat16"]
    return table(
        ["", "bytes", "of these"],
        [
            "encoder block, a source token",
            f"{kept.encoder_block} D + {kept.inside} F",
            "attention 19 D: x for q, k and v (3 · 2 D); q, k, v and heads (4 · 2 D); dropout D; norm 4 D. "
            "Feed-forward 7 D + 2 F: x 2 D; activated 2 F; dropout D; norm 4 D",
        ],
        [
            "decoder block, a target token",
            f"{kept.decoder_block} D + {kept.inside} F",
            "the same, and cross-attention 11 D: x 2 D; q and heads (2 · 2 D); dropout D; norm 4 D",
        ],
        ["decoder block, a source token", f"{kept.memory} D", "memory for k and v (2 · 2 D); k and v (2 · 2 D)"],
        ["embedding, each token", f"{kept.embedding} D", "dropout"],
        ["loss, a target token", f"{LOSS} D", "hidden states, those that count, and their gradient, in float32"],
    )


def totals_table() -> str:
    return table(
        [f"{RANKS} ranks, each device", *(run.model for run in RUNS)],
        ["ddp", *(gb(ddp_bytes(run.model, RANKS)) for run in RUNS)],
        ["fsdp, in a step", *(gb(fsdp_bytes(run.model, RANKS)) for run in RUNS)],
        ["fsdp, while a state is saved", *(gb(fsdp_saving_bytes(run.model, RANKS)) for run in RUNS)],
    )


def rates_table() -> str:
    heads = [f"{run.model.removeprefix('transformer-')}, {percent(share)}" for run in RUNS for share in UTILISATIONS]
    return table(
        ["device", "numbers", "peak, TFLOP/s", *heads],
        *(
            [
                device.name,
                device.dtype,
                f"{device.peak / 1e12:g}",
                *(about(rate(run.model, device, share)) for run in RUNS for share in UTILISATIONS),
            ]
            for device in DEVICES
        ),
    )


def times_table() -> str:
    low, high = UTILISATIONS

    def between(run: Run, device: Device, devices: int) -> str:
        return spread(lasting(hours(run, device, high, devices)), lasting(hours(run, device, low, devices)))

    heads = [f"{run.model.removeprefix('transformer-')}, {n} ×" for run in RUNS for n in (1, RANKS)]
    return table(
        ["device", "numbers", *heads, *(f"device-hours, {run.model.removeprefix('transformer-')}" for run in RUNS)],
        *(
            [
                device.name,
                device.dtype,
                *(between(run, device, n) for run in RUNS for n in (1, RANKS)),
                *(f"{about(hours(run, device, high))}–{about(hours(run, device, low))}" for run in RUNS),
            ]
            for device in DEVICES
        ),
    )


def traffic() -> str:
    """What ddp sends, beside the time there is for it."""
    base = counted(RUNS[0].model)
    sent = 2 * (RANKS - 1) / RANKS * GRADIENTS * base.parameters
    seconds = BATCH * base.flops_training / (RANKS * UTILISATIONS[1] * EXAMPLE.peak)
    return (
        f"In each step of ddp every rank sends, and receives, 2 · {RANKS - 1}/{RANKS} · {GRADIENTS} bytes a weight, "
        f"{sent / 1e6:.0f} MB for base. On {RANKS} {EXAMPLE.name} at {percent(UTILISATIONS[1])} a step takes "
        f"{1000 * seconds:.0f} ms, so links must carry some {sent / seconds / 1e9:.0f} GB/s each way, or be waited "
        f"for: NVLink does, a network of {8 * NETWORK / 1e9:.0f} Gbit/s ({NETWORK / 1e9:.1f} GB/s) does not. "
        f"Larger steps (`batches.tokens`) or fewer devices help."
    )


def limit(memory: float) -> str:
    """The weights, in billions, that ddp's constant part lets into so many bytes."""
    each = WEIGHTS + GRADIENTS + MOMENTS + EMA + SHOWN + BUCKETS + HALVES
    return f"{memory / each / 1e9:.1f}"


def page() -> str:
    base, big = RUNS
    small = config_of(base.model).last
    each_pair = sum(activation_bytes(config_of(base.model)))
    wide_pair = sum(activation_bytes(config_of(base.model), "float32"))
    cpu_hours = [work(run) / cpu_flops() / 3600 for run in RUNS]
    cost = {run.model: PRICE * hours(run, EXAMPLE, UTILISATIONS[0]) for run in RUNS}
    scores = 1 - counted(base.model, 1).flops_training / counted(base.model).flops_training
    whole_logits = 4 * (BATCH // RANKS) * (small.vocabulary or 0)
    always = WEIGHTS + GRADIENTS + MOMENTS + EMA + SHOWN + BUCKETS
    reached = [counted(run.model).flops_training * BATCH / (GPUS * run.step_seconds) / 1e12 for run in RUNS]
    text = f"""# Training on a cluster

What to type, how much work it is, and what it should take. Its numbers are computed by `python -m docs.clusters` from
the constants at its top. **None of them was measured on a GPU**: cutaway is tested with two ranks on a CPU (gloo),
with `ddp` and with `fsdp`. What is assumed is called so.

## The commands

`run.toml` says what is learnt. The paper's base model:

```toml
[data]
source = ["train.en"]
target = ["train.de"]

[tokenizer]
vocabulary = {small.vocabulary}

[model]
preset = "{base.model}"
norm_place = "post"

[batches]
tokens = {BATCH}
shares = {RANKS}

[optimizer]
kind = "adamw"
decay = 0
clip = 0
rate = {noam_rate(small.d_model, WARMUP):.1g}  # eq. 3 at its highest: ({small.d_model} · {WARMUP})^-½

[schedule]
kind = "noam"
warmup = {WARMUP}
steps = {base.steps}

[averaging]  # §6.1: the last 5 checkpoints
ema = 0
of = "last"

[machine]
sharding = "ddp"
```

What it leaves open is chosen by the size of the data; left out, `kind`, `norm_place` and `ema` would be Muon, "pre" and
0.999, as in the runs on small data ([results.md](results.md)); they were not tried on this much.

One machine with {RANKS} GPUs; torchrun starts a process, a rank, for each:

```
torchrun --standalone --nproc-per-node {RANKS} -m cutaway train run.toml --out /shared/base
```

Two machines with {RANKS // 2} each: the same line on both. `node1:29400` is one of them, where the ranks meet; the
folder and the data are on a disk that all of them see.

```
torchrun --nnodes 2 --nproc-per-node {RANKS // 2} --max-restarts 3 \\
  --rdzv-id base --rdzv-backend c10d --rdzv-endpoint node1:29400 \\
  -m cutaway train run.toml --out /shared/base
```

Going on after it was stopped or killed, here with half the ranks, or without torchrun (`cutaway resume /shared/base`)
with one:

```
torchrun --standalone --nproc-per-node {RANKS // 2} -m cutaway resume /shared/base
```

**Shares.** A step is cut into `batches.shares` pieces, each with its own sentences. Rank r of R computes the shares
r, r + R, r + 2R, …, one after the other, and the gradients of all are added. So the number of ranks must divide the
number of shares, and a run may go on with any number that does: {RANKS} shares suit 1, 2, 4 or {RANKS} ranks. One GPU
with {RANKS} shares needs the memory of one share, {BATCH // RANKS:,} tokens on each side, not of {BATCH:,}. The
number can't change during a run, for other pieces are other batches. Left open, {BATCH:,} tokens become
{open_shares(on_cpu=False)} shares on GPUs, {open_shares(on_cpu=True)} on CPUs. With {2 * RANKS} or {8 * RANKS} there is
room to grow.

What a share drops out is decided by seed, step and share, so the number of ranks changes nothing but rounding.

**Data.** Rank 0 reads the corpus as a stream and writes its ids into mapped files (`CUTAWAY_CACHE`, a folder that all
machines see; if they do not, each encodes for itself); every rank maps them and reads only the rows of its shares.
`cutaway.data.pairs.read_pairs(spec, rank=r, ranks=R)` cuts a data set into parts for loops of your own.

**ddp or fsdp.** With `ddp` each rank has the whole model and the gradients are averaged once a step. With `fsdp`
(FSDP2) each has a part of every weight, gradient and moment, and a block's weights are gathered when it runs: less
memory, more traffic. Take `ddp` if the model fits. Base and big fit on every device below, of which the smallest have
{MEMORIES[0] / 1e9:.0f} GB; see [memory](#memory). A run may change from one to the other: edit `machine.sharding` in
the run.toml of its folder, and `resume`.

**NCCL or gloo.** Ranks on GPUs talk by NCCL, ranks on CPUs by gloo. `machine.device` decides. No test here has tried
NCCL.

**Precision.** `machine.precision = "auto"` takes bfloat16 where the device is faster in it; weights, sums and moments
stay float32. P100 and V100 have no instructions for bfloat16: say `float32` there. cutaway does not train in float16.

**When a rank is lost.** torchrun ends the others, starts all of them again, at most `--max-restarts` times, and
cutaway goes on from the newest state; one is saved every {Saving().minutes:g} minutes (`saving.minutes`). If a
whole machine is lost, the others wait for one that takes its place, ten minutes unless torchrun is told otherwise.
With `--nnodes 1:2` they go on without it, if shares allow. But torchrun does not count a machine that joins as a
restart, and `train` may then find its own folder taken. So where machines come and go, begin with `train` and type
`resume` from then on, which does not mind. If the machine of `--rdzv-endpoint` is lost, the job ends: `resume` it.
Ctrl-C or SIGTERM saves a state first.

## The work

`cutaway.size` counts the products of a forward pass, 2 FLOPs for each weight and token and 4 · d_model for each token
that an attention looks at; training is three times that, for the backward pass has two products for each of the
forward pass. A pair is one source and one target token, in sentences of {CONTEXT} tokens (an assumption, which hardly
matters: at {CONTEXT} attention's scores are {percent(scores, 1)} of base). A step has about {BATCH:,} source and
{BATCH:,} target tokens (§5.1).

{flops_table()}

The paper did not count: it multiplied the time of training by the number of GPUs and by what it supposes a P100
sustains in float32, {SUSTAINED / 1e12:g} TFLOP/s. Done again, {base.hours:g} hours give
{power(papers_estimate(base))} and {big.hours / 24:g} days {power(papers_estimate(big))}: the figures of its table 2.
That is what the GPUs could have done in that time. What had to be done is less, and the ratio is the utilisation it
implies: {percent(work(base) / base.flops)} for base, {percent(work(big) / big.flops)} for big, whose larger products
fill a GPU better. By the paper's {base.step_seconds:g} and {big.step_seconds:.1f} seconds for a step it is
{reached[0]:.1f} and {reached[1]:.1f} TFLOP/s on each GPU. Neither figure is wrong; they answer different questions.
Ours leaves out padding, norms, softmax, dropout and Adam, and counts the half of the decoder's scores that is masked.

## Memory

Of one device, with bfloat16 autocast and AdamW. Muon has one moment for the matrices instead of two.

{memory_table()}

¹ With more shares than ranks, the gradients stay whole until the last share of a step: {GRADIENTS} × weights again.

**Activations** are an estimate: the tensors that the backward pass needs, counted in the code, with attention fused,
dropout after each sublayer only, and D = d_model, F = d_ff. In bytes:

{activations_table()}

A pair of tokens thus keeps {(each_pair + LOSS * small.d_model) / 1000:.0f} kB in base. In float32 there are fewer
copies but wider numbers: {wide_pair / each_pair:.1f} times as much. A test compares all but the loss with what
autograd keeps for a small model: they agree to 3 %. Allocators add to it, by fragments and by what single operations
need for a moment. The logits of a batch never exist at once: {_ROWS} rows at a time, {LOGIT} bytes for each word; the
loss also has the table in bfloat16 and its gradient in float32, 6 · D · words. Whole, the logits of
{BATCH // RANKS:,} tokens would be {gb(whole_logits)} in float32 alone.

{totals_table()}

While fsdp takes a step, the table of words and about two blocks are whole on each rank. Looks and states need the
whole model, but not on a device: one tensor after another is put together and goes to the ordinary memory of rank 0's
host, which needs {WEIGHTS + EMA + MOMENTS} + {SHOWN} bytes a weight for it; each process builds the model there, too,
before it gives it to its device part by part. There rank 0 looks at it, on the processor, which takes its time: look
seldom (`validation.every`, `validation.limit`). In ddp, {always + HALVES} bytes a weight mean that a device with
{MEMORIES[0] / 1e9:.0f} GB holds models of up to {limit(MEMORIES[0])} billion weights, one with
{MEMORIES[1] / 1e9:.0f} GB up to {limit(MEMORIES[1])}, before any activation.

## Speed, time and cost

Peaks are the makers' for dense products, without sparsity. **That {percent(UTILISATIONS[0])} or
{percent(UTILISATIONS[1])} of them is reached is an assumption**, about what the paper's own times imply for P100s.
The faster the device, the harder it is for models this small: take the lower rows as the best that can be hoped for.
Pairs of tokens a second, one device:

{rates_table()}

V100 in float16 stands here for comparison: cutaway does not train in it.

Time to train, {percent(UTILISATIONS[0])} to {percent(UTILISATIONS[1])} assumed, {RANKS} devices taken to be {RANKS}
times as fast as one, without looks at validation pairs:

{times_table()}

The paper took {base.hours:g} hours and {big.hours / 24:g} days on {GPUS} P100s.

Cost is device-hours times your price. At {PRICE:.2f} for an hour of an {EXAMPLE.name}, an example and no offer, base
comes to {about(cost[base.model])} and big to {about(cost[big.model])}, at {percent(UTILISATIONS[0])}.

{traffic()}

**Two cores of a CPU**, measured: {CPU_TOKENS} target tokens a second in base, forward and backward, float32
([performance](performance.md#transformer-base)). That is {cpu_flops() / 1e9:.0f} GFLOP/s, of some
{CPU_PRODUCTS / 1e9:.0f} that products alone reach there. Base would take {lasting(cpu_hours[0])} at that, big, at as
many FLOP/s, {lasting(cpu_hours[1])}. Tiny and small models are what such a machine is for.
"""
    return wrapped(text).rstrip() + "\n"


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
