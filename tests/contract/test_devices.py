"""Every model computes where its weights are. There is no GPU here, so two things stand in for one: torch's fake
tensors "on cuda", without values, and a device that carries values and refuses those of others
(tests/support/stand_in_device.py)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cutaway
from cutaway import devices
from cutaway.devices import DeviceError, device_of
from cutaway.errors import ConfigError, InputError
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import Classifier
from cutaway.models.network import Network
from cutaway.parts import positions
from cutaway.parts.cache import Cache
from cutaway.seeing.attribution import analysis
from cutaway.seeing.render import plots
from cutaway.seeing.trace.trace import Trace
from cutaway.studio.requests import NextRequest, RunRequest
from cutaway.studio.studio import Studio
from cutaway.training import run as training
from cutaway.training.loss import Loss
from cutaway.training.optimizer import Optimizer
from cutaway.training.tasks.classify import Classification, LabelBatch
from cutaway.training.tasks.complete import Completion, TextBatch
from cutaway.training.tasks.translate import PairBatch, Translation
from tests.support import small_models as small
from tests.support import toy_runs as toy
from tests.support.families import FAMILIES, WITH_DECODER, Inputs, example_inputs, noisy, shrunk
from tests.support.stand_in_device import NAME, Unread, alone, standing_in

# The same float32 arithmetic in other kernels: see tests/contract/test_promises.py.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


# ------------------------------------------------------------------------------------------ without values, on cuda


def moved(mode: Unread, inputs: Inputs, device: str) -> Inputs:
    given = {name: value for name, value in vars(inputs).items() if value is not None}
    return Inputs(**{name: mode.moved(value, device) for name, value in given.items()})


def forward(name: str) -> None:
    config, there = shrunk(name), Unread.cuda()
    inputs = [example_inputs(config, padding=padding) for padding in (None, "right", "left")]
    with Unread() as mode, torch.no_grad():
        network = mode.network(build(config).eval(), there)
        for given in (moved(mode, each, there) for each in inputs):
            assert network(*given.args, **given.options).device == torch.device(there)


def decode(name: str) -> None:
    config, there = shrunk(name), Unread.cuda()
    inputs = example_inputs(config)
    with Unread() as mode, torch.no_grad():
        network, given = mode.network(build(config).eval(), there), moved(mode, inputs, there)
        memory = network.encode(given.tokens, given.mask) if network.has_encoder else None
        tokens, mask = (given.tokens, given.mask) if memory is None else (given.target, given.target_mask)
        cache = Cache(capacity=8)
        for step in range(tokens.shape[1]):
            logits = network.decode(tokens[:, step : step + 1], memory, cache, mask[:, step : step + 1])
            assert logits.device == torch.device(there)
        rows = mode.moved(torch.tensor([2, 0]), there)
        cache.select(rows)
        memory = None if memory is None else memory.select(rows)
        assert network.decode(tokens[:2, :1], memory, cache).device == torch.device(there)


def task_loss(network: Network, inputs: Inputs) -> Loss:
    """The loss of the task that trains such a network, by the task's own code."""
    config, labels = network.config, torch.zeros(len(inputs.tokens), dtype=torch.long, device=network.device)
    if isinstance(config.head, Classifier) and inputs.tokens.dim() == 4:
        total = torch.nn.functional.cross_entropy(network(inputs.tokens), labels, reduction="sum")
        return Loss(total, float(total.detach()), len(labels))
    if isinstance(config.head, Classifier):
        task = Classification.__new__(Classification)
        task.smoothing = 0.1
        return task.loss(network, LabelBatch(inputs.tokens, inputs.mask, labels))
    if network.has_encoder and network.has_decoder:
        task = Translation.__new__(Translation)
        task.smoothing, task.agreement = 0.1, 1.0  # label smoothing, and R-Drop
        return task.loss(network, PairBatch(inputs.tokens, inputs.mask, inputs.target, inputs.target))
    task = Completion.__new__(Completion)
    task.smoothing = 0.1
    return task.loss(network, TextBatch(inputs.tokens, inputs.tokens))


def step(name: str) -> None:
    """On the stand-in's name: a torch that was built for CPUs has no streams for cuda, which gradients want."""
    config, there = shrunk(name), f"{NAME}:0"
    if config.decoder is None and not isinstance(config.head, Classifier):
        config = replace(config, head=Classifier(n_classes=3, hidden="tanh"))
    inputs = example_inputs(config)
    with Unread() as mode:
        network, given = mode.network(build(config).train(), there), moved(mode, inputs, there)
        optimizer = Optimizer(network, "muon" if name == "gpt2" else "adamw", rate=1e-3)
        task_loss(network, given).total.backward()
        for weight_name, weight in network.named_parameters():
            assert weight.grad is None or weight.grad.device == torch.device(there), weight_name
        optimizer.step(1.0)
        assert {value.device.type for value in optimizer.tensors().values() if value.dim()} == {NAME}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_of_training(name: str) -> None:
    alone(step, name)


def mutated(run: Callable[[str], None]) -> None:
    """Positions that forget their device."""
    positions.position_ids = lambda n_tokens, visible, device: torch.arange(n_tokens)
    with pytest.raises((RuntimeError, InputError), match="device|are on cpu"):
        run("gpt2")


def forward_with_values(name: str) -> None:
    """On the stand-in, the numbers of the CPU."""
    config = shrunk(name)
    network = noisy(build(config)).eval()
    for padding in (None, "right", "left"):
        inputs = example_inputs(config, padding=padding)
        with torch.no_grad(), standing_in() as there:
            expected = network.to("cpu")(*inputs.args, **inputs.options)
            network.to(there)
            given = {key: value.to(there) for key, value in inputs.options.items()}
            found = network(*(each.to(there) for each in inputs.args), **given)
            assert found.device == there
            torch.testing.assert_close(found.cpu(), expected, **CLOSE)


def everywhere(name: str) -> None:
    forward(name)
    positions._kept_sinusoids.cache_clear()  # fake ones
    if name in WITH_DECODER:
        decode(name)
    forward_with_values(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_forward_and_cached_steps(name: str) -> None:
    alone(everywhere, name)


@pytest.mark.parametrize("run", [forward, decode, step, forward_with_values])
def test_a_tensor_on_the_wrong_device_fails(run: Callable[[str], None]) -> None:
    alone(mutated, run)


# ------------------------------------------------------------------------------------------- with values: the tasks

TEXTS = ["The cat sat on the mat.", "A dog ate the hat.", "The dog sat.", "naïve 😀 cat", "The cat's hat"]
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beams": 1},
    "beams": {"beams": 3, "n_best": 2},
    "groups": {"beams": 4, "beam_groups": 2, "diversity": 0.5},
    "forced": {"beams": 4, "force": ["cat"]},
    "sampled": {"sample": True, "seed": 1, "beams": 1, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "temperature": 1.3},
    "filtered": {"beams": 2, "repetition_penalty": 1.3, "no_repeat_ngram": 2, "min_new_tokens": 4, "ban": ["the dog"]},
    "stopped": {"beams": 1, "stop": ["e"]},
    "batches": {"beams": 2, "batch_tokens": 48},  # texts leave and others join
    "told": {"beams": 2, "alternatives": 3},
}


def near(a: Any, b: Any) -> None:
    """Results of a task, alike: words equal, numbers near."""
    if isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)
    elif isinstance(a, Tensor):
        assert b.device.type == "cpu"
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            near(x, y)
    elif hasattr(a, "__dataclass_fields__"):
        near(list(vars(a).values()), list(vars(b).values()))
    else:
        assert a == b


def both(model: Model, ask: Callable[[], Any]) -> None:
    """The same on the CPU and on the stand-in."""
    expected = ask()
    with standing_in() as there:
        model.to(there)
        found = ask()
        assert model.engine().device == there
        assert model.engine().name == "native"
        model.to("cpu")
    near(expected, found)


def writes(preset: str, *searches: str) -> None:
    model = small.model(preset)
    task = model.translate if model.network.has_encoder else model.complete
    for search in searches:
        options = {"max_new_tokens": 12, "engine": "native", "details": search == "told"} | SEARCHES[search]
        both(model, lambda options=options: task(TEXTS, **options))


@pytest.mark.parametrize("preset", ["transformer-tiny", "llama-15m"])
def test_searches(preset: str) -> None:
    alone(writes, preset, *SEARCHES)


@pytest.mark.parametrize("preset", ["t5-small", "gpt2", "bahdanau-gru", "lstm-seq2seq", "awd-lstm"])
def test_other_families_write(preset: str) -> None:
    alone(writes, preset, "greedy", "beams")


def streams(_: Path) -> None:
    model = small.model("gpt2")
    both(model, lambda: list(model.complete("The cat", stream=True, max_new_tokens=9, stop=["zz"])))
    chat = small.chatty()
    both(chat, lambda: "".join(chat.chat("Be kind.").say("The cat?")))


def reads(folder: Path) -> None:
    from tests.support import hf_models as tiny

    load: Callable[[Path], Model] = lambda path: cutaway.load(path, device="cpu")  # noqa: E731
    fill = load(tiny.bert(folder / "fill", "BertForMaskedLM"))
    both(fill, lambda: fill.fill([f"{text[:9]} ___ dog" for text in tiny.TEXTS], top=3, engine="native"))
    label = load(tiny.classifier(folder / "classify"))
    both(label, lambda: label.classify([*tiny.TEXTS, " ".join(tiny.TEXTS)], engine="native"))
    both(label, lambda: label.classify([("the cat", "a dog"), ("who", "where is the bird")], engine="native"))
    vectors = load(tiny.sentences(folder / "embed"))
    both(vectors, lambda: vectors.embed([*tiny.TEXTS, ""], engine="native"))
    lines = folder / "lines.txt"
    lines.write_text("\n".join(tiny.TEXTS))
    both(vectors, lambda: vectors.search("a cat", lines, top=3, cache=False, engine="native"))
    spans = load(tiny.bert(folder / "answer", "BertForQuestionAnswering"))
    context = " ".join(tiny.TEXTS)
    both(spans, lambda: spans.answer(["who sat?", "where?"], context, top=2, engine="native"))
    sees = load(tiny.vit(folder / "see"))
    side = sees.config.encoder.patches.image_size
    image = (torch.arange(3 * side * side).view(3, side, side) % 251).to(torch.uint8)
    both(sees, lambda: sees.recognize([image, image.flip(2)], engine="native"))


# ---------------------------------------------------------------------------------------------------- looking inside


def looks(preset: str, folder: Path) -> None:
    model = small.model(preset)
    text, target = "The cat sat.", "Le chat" if model.network.has_encoder else None
    plain = model.trace(text, target)
    with standing_in() as there:
        model.to(there)
        trace = model.trace(text, target)
        assert list(trace) == list(plain)
        for name in trace:
            torch.testing.assert_close(trace[name], plain[name], rtol=1e-3, atol=1e-4, msg=name)
        for value in (trace.output, *trace.run.inputs.values()):
            assert value.device.type == "cpu"
        for name in list(trace)[:: max(1, len(trace) // 12)]:
            found = trace.explain(name)
            assert found.value == pytest.approx(float(trace[name].flatten()[0]))
        kept = Trace.load(trace.save(folder / preset))
        assert all(torch.equal(kept[name], trace[name]) for name in trace)
        written = model.trace(text, generation=cutaway.Generation(beams=2, max_new_tokens=4))
        assert written.search is not None
        near(written.search, _written(model, text))
        trace._repr_html_()
        if preset == "bahdanau-gru":
            return
        side = "decoder"
        assert len(analysis.logit_lens(model, trace).layers) == model.config.decoder.n_blocks + 1
        assert analysis.rollout(trace, side).values.device.type == "cpu"
        assert analysis.residual_lengths(trace)
        analysis.head_importance(model, text, target)
        plots.positions(trace, side)
        plots.positions(model.network, side)


def _written(model: Model, text: str) -> Any:
    """The same search on the CPU."""
    there = model.device
    found = model.to("cpu").trace(text, generation=cutaway.Generation(beams=2, max_new_tokens=4)).search
    model.to(there)
    return found


@pytest.mark.parametrize("preset", ["transformer-tiny", "t5-small", "gpt2", "llama-15m", "bahdanau-gru"])
def test_looking_inside(preset: str, tmp_path: Path) -> None:
    alone(looks, preset, tmp_path)


def changes(_: Path) -> None:
    model = small.model("transformer-tiny")
    heads = "decoder.blocks.0.self_attention.heads"
    weights = "encoder.blocks.0.self_attention.weights"

    def on_the_cpu(value: Tensor, _: str) -> Tensor:
        return torch.full(value.shape, 0.5)

    edits: list[Any] = ["scaling", "mask", "positions", "residual", "block"]
    edits += [{heads: 0}, {heads: 2.0}, {heads: on_the_cpu}, {"kind": "zero", "value": heads, "head": 1}]
    edits += [{"kind": "set", "value": weights, "at": [0, 1, 2, 1], "to": 0.25, "renormalise": True}]
    other = model.trace("A dog sat.", "Le chat")
    edits += [{"decoder.embedding.output": other}, {"decoder.embedding.output": other["decoder.embedding.output"]}]
    for edit in edits:
        target = "Le chat"
        expected = model.run("The cat sat.", edit, target)
        with standing_in() as there:
            model.to(there)
            found = model.run("The cat sat.", edit, target)
            model.to("cpu")
        near(expected.after, found.after)
        near(expected.differences, found.differences)
        assert found.first == expected.first or found.moved
    with standing_in() as there:
        model.to(there)
        generation = cutaway.Generation(beams=2, max_new_tokens=4)
        assert model.run("The cat sat.", "scaling", generation=generation).after.text is not None  # it writes under it


def gradients(_: Path) -> None:
    pytest.importorskip("captum")
    model = small.model("gpt2")

    def attributed() -> Any:
        found = analysis.integrated_gradients(model, "The cat sat", steps=8)
        return found.target, found.place, found.text, found.logprob, found.baseline

    both(model, attributed)


def studio(_: Path) -> None:
    model = small.model("transformer-tiny")
    model.name = "m"
    with standing_in() as there:
        page = Studio([model.to(there)])
        trace = page.run(RunRequest(model="m", text="The cat sat."), lambda: None)
        assert page.lens(trace["id"])
        assert page.rollout(trace["id"])
        assert "<html" in page.html(trace["id"], "").lower()
        assert page.explain(trace["id"], "encoder.embedding.output", "0,0,0")
        assert page.next(NextRequest(model="m", text="The cat sat.", prefix=[5]))["plain"]


# --------------------------------------------------------------------------------------------------------- training


def trains(folder: Path) -> None:
    """A run of its own on each device, without dropout: the same losses, up to rounding."""
    data, losses = toy.corpus(folder / "data", n=80), {}
    settings = ["model.dropout=0", "schedule.steps=4", "validation.every=2", "averaging.ema=0.9"]
    with standing_in():
        for device in ("cpu", NAME):
            config = toy.config(data, *settings, f"machine.device={device}")
            out = folder / device
            training.train(config, out)
            losses[device] = [line["loss"] for line in toy.metrics(out) if "loss" in line]
            assert cutaway.load(out, device="cpu").translate(["pa ku to"])
        assert losses[NAME] == pytest.approx(losses["cpu"], rel=1e-3)
        again = training.resume(folder / NAME, device="cpu")
        assert again.reason == "done already"


def stops_and_resumes(folder: Path) -> None:
    data = toy.corpus(folder / "data", n=80)
    settings = ["schedule.steps=4", "validation.every=2", "validation.tune=true", "regularization.r_drop=1.0"]
    config = toy.config(data, *settings, f"machine.device={NAME}")
    with standing_in() as there:
        stops = iter([None, "SIGINT", "SIGINT"])
        assert training.train(config, folder / "out", stop=lambda: next(stops)).reason == "SIGINT"
        assert training.resume(folder / "out").reason == "done"
        assert cutaway.load(folder / "out", device=there).translate("pa ku") is not None


# ------------------------------------------------------------------------------------------------- loading, moving


def loads(folder: Path) -> None:
    small.model("transformer-tiny").save(folder / "model")
    with standing_in() as there:
        model = cutaway.load(folder / "model", device=NAME, dtype="float16")
        assert {weight.device for weight in model.network.parameters()} == {there}
        assert model.device == there
        assert model.engine().precision == "float16"
        engine = model.engine()
        assert model.to(dtype="float32") is model
        assert model.engine() is not engine
        assert model.engine().precision == "float32"
        for options, what in (({"engine": "ctranslate2"}, "the engine ctranslate2"), ({"precision": "int8"}, "int8")):
            with pytest.raises(ConfigError, match=f"{what} runs on the CPU only, and this model is on standin:0; move"):
                model.translate("The cat", **options)
        with pytest.raises(DeviceError, match="device='standin:3', but torch sees only standin:0 here"):
            model.to("standin:3")
        model.to(dtype="float16").save(folder / "saved")
        kept = cutaway.load(folder / "saved", device="cpu").network.state_dict()
        assert all(torch.equal(kept[name], weight.cpu()) for name, weight in model.network.state_dict().items())
        assert model.to("cpu").device == torch.device("cpu")
        with pytest.raises(InputError, match="token ids are on cpu, this model on standin:0; move them"):
            model.to(there).network(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long))


WORKS = [streams, reads, changes, gradients, studio, trains, stops_and_resumes, loads]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_on_the_stand_in_as_on_the_cpu(work: Callable[[Path], None], tmp_path: Path) -> None:
    alone(work, tmp_path)


def test_auto_is_the_best_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, int] = {}
    monkeypatch.delenv("CUTAWAY_DEVICE", raising=False)
    monkeypatch.setattr(devices, "_count", lambda kind: there.get(kind, 0))
    assert device_of("auto") == torch.device("cpu")
    there["mps"] = 1
    assert device_of("auto") == torch.device("mps")
    there["cuda"] = 2
    assert device_of("auto") == torch.device("cuda")
    assert device_of("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match=r"device='cuda:2', but torch sees cuda:0 to cuda:1 here; choose one of"):
        device_of("cuda:2")


def test_auto_can_be_said_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_count", lambda kind: 2 * (kind == "cuda"))
    monkeypatch.setenv("CUTAWAY_DEVICE", "cpu")
    assert device_of("auto") == torch.device("cpu")
    assert device_of("cuda") == torch.device("cuda"), "only auto is asked what it is"
    monkeypatch.setenv("CUTAWAY_DEVICE", "cuda:5")
    with pytest.raises(DeviceError, match="CUTAWAY_DEVICE='cuda:5', but torch sees cuda:0 to cuda:1 here"):
        device_of()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "device='gpu' is no device; choose auto, cpu, cuda (of several GPUs cuda:1, …) or mps"),
        ("cuda:x", "device='cuda:x' is no device; choose"),
        ("", "device='' is no device; choose"),
        ("meta", "device='meta', but torch sees no such device here; choose cpu or auto"),
        ("cuda", "device='cuda', but torch sees no such device here; choose cpu or auto"),
        ("mps", "device='mps', but torch sees no such device here; choose cpu or auto"),
        (None, "device='None' is no device; choose"),
    ],
)
def test_a_device_that_is_not_there(name: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_count", lambda kind: 0)
    with pytest.raises(DeviceError) as error:
        cutaway.load("en-fr", device=name)
    assert said in str(error.value)


def _no_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("there out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")


def test_memory_that_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"^cpu is out of memory: load the weights in half precision \(dtype='bfloat16', --dtype bfloat16\)"
    model = small.model("gpt2")
    with monkeypatch.context() as patch:
        patch.setattr(type(model.network), "decode_hidden", _no_memory)
        for ask in (
            lambda: model.complete("The cat", engine="native"),
            lambda: list(model.complete("The cat", engine="native", stream=True)),
            lambda: model.trace("The cat"),
        ):
            with pytest.raises(DeviceError, match=said):
                ask()
    weights = [weight.clone() for weight in model.network.parameters()]
    with monkeypatch.context() as patch:
        patch.setattr(devices, "_count", lambda kind: 1)
        real = model.network.to
        patch.setattr(
            model.network, "to", lambda *a, device=None, **k: real(*a, **k) if device is None else _no_memory()
        )
        with pytest.raises(DeviceError, match="cuda is out of memory: .*compute on the CPU"):
            model.to("cuda")
    assert all(torch.equal(a, b) for a, b in zip(weights, model.network.parameters(), strict=True))


def test_float16_is_not_for_cpus() -> None:
    with pytest.raises(
        ConfigError, match="float16 is for GPUs, and this model is on the CPU; choose float32, bfloat16"
    ):
        small.model("gpt2").complete("The cat", precision="float16")
