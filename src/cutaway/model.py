"""Model: a network, its tokenizer and its usage, with the tasks as methods."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

from cutaway.aliases import hinted
from cutaway.checkpoints import huggingface, native
from cutaway.checkpoints.usage import (
    CONFIG,
    GENERATION,
    Files,
    read_usage,
    side_files,
    usage_keys,
    without_settings,
)
from cutaway.devices import device_of, dtype_of, memory_explained
from cutaway.errors import CheckpointError, unknown
from cutaway.files import atomic_folder
from cutaway.generation import Generation
from cutaway.models.config import Config, TransformerConfig
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.seeing.trace.trace import Trace
from cutaway.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from cutaway.engines.engine import Engine
    from cutaway.seeing.interventions.compare import Comparison
    from cutaway.seeing.interventions.edits import Editable
    from cutaway.tasks.answer import answer as _answer
    from cutaway.tasks.chat import chat as _chat
    from cutaway.tasks.classify import classify as _classify
    from cutaway.tasks.complete import complete as _complete
    from cutaway.tasks.embed import embed as _embed
    from cutaway.tasks.fill import fill as _fill
    from cutaway.tasks.recognize import Image
    from cutaway.tasks.recognize import recognize as _recognize
    from cutaway.tasks.search import search as _search
    from cutaway.tasks.summarize import summarize as _summarize
    from cutaway.tasks.translate import translate as _translate

Format = Literal["cutaway", "huggingface"]
DOCUMENTS = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt")


class TaskMethod:
    """A task as a method: `model.fill(text)` is `fill(model, text)` of tasks/fill.py, imported on access."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, model: "Model | None", owner: type) -> Any:
        function = getattr(import_module(f"cutaway.tasks.{self.name}"), self.name)
        return function if model is None else MethodType(_hinted(function), model)


_hinted = cache(hinted)


@dataclass
class Model:
    """A model, as `cutaway.load` returns it.

    `network` is the torch module, `tokenizer` turns text into its input (None: it reads images, or the folder had
    none), `origin` holds the config.json of Hugging Face, so that saving writes it back.
    """

    network: Network
    tokenizer: Tokenizer | None = None
    usage: Usage = field(default_factory=Usage)
    name: str = "model"
    origin: huggingface.Origin | None = None
    report: huggingface.Report = field(default_factory=huggingface.Report)
    folder: Path | None = None  # where it was loaded from
    dtypes: Mapping[str, "torch.dtype"] = field(default_factory=dict, repr=False)  # in the file, if it had several
    engines: dict[Any, "Engine"] = field(default_factory=dict, repr=False, compare=False)  # made on first use

    if TYPE_CHECKING:  # types and overloads are those of the functions
        answer = _answer
        chat = _chat
        classify = _classify
        complete = _complete
        embed = _embed
        fill = _fill
        recognize = _recognize
        search = _search
        summarize = _summarize
        translate = _translate
    else:
        answer = TaskMethod("answer")
        chat = TaskMethod("chat")
        classify = TaskMethod("classify")
        complete = TaskMethod("complete")
        embed = TaskMethod("embed")
        fill = TaskMethod("fill")
        recognize = TaskMethod("recognize")
        search = TaskMethod("search")
        summarize = TaskMethod("summarize")
        translate = TaskMethod("translate")

    @property
    def config(self) -> Config:
        return self.network.config

    @property
    def device(self) -> "torch.device":
        """The device of its weights, on which it computes."""
        return self.network.device

    def to(self, device: "str | torch.device | None" = None, dtype: "torch.dtype | str | None" = None) -> "Model":
        """Moves the weights to another device or dtype; returns the model, for chaining.

        Engines are made anew. See `cutaway.load` for the names.
        """
        before = self.device
        place, number = before if device is None else device_of(device), dtype_of(dtype)
        self.engines.clear()
        try:
            with memory_explained(place):
                self.network.to(device=place, dtype=number)
        except BaseException:
            self.network.to(before)  # a part had moved
            raise
        if number is not None:
            self.dtypes, self.origin = {}, None if self.origin is None else self.origin.to(number)
        return self

    def save(self, folder: str | Path, format: Format = "cutaway") -> Path:  # noqa: A002  # the word users look for
        """Writes the model: our own format, or Hugging Face's. The folder is complete or not there at all."""
        folder = Path(folder).expanduser()
        if format not in ("cutaway", "huggingface"):
            raise CheckpointError(unknown("format", format, ("cutaway", "huggingface")))
        with atomic_folder(folder, self.folder) as aside:
            if format == "cutaway":
                files, spare = (None, None) if self.origin is None else (self.origin.files, self.origin.spare)
                native.write(self.network, aside, self.usage, files, self.dtypes, spare)
            else:
                self._write_huggingface(aside)
            if self.tokenizer is not None:
                self.tokenizer.save(aside)
            self._copy_documents(aside)
        return folder

    def _copy_documents(self, aside: Path) -> None:
        """Copies the description and the licence of the model."""
        for name in DOCUMENTS:
            if self.folder is not None and (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, aside / name)

    def _write_huggingface(self, aside: Path) -> None:
        """Writes the model as transformers reads it: config.json, model.safetensors and the JSON files that came beside
        them, as loaded, with the changes of usage since."""
        files: Files = {} if self.origin is None else self.origin.files
        more: dict[str, Any] = {}
        if isinstance(self.config, TransformerConfig) and not self._is_used_as_saved(self.config):
            more = usage_keys(self.usage, self.config)
            new = side_files(self.usage, self.config)
            kept = {**files, GENERATION: without_settings(files.get(GENERATION, {}))}
            files = {**files, **{name: {**kept.get(name, {}), **keys} for name, keys in new.items()}}
        huggingface.write(self.network, aside, self.origin, more, self.dtypes)
        for name, keys in files.items():
            if name != CONFIG:
                (aside / name).write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")

    def _is_used_as_saved(self, config: TransformerConfig) -> bool:
        if self.origin is None:
            return False
        return self.usage == read_usage(self.origin.files, self.origin.family, config, Path())

    def engine(self, name: str | None = None, precision: str | None = None) -> "Engine":
        """The engine that runs this model: "native" or "ctranslate2", in "float32", "bfloat16", "float16" or "int8".

        None: the fastest that writes the same text as float32; on a GPU "native", in the dtype of the weights. It is
        made once, and again if the weights have changed.
        """
        from cutaway.engines.choose import choose

        weights = tuple(
            (weight.data_ptr(), 0 if weight.is_inference() else weight._version)  # those of inference mode have none
            for weight in self.network.parameters()
        )
        key = (name, precision)
        if key not in self.engines or self.engines[key].weights != weights:
            kept = self.folder if all(version == 0 for _, version in weights) else None
            self.engines[key] = choose(self.network, self.usage, kept, name, precision)
            self.engines[key].weights = weights
        return self.engines[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "engines": {}}  # they can be made again, and not all can be pickled

    def trace(
        self,
        given: "str | Image",
        target: str | None = None,
        *,
        pair: str | None = None,
        keep: str | Sequence[str] = "*",
        generation: Generation | None = None,
    ) -> Trace:
        """Runs the model on a text (a model that sees: on an image) and keeps every named value.

        `target`: the output text of an encoder-decoder; without it, the model writes one first, and `trace.search` has
        its search. A decoder reads its text; with `generation` it first continues it. `pair`: a second text, for
        encoders that read two. `keep`: shell patterns of the values to keep.
        """
        from cutaway.seeing.trace.inputs import trace_model

        return trace_model(self, given, target, pair=pair, keep=keep, generation=generation)

    def run(
        self,
        given: "str | Image",
        edits: "Editable | Iterable[Editable]" = (),
        target: str | None = None,
        *,
        pair: str | None = None,
        keep: str | Sequence[str] = "*",
        generation: Generation | None = None,
    ) -> "Comparison":
        """Runs the model without and with edits, and compares the two runs.

        An edit is a switch ("scaling", "mask", "positions", "residual", "block"), a mapping of values to replacements
        (0, a number, a tensor, a function of (value, name), another trace), or one of `seeing/interventions/edits.py`.
        """
        from cutaway.seeing.interventions.compare import run

        return run(self, given, edits, target, pair=pair, keep=keep, generation=generation)

    def __repr__(self) -> str:
        halves = "-".join(half for half in ("encoder", "decoder") if getattr(self.config, half) is not None)
        n = sum(weight.numel() for weight in self.network.parameters())
        return f"Model({self.name!r}, {halves}, {n:,} parameters)"

    def _repr_html_(self) -> str:
        """The model in a notebook: its kind, its sizes and its tasks."""
        from cutaway.seeing.render.notebook import model_html

        return model_html(self)
