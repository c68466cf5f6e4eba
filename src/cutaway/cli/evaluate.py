"""`cutaway evaluate`: how good a translator is."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutaway.cli.io import check_writable, load_model, show_progress
from cutaway.cli.options import Beams, EngineOptions, Json, ModelArgument, with_options
from cutaway.cli.terminal import show
from cutaway.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.training.evaluate import Evaluation


@dataclass(frozen=True)
class EvaluationOptions(EngineOptions):
    """On which sentences translators are judged, and how they translate them."""

    source: Annotated[list[str] | None, typer.Option("--source", metavar="FILE", help="Sentences, one a line.")] = None
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="FILE", help="Their translations; again for each further reference."),
    ] = None
    pairs: Annotated[list[str] | None, typer.Option("--pairs", metavar="FILE", help="Instead: a table of both.")] = None
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Source's and target's columns in PAIRS: names in a header, or numbers."),
    ] = None
    joined: Annotated[
        int, typer.Option(help="Judge neighbouring sentences joined, too: two, three, … up to so many.", min=1)
    ] = 1
    beams: Beams = None

    def texts(self) -> tuple[list[str], list[list[str]]]:
        """The sentences, and a list of translations for each reference: several --target are several references."""
        from cutaway.data.clean import join_neighbours
        from cutaway.data.pairs import Pair, PairSpec, read_pairs

        if self.pairs:
            columns = tuple(self.columns.split(",")) if self.columns else ()
            specs = [PairSpec(pairs=tuple(self.pairs), columns=columns)]
        else:
            if not self.source or not self.target:
                raise InputError(
                    "give the sentences and their translations: --source FILE --target FILE, or --pairs FILE"
                )
            if len(self.source) > 1:
                raise InputError("give one --source; several --target are several references of it")
            specs = [PairSpec(source=tuple(self.source), target=(each,)) for each in self.target]

        def checked(spec: PairSpec) -> Iterator[Pair]:
            for pair in read_pairs(spec):
                if not isinstance(pair, Pair):
                    raise InputError(f"{pair.where}: {pair.why}")
                yield pair

        references = [list(join_neighbours(list(checked(spec)), self.joined)) for spec in specs]
        return [pair.source for pair in references[0]], [[pair.target for pair in read] for read in references]

    def evaluate(
        self, model: "Model", sources: list[str], references: list[list[str]], tokenized: str | None = None
    ) -> "Evaluation":
        """The model's translations and their scores, with progress on stderr."""
        from cutaway.training.evaluate import evaluate

        def seen(texts: Iterator[str], sizes: Sequence[int]) -> Iterator[str]:
            return show_progress(texts, len(sources), scrolling=False, sizes=sizes)

        return evaluate(
            model, sources, references, beams=self.beams, tokenized=tokenized, engine=self.engine,
            precision=self.precision, show_progress=seen,
        )  # fmt: skip


@with_options(EvaluationOptions)
def evaluate(
    model: ModelArgument,
    *,
    tokenized: Annotated[
        str | None,
        typer.Option(metavar="LANGUAGE", help="Also BLEU as older papers report it: lowercased, tokenised by Moses."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations to this file.")] = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Judge a translator: BLEU and chrF, with their signatures, of all sentences and by their length."""
    options = EvaluationOptions(**given)
    sources, references = options.texts()
    if out is not None:
        check_writable(out)
    from cutaway.cli.display.scores import print_scores, record

    found = options.evaluate(load_model(model, options), sources, references, tokenized)
    if out is not None:
        try:
            out.write_text("".join(text.replace("\n", " ") + "\n" for text in found.written), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"can't write {out}: {error.strerror}") from None
    if as_json:
        show(json.dumps(record(found)))
    else:
        print_scores(model, found)
