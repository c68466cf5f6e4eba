"""A trained run becomes a model that comes with cutaway: half-precision weights, and a card that says how good it is.

    python recipes/ship.py RUN TEST.tsv TEST.multiref.tsv src/cutaway/shipped/en-fr

The scores and sentences of the card are made with the weights as they are stored.
"""

import shutil
import sys
from pathlib import Path

import cutaway
from cutaway.training.metrics import Score, translation_scores

SENTENCES = """\
I don't know where she is.
Can you help me?
What time is it?
I would like a cup of coffee, please.
Where is the train station?
He is taller than his brother.
She has been living in Paris for three years.
It was raining when I left the house.
If I had more time, I would learn to play the piano.
The children are playing in the garden.
Don't touch that!
How much does this book cost?
We went to the beach yesterday.
I'm too tired to work.
They have already eaten dinner.
Why didn't you tell me the truth?
The meeting starts at 9:30 tomorrow morning.
My name is Zorblatt.
Do you know Mrs. Kowalczyk?
I met Anneliese in Reykjavik.""".splitlines()


def scored(model: cutaway.Model, file: Path) -> tuple[dict[str, Score], int]:
    """Of a sentence and its translations, one or more, on each line."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    most = max(len(row) for row in rows) - 1
    references = [[row[i + 1] if len(row) > i + 1 else None for row in rows] for i in range(most)]
    return translation_scores(model.translate([row[0] for row in rows]), references), len(rows)  # type: ignore[arg-type]


def main() -> None:
    run, one, many, out = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    cutaway.load(run, dtype="float16").save(out)
    model = cutaway.load(out, dtype="float32")
    rows = []
    for file, what in ((one, "one reference"), (many, "all references")):
        scores, n = scored(model, file)
        rows.append(f"\nOn {n:,} test sentences, {what} each:\n")
        rows += [f"- {name} {score.value:.2f} (`{score.signature}`)" for name, score in scores.items()]
    said = model.translate(SENTENCES)
    card = (run / "README.md").read_text(encoding="utf-8").replace(f"--model {run.name}", f"--model {out.name}")
    before, after = card.split("\nThe weights are ", 1)
    before = before.rstrip() + "\n" + "\n".join(rows)
    after = after.replace("\n## Training", "\n" + section(said) + "\n## Training", 1)
    after = "\n".join(line for line in after.splitlines() if "curves.png" not in line and "`run.toml`" not in line)
    text = f"{before}\n\nThe weights, stored in half precision, are {after}\n"
    (out / "README.md").write_text(text, encoding="utf-8")
    shutil.copy(run / "run.toml", out / "run.toml")
    print(text)
    print(f"{sum(file.stat().st_size for file in out.iterdir()) / 1e6:.2f} MB")


def section(said: list[str]) -> str:
    pairs = [f"| {sentence} | {text} |" for sentence, text in zip(SENTENCES, said, strict=True)]
    return "\n".join(["## Twenty sentences, as they come out", "", "| | |", "| --- | --- |", *pairs, ""])


if __name__ == "__main__":
    main()
