"""The model's card: README.md with what it was made of, how, and how good it is; curves.png beside it."""

import json
import platform
from pathlib import Path
from typing import Any

import torch

import cutaway
from cutaway.checkpoints import native
from cutaway.errors import CheckpointError
from cutaway.files import create_new
from cutaway.models.usage import Usage
from cutaway.training import state
from cutaway.training.config import ModelChoice
from cutaway.training.folder import CARD, CURVES, RunFolder
from cutaway.training.loop import Outcome
from cutaway.training.task import Prepared, Task


def write_card(folder: RunFolder, prepared: Prepared, outcome: Outcome) -> None:
    """Of a run that ended, or was stopped: the card says which."""
    try:
        drawn = draw_curves(folder.logged(), folder.path / CURVES, prepared.task.unit)
        state.write_whole(folder.path / CARD, card(folder, prepared, outcome, drawn))
    except OSError as error:
        raise CheckpointError(
            f"the model is in {folder.path}, but its card can't be written: {error.strerror or error}; make room, and "
            f"`cutaway resume {folder.path}` writes it"
        ) from None


def card(folder: RunFolder, prepared: Prepared, outcome: Outcome, drawn: bool) -> str:
    config, task, progress = prepared.config, prepared.task, outcome.progress
    title = config.card.title or folder.path.resolve().name
    n_weights = sum(weight.numel() for weight in prepared.model.network.parameters())
    header = {
        "language": list(config.card.languages), "license": config.card.licence, "library_name": "cutaway",
        "pipeline_tag": task.pipeline_tag,
    }  # fmt: skip
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in header.items() if value)
    made = _changed(config.model) if config.model.preset else f"{config.model.start}, trained further"
    is_over = outcome.reason in ("done", "done already", "patience")
    all_steps = progress.step >= (config.schedule.steps or 0)
    ended = outcome.reason if not is_over else "all steps" if all_steps else "until nothing better was found"
    lines = [
        f"---\n{front}\n---\n\n# {title}\n",
        f"{task.title} of {n_weights:,} parameters ({made}), trained by cutaway {cutaway.__version__} "
        f"{'from scratch ' if config.model.start is None else ''}on {prepared.facts['examples']:,} examples.\n",
        f'```\ncutaway {task.command} "…" --model ' + folder.path.name + "\n```\n",
        "## Scores\n",
        _scores(outcome, native.describe(folder.path).usage, task),
        "## Training\n",
        f"- {progress.step:,} steps ({ended}), {progress.tokens:,} {_learnt(task.unit)}, "
        f"{progress.time / 60:.1f} minutes on {_machine(prepared.model.device)}; seed {config.seed}.",
        "- Data, SHA-256: "
        + ", ".join(f"{name} `{digest[:16]}…`" for name, digest in prepared.facts["data"].items())
        + ".",
        f"- {prepared.facts['report']}.",
        "- `run.toml` has every setting; `metrics.jsonl` every validation and every tenth step.\n",
    ]
    if drawn:
        lines.append(f"![loss and score against steps]({CURVES})\n")
    lines += [
        "## Licence\n",
        f"Model: {config.card.licence or 'not stated'}. Data: {config.card.data_licence or 'not stated'}.",
    ]
    return "\n".join(lines) + "\n"


def _learnt(unit: str) -> str:
    return "target tokens" if unit == "token" else f"{unit}s"


def _changed(choice: ModelChoice) -> str:
    """The preset's name, and whether its sizes are others."""
    sizes = (choice.n_blocks, choice.d_model, choice.n_heads, choice.d_ff, choice.d_hidden)
    return f"{choice.preset}, changed" if any(size is not None for size in sizes) else str(choice.preset)


def _scores(outcome: Outcome, usage: Usage, task: Task) -> str:
    if outcome.progress.best is None:
        return f"None: stopped after step {outcome.progress.step:,}, before its first validation.\n"
    if not outcome.scores:
        return "The run was stopped before it was done; the best model so far is what this folder holds.\n"
    rows = [
        f"- {name} {value:.2f}" + (f" (`{outcome.signatures[name]}`)" if name in outcome.signatures else "")
        for name, value in outcome.scores.items()
    ]
    mean = f"the mean of steps {', '.join(map(str, outcome.averaged))}" if outcome.averaged else "the best single step"
    search, trivial = task.search(), task.baseline()
    baseline = ", ".join(f"{name} {value:.2f}" for name, value in trivial.scores.items())
    return "\n".join(
        [
            f"On the validation examples{f', {search}' if search else ''}:\n",
            *rows,
            f"- baseline ({trivial.model}): {baseline}",
            "",
            f"The weights are {mean}.{_search(usage)}\n",
        ]
    )


def _search(usage: Usage) -> str:
    if usage.beams == 1:
        return ""
    penalty = f", length penalty {usage.length_penalty:g}" if usage.length_penalty != 1.0 else ""
    return f" It searches with {usage.beams} beams{penalty}."


def _machine(device: torch.device) -> str:
    threads = torch.get_num_threads()
    cores = "1 core" if threads == 1 else f"{threads} cores"
    where = f"{cores} ({platform.machine()})"
    if device.type != "cpu":
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return f"{where}, torch {torch.__version__}"


def draw_curves(lines: list[dict[str, Any]], out: Path, unit: str = "token") -> bool:
    """Loss and scores against steps, as a PNG; False where matplotlib is not installed or there is nothing to draw."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    steps = [line for line in lines if "loss" in line]
    looks = [line for line in lines if "valid" in line]
    if not steps or not looks:
        return False
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([line["step"] for line in steps], [line["nll"] for line in steps], lw=0.8, label="training")
    left.plot(
        [line["step"] for line in looks], [line["valid"]["loss"] for line in looks], marker=".", label="validation"
    )
    left.set(xlabel="step", ylabel=f"-log p of a {unit}", title="loss")
    left.legend()
    for name in looks[0]["valid"]:
        if name != "loss":
            seen = [line for line in looks if name in line["valid"]]
            right.plot([line["step"] for line in seen], [line["valid"][name] for line in seen], marker=".", label=name)
    right.set(xlabel="step", title="scores on the validation examples")
    right.legend()
    with create_new(aside := out.with_name(f".{out.name}.aside")) as file:
        figure.savefig(file, dpi=110, format="png")
    aside.replace(out)
    return True
