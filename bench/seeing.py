"""What looking costs, and what it costs not to look: `python -m bench.seeing`.

Not looking: the same networks with their taps, and with every call of a tap cut out of their code, in turn. Looking:
how long a trace of a sentence of 12 words takes, and the explanation of one number of it.
"""

import ast
import gc
import importlib
import inspect
import pkgutil
import random
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

import cutaway
import cutaway.models
import cutaway.parts
from bench.report import Table, machine_facts
from cutaway.parts.cache import Cache
from cutaway.parts.tap import Tap

ROUNDS = 800
SENTENCE = "The animal didn't cross the street because it was too tired."


class Cut(ast.NodeTransformer):
    """self.weights(x) -> x, for every name that is a tap's; heard(…) -> False."""

    def __init__(self, taps: set[str]) -> None:
        self.taps, self.n = taps, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:  # its name in ast
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(), attr=name), args=[value]) if name in self.taps:
                self.n += 1
                return value
            case ast.Call(func=ast.Name(id="added"), args=[value]):  # a tap that is handed over
                self.n += 1
                return value
            case ast.Call(func=ast.Attribute(attr="_heard"), args=[_, value]):
                self.n += 1
                return value
            case ast.Call(func=ast.Name(id="heard")):
                return ast.copy_location(ast.Constant(False), node)
        return node


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those written in a module, methods among them."""
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield value
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from (each for each in vars(value).values() if isinstance(each, FunctionType))


def without_taps() -> tuple[dict[FunctionType, CodeType], int]:
    """The code of every part and model with its taps cut out, and how many calls that were."""
    names = [f"{package.__name__}.{each.name}" for package in (cutaway.parts, cutaway.models)
             for each in pkgutil.iter_modules(package.__path__)]  # fmt: skip
    modules = [importlib.import_module(name) for name in names if name != "cutaway.parts.tap"]
    taps = {
        node.targets[0].attr
        for module in modules
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == Tap.__name__
    }  # fmt: skip
    cut, codes = Cut(taps), {}
    for module in modules:
        tree = ast.fix_missing_locations(cut.visit(ast.parse(textwrap.dedent(inspect.getsource(module)))))
        compiled = dict(_codes(compile(tree, module.__file__ or "", "exec")))
        for each in functions(module):
            code = compiled.get(each.__code__.co_qualname)
            if code is not None and code.co_freevars == each.__code__.co_freevars and code != each.__code__:
                codes[each] = code
    return codes, cut.n


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each.co_qualname, each
            yield from _codes(each)


@contextmanager
def swapped(codes: dict[FunctionType, CodeType]) -> Iterator[None]:
    before = {each: each.__code__ for each in codes}
    for each, code in codes.items():
        each.__code__ = code
    try:
        yield
    finally:
        for each, code in before.items():
            each.__code__ = code


def works() -> dict[str, Callable[[], Any]]:
    """Forward passes in which taps would be felt most: small networks, few tokens."""
    torch.manual_seed(0)
    translator = cutaway.load("en-fr")
    bert, gpt2 = (cutaway.build(name).eval() for name in ("bert-tiny", "gpt2"))
    source, target = torch.randint(8000, (1, 14)), torch.randint(8000, (1, 16))
    memory = translator.network.encode(source)

    def step() -> None:
        cache = Cache()
        for place in range(4):
            translator.network.decode(target[:, place : place + 1], memory, cache)

    return {
        "en-fr, 14 + 16 tokens": lambda: translator.network(source, target),
        "en-fr, 4 cached steps": step,
        "bert-tiny, 16 tokens": lambda: bert(target),
        "gpt2 (124 M), 16 tokens": lambda: gpt2(target),
    }


def compared(work: Callable[[], Any], codes: dict[FunctionType, CodeType], rounds: int) -> tuple[float, float, float]:
    """Seconds with taps and without, and the ratio: medians of rounds taken in turn, in random order."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    ours = {each: each.__code__.replace() for each in codes}  # new code too: what Python learns of code, it learns anew
    for _ in range(rounds):
        for cut in random.sample((True, False), 2):
            with swapped(codes if cut else ours):
                work()
                begin = time.perf_counter()
                work()
                taken[cut].append(time.perf_counter() - begin)
    ratio = statistics.median(a / b for a, b in zip(taken[False], taken[True], strict=True))
    return statistics.median(taken[False]), statistics.median(taken[True]), ratio


def milliseconds(work: Callable[[], Any], rounds: int = 30) -> str:
    work()
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - begin))
    return f"{statistics.median(taken):.1f}"


def main() -> None:
    for name, value in machine_facts().items():
        print(f"{name}: {value}")
    codes, n = without_taps()
    gc.disable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # cores that wait for each other are the larger part of the noise
    rows = []
    with torch.inference_mode():
        for name, work in works().items():
            rounds = ROUNDS if "124" not in name else 120
            tapped, cut, ratio = compared(work, codes, rounds)
            rows.append([name, f"{1000 * tapped:.3f}", f"{1000 * cut:.3f}", f"{ratio:.3f}"])
    gc.enable()
    torch.set_num_threads(threads)
    columns = ["nobody looks", "ms with taps", "ms without", "ratio"]
    print("\n" + Table("Taps that nobody listens to", columns, rows, notes=[f"{n} calls of taps were cut out"]).text())
    model = cutaway.load("en-fr")
    written = model.translate(SENTENCE)
    trace = model.trace(SENTENCE, written)
    weights = "decoder.blocks.0.cross_attention.weights"
    looks = [
        ["trace, given what it says", milliseconds(lambda: model.trace(SENTENCE, written))],
        ["trace, it writes first (5 beams)", milliseconds(lambda: model.trace(SENTENCE))],
        ["trace of all attention weights", milliseconds(lambda: model.trace(SENTENCE, written, keep="*.weights"))],
        ["explain one weight", milliseconds(lambda: trace.explain(weights, head=1, query=3, key=2))],
        ["explain one query", milliseconds(lambda: trace.explain("encoder.blocks.0.self_attention.queries", token=3))],
    ]
    print("\n" + Table(f"Looking: {SENTENCE}", ["what", "ms"], looks).text())


if __name__ == "__main__":
    main()
