"""What the benches of running models share: their options, and one table for a field of contestants.

Contestants whose name begins with "cutaway" are ours, the others are peers; ratios are to the best peer of the table.
"""

import argparse
from collections.abc import Sequence

from bench import harness
from bench.harness import Contestant, Result
from bench.report import Report, Table, machine_facts

OURS = "cutaway"


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=(doc or "").split("\n", 1)[0])
    found.add_argument("--rounds", type=int, default=5, help="turns of each contestant; the rate is their median")
    found.add_argument("--seconds", type=float, default=5.0, help="a turn lasts so long, and a cycle of all work")
    found.add_argument("--limit", type=float, default=900.0, help="seconds after which a turn counts as failed")
    found.add_argument("--patience", type=float, default=60.0, help="seconds to wait, before a turn, for quiet")
    found.add_argument("--only", action="append", metavar="WORD", help="contestants whose name holds it; repeatable")
    found.add_argument("--quick", action="store_true", help="one short round of little work: does it all run?")
    found.add_argument("--json", metavar="FILE", help="every single rate, as JSON")
    found.add_argument("--markdown", action="store_true", help="tables in Markdown")
    return found


def report(options: argparse.Namespace, **facts: str) -> Report:
    harness.stop_on_signals()
    return Report(machine_facts() | facts, markdown=options.markdown, json_file=options.json)


def compete(
    options: argparse.Namespace, field: Sequence[Contestant], always: Sequence[Contestant] = ()
) -> list[Result]:
    """The field, or those asked for with --only; then those that take part whatever was asked for."""
    chosen = [one for one in field if not options.only or any(word in one.name for word in options.only)]
    if not chosen:
        raise SystemExit(f"no contestant's name holds {' or '.join(options.only)}: {', '.join(c.name for c in field)}")
    chosen += always
    rounds, seconds, patience = (1, 0.2, 0.0) if options.quick else (options.rounds, options.seconds, options.patience)
    return harness.compete(chosen, rounds=rounds, seconds=seconds, limit=options.limit, patience=patience)


def table(title: str, unit: str, results: Sequence[Result], facts: dict[str, str], notes: Sequence[str] = ()) -> Table:
    """`facts`: those of the contestants that become columns, name -> format ("{:.1f}")."""
    peers = [result for result in results if not result.name.startswith(OURS)]
    groups = {"× best peer": peers} | {
        f"× {name}": [result for result in peers if result.name.startswith(name)]
        for name in sorted({result.name.split()[0] for result in peers})
    }

    def ratio(result: Result, others: Sequence[Result]) -> str:
        best = harness.best(others)
        return "–" if best is None or result.rate is None else f"{result.rate / best:.2f}"

    rows = []
    for result in results:
        told = [form.format(result.facts[name]) if name in result.facts else "–" for name, form in facts.items()]
        rate = "failed" if result.rate is None else f"{result.rate:.4g}"
        spread = (
            "–" if not result.turns else "–".join(f"{f(turn.rate for turn in result.turns):.4g}" for f in (min, max))
        )
        costs = [f"{result.peak_mb:.0f}", f"{result.setup_seconds:.1f}"]
        rows.append([result.name, rate, *(ratio(result, others) for others in groups.values()), spread, *told, *costs])
    rounds = max((len(result.turns) for result in results), default=0)
    said = [
        *notes,
        f"{rounds} rounds; {harness.disturbance(results)}",
        *(f"failed: {result.name}: {result.error}" for result in results if result.error),
    ]
    columns = ["contestant", unit, *groups, "min–max", *facts, "peak MB", "set-up s"]
    return Table(title, columns, rows, notes=said, results=results)
