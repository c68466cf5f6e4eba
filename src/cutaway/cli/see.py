"""`cutaway see`: what a model looks at while it reads or writes one text."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cutaway.cli.io import load_model
from cutaway.cli.options import SHIPPED_TRANSLATOR, DeviceOptions, Json, TranslatorOption, with_options
from cutaway.cli.terminal import show
from cutaway.errors import InputError


@with_options(DeviceOptions)
def see(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text that the model reads; for a model of images, a file.")
    ],
    model: TranslatorOption = SHIPPED_TRANSLATOR,
    target: Annotated[str | None, typer.Option(help="The output to trace; by default the model writes one.")] = None,
    kind: Annotated[
        Literal["encoder", "decoder", "cross"] | None,
        typer.Option(help="Which attention; by default cross, if there is one."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=0, help="From 0; by default that of the most informative head.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Draw one head, from 0, larger; by default all.")] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="QUERY,KEY", help="The sums behind one weight; tokens or their numbers.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write all values as one page that opens from disk.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the drawing as a picture.")] = None,
    *,
    as_json: Json = False,
    **given: Any,
) -> None:
    """What a model looks at: its attention heads drawn, the strongest links, and the sums behind any weight."""
    for path, suffix in ((html, ".html"), (png, ".png")):
        if path is not None and path.suffix.lower() != suffix:
            raise InputError(f"{path} can't be written; give it a name that ends in {suffix}")
    if not text.strip():
        raise InputError('the text is empty, so there is nothing to see; give one: cutaway see "The cat sat."')
    from cutaway.cli.display.heads import choose_attention, drawing, explained, record
    from cutaway.tasks.requirements import reads_images

    loaded = load_model(model, DeviceOptions(**given))
    trace = loaded.trace(Path(text) if reads_images(loaded) else text, target)
    if html is not None:
        from cutaway.seeing.render.html import write_page

        write_page(trace, html, text=text)
    shown = choose_attention(trace, kind, layer)
    if shown is None:
        if png is not None or explain is not None or as_json:
            raise InputError(f"{model} has no attention: there is nothing to draw")
        show(f"{model} has no attention, only a recurrent state; cutaway studio, or --html out.html, shows every value")
        return
    attention, n_heads = shown.name, len(shown.weights)
    if head is not None and head >= n_heads:
        raise InputError(f"{attention} has {n_heads} heads, counted from 0; there is no head {head}")
    if png is not None:
        from cutaway.seeing.render import plots

        figure = plots.heads(trace, attention) if head is None else plots.head(trace, attention, head)
        plots.save(figure, png)
    sums = None if explain is None else explained(trace, shown, head, explain)
    if as_json:
        found = record(trace, model, text, shown, head)
        if sums is not None:
            found["explained"] = [each.to_json() for each in sums]
        show(json.dumps(found, ensure_ascii=False))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        for line in drawing(trace, shown, head, width) if sums is None else [f"{each}\n" for each in sums]:
            show(line)
