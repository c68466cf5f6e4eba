"""The commands and their options. Nothing here imports torch, so that help is quick."""

import atexit
import errno
import gc
import logging
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

import cutaway
from cutaway.cli.hints import hint
from cutaway.cli.options import (
    SHIPPED_TRANSLATOR,
    Beams,
    DeviceOption,
    DtypeOption,
    EngineOption,
    JsonLines,
    MaxTokens,
    MinP,
    ModelOption,
    NBest,
    PoolingOption,
    PrecisionOption,
    Seed,
    Source,
    Stop,
    System,
    Target,
    Temperature,
    Texts,
    TopK,
    TopOption,
    TopP,
    TranslatorOption,
    Where,
)
from cutaway.cli.terminal import Visible, show
from cutaway.errors import CutawayError

app = typer.Typer(
    name="cutaway",
    help="The Transformer that you can train, run and look inside.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Revision = Annotated[str | None, typer.Option(help="A branch, tag or commit on the hub; its newest by default.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, owner/name on the hub, or a llama2.c file.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cutaway {cutaway.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif any(name.startswith("CUTAWAY_") for name in os.environ):
        from cutaway.machine.environment import unknown_variables

        if (slip := unknown_variables()) is not None:
            typer.echo(f"Warning: {slip}", err=True)


def _refuse_option(number: str | None) -> None:
    """-1 is a number that does not exist, and is told so; --jsn is an option that does not."""
    if number is not None and number.startswith("-") and not number[1:].isdecimal():
        raise typer.TyperException(f"No such option: {number}")


@app.command(rich_help_panel="Learn", context_settings={"ignore_unknown_options": True})
def notes(
    number: Annotated[
        str | None, typer.Argument(metavar="[NUMBER]", help="One example, with its arithmetic written out.")
    ] = None,
    json: Json = False,
) -> None:
    """The worked examples of the lecture notes, recomputed: what is printed, what is true, what went wrong."""
    _refuse_option(number)
    from cutaway.cli import notes

    notes.run(number, json)


@app.command(rich_help_panel="Learn", context_settings={"ignore_unknown_options": True})
def quiz(
    number: Annotated[str | None, typer.Argument(metavar="[NUMBER]", help="One question only.")] = None,
    answers: Annotated[bool, typer.Option("--answers", help="Do not ask: show all answers and why.")] = False,
    json: Json = False,
) -> None:
    """The seven questions of the notes, with answers explained and shown on a running part."""
    _refuse_option(number)
    from cutaway.cli import quiz

    quiz.run(number, answers, json)


@app.command(rich_help_panel="Learn")
def see(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model reads; an image for one that sees.")],
    model: TranslatorOption = SHIPPED_TRANSLATOR,
    target: Annotated[str | None, typer.Option(help="What it shall have written; by default it writes itself.")] = None,
    kind: Annotated[
        Literal["encoder", "decoder", "cross"] | None, typer.Option(help="Whose attention: cross, if it has one.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=0, help="From 0; by default that of the head that says most.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="One head, from 0, larger; by default all.")] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="QUERY,KEY", help="The sums behind one weight; tokens or their numbers.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write all values as one page that opens from disk.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the drawing as a picture.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: Json = False,
) -> None:
    """What a model looks at: its attention heads drawn, the strongest links, and the sums behind any weight."""
    from cutaway.cli import see

    see.run(text, model, target, kind, layer, head, explain, html, png, Where(device, dtype), json)


@app.command(rich_help_panel="Learn")
def studio(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Folders or hub names; by default the translator in cutaway."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="By default the first free one from 8300.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
) -> None:
    """A page on this machine that shows models at work: every value, every head, every word; change them and see."""
    from cutaway.cli import studio

    studio.run(models or [SHIPPED_TRANSLATOR], port, Where(device, dtype), browser=browser)


@app.command(rich_help_panel="Learn")
def machine(
    again: Annotated[bool, typer.Option("--again", help="Measure anew, whatever the cache has.")] = False,
    json: Json = False,
) -> None:
    """This machine: cores, speed in each precision, kernels, and what cutaway chooses by them. For bug reports."""
    from cutaway.cli import machine

    machine.run(again, json)


@app.command(rich_help_panel="Models")
def models(
    names: Annotated[list[str] | None, typer.Argument(help="Presets to show; all by default.")] = None,
    context: Annotated[int, typer.Option(help="Tokens that attention looks at, for the FLOPs.", min=1)] = 512,
    json: Json = False,
) -> None:
    """The models cutaway can build: parameters by part, FLOPs, bytes of weights and of the key/value cache."""
    from cutaway.cli import models

    models.run(names or [], context, json)


@app.command(rich_help_panel="Models")
def get(
    name: Annotated[str, typer.Argument(help="owner/name on the Hugging Face hub.")],
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Fetch a model from the Hugging Face hub: its safetensors, config and tokenizer, never a pickle or code."""
    from cutaway.cli import get

    get.run(name, revision, json)


@app.command(rich_help_panel="Models")
def info(
    name: Model,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Every tensor: their name, ours, shape and dtype.")
    ] = False,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """What a model is: family, sizes, tokenizer, licence. Reads the headers of its files, not the weights."""
    from cutaway.cli import info

    info.run(name, revision, tensors, json)


@app.command(rich_help_panel="Models")
def convert(
    source: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    to: Annotated[
        Literal["huggingface", "cutaway", "ctranslate2"] | None, typer.Option(help="The format of OUT.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "int8"] | None,
        typer.Option(help="Of the weights; as stored by default. int8, and float32 by default: CTranslate2."),
    ] = None,
    from_pickle: Annotated[
        bool, typer.Option("--from-pickle", help="Read pytorch_model.bin (or a .pt file), in a process of its own.")
    ] = False,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Write a model in another format: Hugging Face's, cutaway's own, CTranslate2's, or safetensors, not a pickle."""
    from cutaway.cli import convert

    convert.run(source, out, to, dtype, from_pickle, revision, json)


@app.command(rich_help_panel="Tasks")
def fill(
    model: ModelOption,
    texts: Texts = None,
    top: TopOption = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Fill the blanks of a text: ___ or [MASK]. With an encoder that has a masked-language-model head, like BERT."""
    from cutaway.cli import tasks

    where = Where.of(device, dtype, engine, precision)
    tasks.fill(texts, model, top, engine, precision, where, json)


@app.command(rich_help_panel="Tasks")
def classify(
    model: ModelOption,
    texts: Texts = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="An input is two texts with a tab between them.")] = False,
    top: TopOption = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Say which class a text is of. An empty line has none."""
    from cutaway.cli import tasks

    where = Where.of(device, dtype, engine, precision)
    tasks.classify(texts, model, pairs, top, engine, precision, where, json)


@app.command(rich_help_panel="Tasks")
def embed(
    model: ModelOption,
    texts: Texts = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write them all into a safetensors file instead.")
    ] = None,
    pooling: PoolingOption = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Turn texts into vectors, a line of numbers each. An empty line has one too: that of an empty sentence."""
    from cutaway.cli import tasks

    where = Where.of(device, dtype, engine, precision)
    tasks.embed(texts, model, out, pooling, engine, precision, where, json)


@app.command(rich_help_panel="Tasks")
def search(
    query: Annotated[str, typer.Argument(help="What to look for; - for the lines of stdin.")],
    file: Annotated[Path, typer.Argument(help="A text of which lines are found.")],
    model: ModelOption,
    index: Annotated[
        Literal["exact", "ann"], typer.Option(help="Look at every line, or through an index, for millions.")
    ] = "exact",
    cache: Annotated[bool, typer.Option(help="Keep the vectors of the lines in your cache.")] = True,
    top: Annotated[int | None, typer.Option(help="How many lines, best first; 10, or 1 for stdin.", min=1)] = None,
    pooling: PoolingOption = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Find the lines of a file that mean what a query means: score, line number, text. Empty lines are never found."""
    from cutaway.cli import tasks

    where = Where.of(device, dtype, engine, precision)
    tasks.search(query, file, model, index, cache, top, pooling, engine, precision, where, json)


@app.command(rich_help_panel="Tasks")
def answer(
    context: Annotated[
        str, typer.Option("--context", "-c", metavar="FILE|TEXT", help="The text that holds the answer, or its file.")
    ],
    model: ModelOption,
    questions: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="Without any, the lines of stdin.")
    ] = None,
    no_answer_above: Annotated[
        float | None, typer.Option(help="Say nothing where 'no answer' scores so much higher (SQuAD 2.0).")
    ] = None,
    top: TopOption = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Answer questions from a text, however long: the part of it that is the answer. An empty line has none."""
    from cutaway.cli import tasks

    where = Where.of(device, dtype, engine, precision)
    tasks.answer(questions, context, model, no_answer_above, top, engine, precision, where, json)


@app.command(rich_help_panel="Tasks")
def recognize(
    model: ModelOption,
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Files; without any, their names from stdin.")
    ] = None,
    top: TopOption = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Say what images show. With a classifier of images, like ViT."""
    from cutaway.cli import tasks

    where = Where.of(device, dtype, engine, precision)
    tasks.recognize(images, model, top, engine, precision, where, json)


@app.command(rich_help_panel="Tasks")
def translate(
    texts: Texts = None,
    model: TranslatorOption = SHIPPED_TRANSLATOR,
    source: Source = None,
    target: Target = None,
    beams: Beams = None,
    n_best: NBest = 1,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Draw which words it looked at for each word it wrote.")
    ] = False,
    json: JsonLines = False,
) -> None:
    """Texts in another language: arguments, or stdin line by line."""
    from cutaway.cli import translate
    from cutaway.cli.writing import WritingOptions

    asked = WritingOptions(
        beams, n_best, max_tokens, temperature, top_k, top_p, min_p, seed, stop, engine, precision, device, dtype
    )
    translate.run(texts, model, source, target, asked, attention, json)


@app.command(rich_help_panel="Tasks")
def summarize(
    model: ModelOption,
    texts: Texts = None,
    beams: Beams = None,
    n_best: NBest = 1,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """Texts in fewer words: arguments, or stdin line by line."""
    from cutaway.cli import summarize
    from cutaway.cli.writing import WritingOptions

    asked = WritingOptions(
        beams, n_best, max_tokens, temperature, top_k, top_p, min_p, seed, stop, engine, precision, device, dtype
    )
    summarize.run(texts, model, asked, json)


@app.command(rich_help_panel="Tasks")
def complete(
    model: ModelOption,
    texts: Texts = None,
    beams: Beams = None,
    n_best: NBest = 1,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """A text goes on, shown while it is written: an argument, or each line of stdin."""
    from cutaway.cli import complete
    from cutaway.cli.writing import WritingOptions

    asked = WritingOptions(
        beams, n_best, max_tokens, temperature, top_k, top_p, min_p, seed, stop, engine, precision, device, dtype
    )
    complete.run(texts, model, asked, json)


@app.command(rich_help_panel="Tasks")
def chat(
    model: ModelOption,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: JsonLines = False,
) -> None:
    """A conversation: on the terminal, or with each line of a pipe as a turn."""
    from cutaway.cli import chat
    from cutaway.cli.writing import WritingOptions

    asked = WritingOptions(
        None, 1, max_tokens, temperature, top_k, top_p, min_p, seed, stop, engine, precision, device, dtype
    )
    chat.run(model, system, asked, json)


TrainDevice = Annotated[
    str | None, typer.Option("--device", help="machine.device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")
]


def _columns(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


@app.command(rich_help_panel="Train")
def train(
    what: Annotated[
        str, typer.Argument(metavar="TASK|RUN.toml", help="translate, complete, classify, or a file with all settings.")
    ],
    source: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Sentences, one a line.")] = None,
    target: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Their translations, line by line.")] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Instead: TSV, CSV, JSONL, Parquet, a folder, or hf:owner/name."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Source's and target's columns in PAIRS: names in a header, or numbers."),
    ] = None,
    valid_source: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Sentences to judge by.")] = None,
    valid_target: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Their translations.")] = None,
    valid_pairs: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Instead, as PAIRS.")] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="FILE", help="For complete: running text.")] = None,
    valid_text: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="For complete: text to judge by.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the model goes; made.")] = None,
    preset: Annotated[str | None, typer.Option(help="A model of `cutaway models`; by the data's size.")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="MODEL", help="Go on from a trained model.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Tokens of the vocabulary to learn.", min=1)] = None,
    steps: Annotated[int | None, typer.Option(help="How many steps; by the data's size.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Another one, another model.")] = None,
    device: TrainDevice = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a run.toml: optimizer.rate=0.001")
    ] = None,
    write_config: Annotated[
        Path | None, typer.Option(metavar="RUN.toml", help="Do not train: write all settings, explained.")
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the curves while it learns.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over in a folder that holds a run.")] = False,
    json: Json = False,
) -> None:
    """Train a model on your data: a translator (two files of sentences), a writer (text), a classifier (texts, labels).

    Ctrl-C stops it, and `cutaway resume` goes on where it was."""
    from cutaway.cli import train

    asked = train.TrainOptions(
        source=tuple(source or ()),
        target=tuple(target or ()),
        pairs=tuple(pairs or ()),
        columns=_columns(columns),
        valid_source=tuple(valid_source or ()),
        valid_target=tuple(valid_target or ()),
        valid_pairs=tuple(valid_pairs or ()),
        text=tuple(text or ()),
        valid_text=tuple(valid_text or ()),
        preset=preset,
        start=start,
        vocabulary=vocabulary,
        steps=steps,
        seed=seed,
        device=device,
        settings=tuple(settings or ()),
    )
    train.train(what, asked, out, write_config, plot, force, json)


@app.command(rich_help_panel="Train")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What --out of `train` was.")],
    device: TrainDevice = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the curves while it learns.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Though settings or data have changed.")] = False,
    json: Json = False,
) -> None:
    """Go on with a training that was stopped or killed, to the same model as if it had not been."""
    from cutaway.cli import train

    train.resume(folder, device, plot, force, json)


SourceFile = Annotated[list[str] | None, typer.Option("--source", metavar="FILE", help="Sentences, one a line.")]
TargetFile = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FILE", help="Their translations; again for each further reference."),
]
PairsFile = Annotated[list[str] | None, typer.Option("--pairs", metavar="FILE", help="Instead: a table of both.")]
Joined = Annotated[
    int, typer.Option(help="Neighbouring sentences together, too: each two, three, … up to so many.", min=1)
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Source's and target's columns in PAIRS: names in a header, or numbers."),
]


@app.command(rich_help_panel="Train")
def evaluate(
    model: Model,
    source: SourceFile = None,
    target: TargetFile = None,
    pairs: PairsFile = None,
    columns: Columns = None,
    joined: Joined = 1,
    beams: Beams = None,
    tokenized: Annotated[
        str | None,
        typer.Option(metavar="LANGUAGE", help="Also BLEU as older papers have it: lowercased, tokenised by Moses."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the translations.")] = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: Json = False,
) -> None:
    """Judge a translator: BLEU and chrF, with their signatures, of all sentences and by their length."""
    from cutaway.cli import evaluate

    where = Where.of(device, dtype, engine, precision)
    texts = evaluate.texts_of(source or (), target or (), pairs or (), _columns(columns), joined)
    evaluate.run(model, *texts, beams, tokenized, out, engine, precision, where, json)


@app.command(rich_help_panel="Train")
def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Two or more.")],
    source: SourceFile = None,
    target: TargetFile = None,
    pairs: PairsFile = None,
    columns: Columns = None,
    joined: Joined = 1,
    beams: Beams = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw BLEU against sentence length.")] = None,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: Json = False,
) -> None:
    """Judge several translators on the same sentences: scores, speed, and BLEU against sentence length."""
    from cutaway.cli import evaluate

    where = Where.of(device, dtype, engine, precision)
    texts = evaluate.texts_of(source or (), target or (), pairs or (), _columns(columns), joined)
    evaluate.compare(models, *texts, beams, png, engine, precision, where, json)


def _command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "cutaway" if context is None else str(context.command_path)


def _mistake(error: typer.TyperException) -> str:
    """Typer's sentence; of an option that another library has, with the name it has here."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is not None and context is not None and (said := hint(option, context.command)):
        return f"No such option: {option}; {said}"
    return " ".join(error.format_message().split()).rstrip(".")


def main() -> None:
    """A user's mistake is one line on stderr and exit code 2; never a traceback."""
    try:
        # Importing torch makes 160,000 objects that live to the end; searching them for garbage, while they are made
        # and once more on the way out, took 0.5 s of the 2.1 that `cutaway models` needed.
        gc.set_threshold(50_000)
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's, where NumPy is not installed
        atexit.register(gc.freeze)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # formulas have letters that some terminals lack
        if logging.lastResort is not None:  # what prints the warnings of all libraries
            logging.lastResort.setFormatter(Visible())
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where its errors can be told
        sys.exit(code)
    except typer.TyperException as error:  # an option or command that does not exist, or a value it can't take
        _fail(f"{_mistake(error)} (see {_command(error)} --help)")
    except CutawayError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `cutaway notes | head`: the reader has seen enough
        _drop_output()
        sys.exit(0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer was the first to hear of it, and calls it an error
            _drop_output()
            sys.exit(0)
        raise
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise  # of some other file, so for others to explain
        _drop_output()  # `cutaway notes > /dev/full`
        _fail(f"the output could not be written: {error.strerror or error}; make room, or write it elsewhere")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _fail(message: str) -> NoReturn:
    if sys.stderr is not None:
        with suppress(OSError):
            show(f"Error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def _drop_output() -> None:
    """What is still to be written can't be; Python would try once more on its way out, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
