"""The contestants of bench.train: each sets up a model of the lesson's sizes and gives its training steps.

A step is everything that a training does for it: forward, backward, clipping to a length of 1, the optimiser, and what
the trainer around it does. Set-up ends with a first step, whose loss must be that of an untrained model.

What differs on purpose:

- cutaway and Seq2SeqTrainer make their batches from token ids within the step; the plain loops, JoeyNMT and eole find
  theirs ready, which is a little in their favour.
- The peers' batches are whole steps. cutaway computes a step as shares, as many as `cutaway train` would choose.
- JoeyNMT and eole normalise (and clip, and count right words) as they do; eole is a pre-norm Transformer, so it has two
  norms more. JoeyNMT and nn.Transformer drop more than the preset does: that is switched off on their modules.
- Our settings, for peers: the allocator (machine/memory.py), torch's fused Adam, attention written out in
  Marian. eole takes the allocator alone: it builds its optimiser itself.
"""

import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import harness
from bench.data import IGNORED, Batch
from bench.harness import Work
from bench.lessons import END, PAD, START, Lesson, padded, shares_of
from bench.peers import build_peer
from cutaway.data.encoding import EncodedTexts
from cutaway.info.size import size
from cutaway.machine.memory import keep_freed_memory
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import StackConfig
from cutaway.models.network import Network
from cutaway.training import defaults
from cutaway.training.config import (
    Batches,
    MachineChoice,
    OptimizerChoice,
    Regularization,
    ScheduleChoice,
    TrainConfig,
    Validation,
)
from cutaway.training.folder import RunFolder
from cutaway.training.loop import Loop
from cutaway.training.loss import Loss, language_loss
from cutaway.training.metrics import LOSS, Scores
from cutaway.training.precision import TrainingPrecision, fastest_precision
from cutaway.training.task import Seen, Task, unseen
from cutaway.training.tasks.complete import Completion
from cutaway.training.tasks.translate import Pairs, Translation
from cutaway.training.watch import StepReport, Watch

RATE, CLIP = 1e-4, 1.0
NEVER = 10**9  # a step that is not reached
INSTALL = "install the peers with `make .venv/.installed-peers`"
Learn = Callable[[], float | None]
"""One step; its loss for each token, if it knows it."""


def needs(*names: str) -> None:
    """Peers that pip can't install beside the others are nobody's requirement."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise RuntimeError(f"{' and '.join(missing)} missing: {INSTALL}")


def begin(ours: bool) -> None:
    torch.set_num_threads(harness.cores())
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    if ours:
        keep_freed_memory()


def work(lesson: Lesson, model: nn.Module, steps: Sequence[Learn], rest: Callable[[], None]) -> Work:
    """Checks that it is the same model, and that it has just begun to learn."""
    n_parameters = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    expected = size(lesson.config).parameters
    if abs(n_parameters / expected - 1) > 0.005:
        raise ValueError(f"{n_parameters:,} parameters, but cutaway's has {expected:,}: not the same model")
    facts: dict[str, Any] = {"parameters": n_parameters}
    if (loss := steps[0]()) is not None:
        uniform = math.log(lesson.config.last.vocabulary or 1)
        if not abs(loss - uniform) < 2.0:
            raise ValueError(f"its first loss is {loss:.2f}; an untrained model has about ln V = {uniform:.2f}")
        facts["first_loss"] = round(loss, 3)

    def counted(learn: Learn, n: int) -> int:
        learn()
        return n

    return Work([partial(counted, learn, n) for learn, n in zip(steps, lesson.n_tokens, strict=True)], rest, facts)


def surroundings(precision: str) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()


# cutaway


class Windows(Completion):
    """Running text, cut into windows beforehand."""

    metrics = (LOSS,)

    def __init__(self, rows: Sequence[list[int]]) -> None:
        self.rows = torch.tensor(rows)
        self.lengths = torch.full((len(rows),), len(rows[0]) - 1)

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.rows[rows]

    def loss(self, network: Network, batch: Tensor) -> Loss:
        return language_loss(network, network.hidden(batch[:, :-1]), batch[:, 1:])

    def validate(self, model: Model, seen: Seen = unseen) -> Scores:
        """Of what it learns from: a bench has nothing else."""
        with torch.no_grad():
            loss = self.loss(model.network, self.rows)
        return {"loss": loss.nll / loss.n}


@dataclass
class Rows:
    """In place of the loop's Sampler: the lesson's shares, again and again."""

    shares: list[Tensor]
    place: int = 0
    epoch: int = 0
    epochs: float = 0.0

    def __next__(self) -> Tensor:
        self.place += 1
        return self.shares[(self.place - 1) % len(self.shares)]


class Heard(Watch):
    loss = math.nan

    def step(self, step: StepReport) -> None:
        self.loss = step.nll


def _precision(lesson: Lesson) -> TrainingPrecision:
    """As asked, or (auto) as a run would choose it on this machine."""
    if lesson.precision == "auto":
        return fastest_precision(torch.device("cpu"), lesson.config)[0]
    return lesson.precision  # type: ignore[return-value]  # the same names


def cutaway(lesson: Lesson) -> Work:
    """The loop of `cutaway train`, without its validations, its states and the lines of its metrics.jsonl."""
    begin(ours=False)  # the loop sees to the allocator
    assert lesson.place is not None
    taught = lesson.windows or lesson.steps
    all_rows = [row for step in taught for row in step]
    task: Task
    if lesson.windows:
        task = Windows(all_rows)
    else:
        pairs = Pairs(*(EncodedTexts.of([row[side] for row in all_rows]) for side in (0, 1)))
        task = Translation(pairs, pairs, [], start=START, pad=PAD, smoothing=lesson.smoothing)
    n_shares = defaults.shares_of(max(lesson.n_tokens), harness.cores())
    config = TrainConfig(
        batches=Batches(tokens=max(lesson.n_tokens), micro_batches=n_shares),
        optimizer=OptimizerChoice(kind="adamw", rate=RATE, decay=1e-4, clip=CLIP),
        schedule=ScheduleChoice(kind="constant", steps=NEVER, warmup=1),
        regularization=Regularization(smoothing=lesson.smoothing),
        validation=Validation(every=NEVER, metric="loss"),
        machine=MachineChoice(device="cpu", precision=_precision(lesson)),
    )
    folder, heard = RunFolder(lesson.place / config.machine.precision), Heard()
    loop = Loop(config, Model(build(lesson.config, 0)), task, folder, heard, {})
    numbers = shares_of(taught, n_shares)
    loop.sampler = Rows([torch.tensor(share) for step in numbers for share in step])  # type: ignore[assignment]

    def learn() -> float:
        loop._step()
        return heard.loss

    found = work(lesson, loop.network, [learn for _ in taught], loop.optimizer.zero_gradients)
    for _ in taught[1:]:  # to the end of what the set-up began
        learn()
    return found


# Plain loops


def plain(lesson: Lesson, peer: str, ours: bool) -> Work:
    """As the tutorials write it: loss, backward, clip, step."""
    begin(ours)
    model, logits = build_peer(lesson.config, peer, our_settings=ours)
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=ours or None)

    def learn(batch: Batch) -> float:
        optimizer.zero_grad(set_to_none=True)
        with surroundings(lesson.precision):
            found = logits(batch).flatten(0, 1)
            loss = F.cross_entropy(
                found, batch.labels.flatten(), ignore_index=IGNORED, label_smoothing=lesson.smoothing
            )  # fmt: skip
        loss.backward()
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        return loss.item()

    return work(lesson, model, [partial(learn, batch) for batch in lesson.batches], partial(optimizer.zero_grad, True))


# nanoGPT's manner


class NanoBlock(nn.Module):
    def __init__(self, stack: StackConfig) -> None:
        super().__init__()
        D = stack.d_model
        self.n_heads, self.p = stack.n_heads, stack.attention_dropout
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, stack.d_ff), nn.Linear(stack.d_ff, D)
        self.dropout = nn.Dropout(stack.dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        heads = (B, T, self.n_heads, D // self.n_heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).split(D, dim=2))
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).contiguous().view(B, T, D)))
        return x + self.dropout(self.down(F.gelu(self.up(self.feedforward_norm(x)))))


class NanoGPT(nn.Module):
    """GPT-2 as nanoGPT has it: q, k and v by one product, torch's attention with is_causal, the exact GELU."""

    def __init__(self, stack: StackConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(stack.vocabulary or 0, stack.d_model)
        self.positions = nn.Embedding(stack.max_positions or 0, stack.d_model)
        self.dropout = nn.Dropout(stack.dropout)
        self.blocks = nn.ModuleList(NanoBlock(stack) for _ in range(stack.n_blocks))
        self.norm = nn.LayerNorm(stack.d_model)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * stack.n_blocks) if last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.dropout(self.table(tokens) + self.positions(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-1)


def nanogpt(lesson: Lesson, ours: bool) -> Work:
    """Its train.py: AdamW with decay for matrices alone, clipping, gradients forgotten after the step. Its optimiser is
    fused on GPUs only, its autocast is for GPUs only: bfloat16 here is what it would do there."""
    begin(ours)
    model = NanoGPT(lesson.config.last).train()
    weights = list(model.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": 0.1},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=ours or None)

    def learn(batch: Batch) -> float:
        with surroundings(lesson.precision):
            loss = model(batch.tokens, batch.labels)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return work(lesson, model, [partial(learn, batch) for batch in lesson.batches], partial(optimizer.zero_grad, True))


# Hugging Face's trainer


class Turns:
    """A training that runs in a thread of its own, one step each time it is asked for one.

    All of it runs there, from the first weights: two threads that both had OpenMP threads of their own would be more
    than there are cores, and then these sleep where they otherwise spin.
    """

    model: nn.Module

    def __init__(self, train: Callable[["Turns"], object]) -> None:
        """`train` sets `model`, then pauses before the first step and after each."""
        self._error: BaseException | None = None
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(train,), daemon=True).start()
        self.step()

    def pause(self) -> None:
        """Called by the training."""
        self._done.release()
        self._go.acquire()

    def step(self) -> None:
        self._go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _run(self, train: Callable[["Turns"], object]) -> None:
        self._go.acquire()
        try:
            train(self)
            self._error = RuntimeError("the trainer has stopped")
        except Exception as error:
            self._error = error
        self._done.release()


def seq2seq_trainer(lesson: Lesson) -> Work:
    """Seq2SeqTrainer.train() with its defaults; its dataset's examples are whole steps, which the collator pads."""
    needs("accelerate")
    turns = Turns(partial(_train, lesson))
    found = work(lesson, turns.model, [turns.step for _ in lesson.steps], lambda: None)
    for _ in lesson.steps[1:]:  # to the end of what the set-up began
        turns.step()
    return found


def _train(lesson: Lesson, turns: Turns) -> None:
    import transformers as hf

    begin(ours=False)
    hf.logging.set_verbosity_error()
    turns.model, _ = build_peer(lesson.config, "hugging face", our_settings=False)

    def collate(steps: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
        (batch,) = (padded(pairs) for pairs in steps)
        assert batch.source is not None
        assert batch.source_mask is not None
        mask = batch.source_mask.long()
        return {
            "input_ids": batch.source, "attention_mask": mask, "decoder_input_ids": batch.tokens, "labels": batch.labels
        }  # fmt: skip

    class Pausing(hf.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turns.pause()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.pause()

    arguments = hf.Seq2SeqTrainingArguments(
        output_dir=str(lesson.place), use_cpu=True, bf16=lesson.precision == "bfloat16", max_steps=NEVER,
        per_device_train_batch_size=1, train_sampling_strategy="sequential", learning_rate=RATE,
        label_smoothing_factor=lesson.smoothing, logging_strategy="no", save_strategy="no", report_to="none",
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    steps = list(lesson.steps)
    hf.Seq2SeqTrainer(
        turns.model, arguments, train_dataset=steps, data_collator=collate, callbacks=[Pausing()]
    ).train()  # fmt: skip


# JoeyNMT


class Words:
    """A vocabulary of numbers; JoeyNMT's own looks for each word in a list of all."""

    pad_index, unk_index, bos_index, eos_index, sep_index = PAD, 1, START, END, None
    specials: tuple[str, ...] = ()
    lang_tags: tuple[str, ...] = ()

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def joeynmt(lesson: Lesson, ours: bool) -> Work:
    """The step of its TrainManager, with its batches, its loss and its optimiser."""
    needs("joeynmt", "importlib_metadata", "subword_nmt", "tensorboard", "absl")
    begin(ours)
    from joeynmt.batch import Batch as JoeyBatch
    from joeynmt.builders import build_gradient_clipper, build_optimizer
    from joeynmt.model import build_model
    from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward

    logging.disable(logging.WARNING)
    stack = lesson.config.last
    half = {
        "type": "transformer", "num_layers": stack.n_blocks, "num_heads": stack.n_heads, "hidden_size": stack.d_model,
        "ff_size": stack.d_ff, "dropout": stack.dropout, "layer_norm": "post",
        "embeddings": {"embedding_dim": stack.d_model, "scale": True, "dropout": stack.dropout},
    }  # fmt: skip
    words = Words(stack.vocabulary or 0)
    config = {
        "encoder": half, "decoder": half, "tied_embeddings": True, "tied_softmax": True,
        "initializer": "xavier_uniform", "embed_initializer": "normal", "embed_init_weight": stack.d_model**-0.5,
    }  # fmt: skip
    model = build_model(config, src_vocab=words, trg_vocab=words)
    model.loss_function = ("crossentropy", lesson.smoothing)
    for part in model.modules():
        if isinstance(part, MultiHeadedAttention):
            part.dropout.p = stack.attention_dropout
        elif isinstance(part, PositionwiseFeedForward):
            part.pwff_layer[2].p = stack.ff_dropout
    asked = {
        "optimizer": "adam", "learning_rate": RATE, "adam_betas": (0.9, 0.98), "clip_grad_norm": CLIP,
        "clip_grad_val": None,
    }  # fmt: skip
    clip = build_gradient_clipper(asked)
    optimizer = build_optimizer(asked, model.parameters())
    if ours:
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=True)

    def batch_of(batch: Batch) -> Any:
        assert batch.source is not None
        assert batch.source_mask is not None
        target = torch.cat((batch.tokens[:, :1], batch.labels.masked_fill(batch.labels == IGNORED, PAD)), dim=1)
        rows, lengths = torch.arange(len(target)), batch.source_mask.sum(1)
        return JoeyBatch(batch.source, lengths, None, target, None, rows, torch.device("cpu"), PAD, END)

    def learn(batch: Any) -> float:
        model.train()
        batch.sort_by_src_length()
        with surroundings(lesson.precision):
            total, _, _, right = model(return_type="loss", **vars(batch))
        loss = batch.normalize(total, "tokens", 0, 1)
        loss.backward()
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()
        right.item()
        return loss.item()

    batches = [batch_of(batch) for batch in lesson.batches]
    return work(lesson, model, [partial(learn, batch) for batch in batches], model.zero_grad)


# eole, which was OpenNMT-py


class Ids:
    """A vocabulary of numbers, as eole asks it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, token: str) -> int:
        return {"<blank>": PAD, "<unk>": 1, "<s>": START, "</s>": END}[token]


def eole(lesson: Lesson, ours: bool) -> Work:
    """Its Trainer's step, with its loss and its optimiser."""
    needs("eole", "pyonmttok")
    begin(ours)
    from eole.config.run import TrainConfig as EoleConfig
    from eole.models.model import get_model_class
    from eole.trainer import build_trainer
    from eole.utils import Statistics
    from eole.utils.optimizers import Optimizer as EoleOptimizer

    logging.disable(logging.WARNING)
    stack = lesson.config.last
    bf16 = lesson.precision == "bfloat16"
    config = EoleConfig(
        data={}, src_vocab="none", share_vocab=True,
        model={
            "architecture": "transformer", "layers": stack.n_blocks, "hidden_size": stack.d_model,
            "heads": stack.n_heads, "transformer_ff": stack.d_ff, "share_embeddings": True,
            "share_decoder_embeddings": True, "generator_bias": False, "add_qkvbias": True, "add_ffnbias": True,
            "add_final_linear_bias": True, "mlp_activation_fn": stack.activation, "layer_norm": "standard",
            "position_encoding_type": "SinusoidalInterleaved",
            "embeddings": {"word_vec_size": stack.d_model, "position_encoding_type": "SinusoidalInterleaved"},
        },
        training={
            "world_size": 0, "gpu_ranks": [], "dropout": [stack.dropout],
            "attention_dropout": [stack.attention_dropout], "optim": "adamw", "learning_rate": RATE,
            "max_grad_norm": CLIP, "normalization": "tokens",
            "label_smoothing": lesson.smoothing, "compute_dtype": "bf16" if bf16 else "fp32", "use_amp": bf16,
            "param_init_method": "xavier_uniform",
        },
    )  # fmt: skip
    ids = Ids(stack.vocabulary or 0)
    words: dict[str, Any] = {"src": ids, "tgt": ids, "specials": {}}
    model = get_model_class(config.model).for_training(config.model, words, config.training, device_id=-1)
    nn.init.normal_(model.tgt_emb.embeddings.weight, std=stack.d_model**-0.5)
    optimizer = EoleOptimizer.from_config(model, config)
    trainer = build_trainer(config, -1, model, words, optimizer)

    def learn(batch: dict[str, Any]) -> float:
        seen = Statistics()
        (found,) = trainer._accum_batches([(batch, 0)])
        trainer._train_step(*found, seen, Statistics())
        return seen.loss / seen.n_tokens

    def batches() -> Iterator[dict[str, Any]]:
        for batch in lesson.batches:
            assert batch.source is not None
            assert batch.source_mask is not None
            target = torch.cat((batch.tokens[:, :1], batch.labels.masked_fill(batch.labels == IGNORED, PAD)), dim=1)
            yield {
                "src": batch.source, "srclen": batch.source_mask.sum(1), "tgt": target,
                "tgtlen": (target != PAD).sum(1), "images": None, "prefix_len": None,
                "cid": [None] * len(target), "cid_line_number": list(range(len(target))),
            }  # fmt: skip

    return work(lesson, model, [partial(learn, batch) for batch in batches()], partial(optimizer.zero_grad, True))


# The machine


def products(lesson: Lesson) -> Work:
    """Matrix products alone, outputs allocated beforehand: a feed-forward layer's and the vocabulary's, in the
    proportion that they have in the model's FLOPs. Its unit is a FLOP."""
    begin(ours=True)
    stack, n = lesson.config.last, max(lesson.n_tokens)
    V, D = stack.vocabulary or 0, stack.d_model
    dtype = getattr(torch, lesson.precision)
    of_words = 2 * D * V
    times = round((size(lesson.config, lesson.length).flops_forward - of_words) / (2 * D * stack.d_ff))
    x, inside, words = (torch.randn(shape, dtype=dtype) for shape in ((n, D), (D, stack.d_ff), (D, V)))
    out, logits = torch.empty(n, stack.d_ff, dtype=dtype), torch.empty(n, V, dtype=dtype)

    def step() -> int:
        for _ in range(times):
            torch.mm(x, inside, out=out)
        torch.mm(x, words, out=logits)
        return n * (times * 2 * D * stack.d_ff + of_words)

    step()
    return Work([step], lambda: None)
