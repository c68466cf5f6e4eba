"""Chat templates: a conversation written as the one text its model was taught.

Templates come with models, from anybody. They run in jinja2's sandbox as transformers runs them, and besides with
bounds on the time, on what they write, and on the texts they build with operators. These stop mistakes and plain loops;
a template made to waste time inside a single filter can still do so. It can't reach files, the network or Python.
"""

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any

from cutaway.errors import CheckpointError, InputError

SECONDS = 5.0
CHARACTERS = 4_000_000
_FILE = "<chat template>"
_REASONING = ("reasoning_content", "thinking", "reasoning")


class _TooMuchError(Exception):
    pass


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """The text of a conversation; `messages` are {"role": ..., "content": ...}, `tokens` e.g. {"bos_token": "<s>"}."""
    import jinja2

    if isinstance(messages, Mapping | str) or not messages:
        raise InputError("a chat is a list of at least one message, each with a role and a content")
    plain = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(
                f"message {number} of the chat is {message!r}; expected an object with a role and a content"
            )
        plain.append(_with_reasoning(_plain(message)))
    try:
        compiled = _compiled(template)
        values = {"messages": plain, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        return _bounded(lambda: compiled.generate(values | dict(tokens)))
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template is broken in line {error.lineno}: {error.message}") from None
    except _TooMuchError as error:
        raise CheckpointError(f"the chat template {error}") from None
    except MemoryError:
        raise CheckpointError("the chat template builds a text that no memory holds") from None
    except Exception as error:  # whatever its filters make of these messages
        raise InputError(f"the chat template refuses this chat: {error}") from None


def _bounded(generate: Callable[[], Any]) -> str:
    """Its output, or an error after SECONDS or CHARACTERS: the clock is looked at on every line of the template."""
    deadline = time.monotonic() + SECONDS
    before = sys.gettrace()

    def look(frame: FrameType, _: str, __: object) -> Any:
        if frame.f_code.co_filename != _FILE:
            return None
        if time.monotonic() > deadline:
            raise _TooMuchError(f"takes longer than {SECONDS:g} seconds")
        return look

    parts: list[str] = []
    size = 0
    sys.settrace(look)
    try:
        for part in generate():
            parts.append(part)
            size += len(part)
            if size > CHARACTERS:
                raise _TooMuchError(f"writes more than {CHARACTERS} characters")
    finally:
        sys.settrace(before)
    return "".join(parts)


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    import jinja2
    from jinja2 import nodes, visitor
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %}…{% endgeneration %} marks what the model says; here it only passes it on."""

        tags = {"generation"}  # noqa: RUF012  # jinja's name and type

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

        def _pass(self, caller: Callable[[], str]) -> str:
            return caller()

    class Joined(visitor.NodeTransformer):
        """a ~ b through a filter that looks at the length."""

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802  # jinja's name
            self.generic_visit(node)
            return nodes.Filter(nodes.List(node.nodes), "_joined", [], [], None, None).set_lineno(node.lineno)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def _parse(self, *args: Any) -> Any:
            return Joined().visit(super()._parse(*args))

        def _compile(self, source: Any, filename: str) -> Any:
            return super()._compile(source, _FILE)

        def call(self, context: Any, function: Any, *args: Any, **values: Any) -> Any:
            _check_arguments(*args, *values.values())
            return super().call(context, function, *args, **values)

        def wrap_str_format(self, value: Any) -> Any:
            wrapped = super().wrap_str_format(value)
            return None if wrapped is None else _watched(wrapped, value.__self__)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_size(operator, left, right)
            return super().call_binop(context, operator, left, right)

    class Namespace(jinja2.utils.Namespace):
        """Without names that begin with an underscore: they lead to Python's inside."""

        def __init__(*args: Any, **values: Any) -> None:  # so that a value may be called self
            for name in dict(*args[1:], **values):
                _check_name(name)
            jinja2.utils.Namespace.__init__(*args, **values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters = {name: _watched(function) for name, function in environment.filters.items()}
    environment.filters |= {"tojson": _to_json, "_joined": _joined}
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _now,
        "dict": _Dictionary(),
        "namespace": Namespace,
    }
    return environment.from_string(source)


def _check_name(name: Any) -> None:
    from jinja2.exceptions import SecurityError

    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't hold the name {name!r}")


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Refuses what would build a giant out of a short line."""
    sizes = [len(value) if isinstance(value, str | list | tuple) else None for value in (left, right)]
    if operator == "+":
        size = sum(size or 0 for size in sizes)
    elif operator == "*" and (sizes[0] is None) != (sizes[1] is None):
        count = right if sizes[1] is None else left
        size = max(size or 0 for size in sizes) * (count if isinstance(count, int) else 0)
    elif operator == "%" and isinstance(left, str):
        size = max((int(width) for width in re.findall(r"\d{1,18}", left)), default=0)
    elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        size = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
    else:
        size = 0
    if size > CHARACTERS:
        raise _TooMuchError(f"builds a value of more than {CHARACTERS} characters")


def _check_arguments(*args: Any, pattern: str = "") -> None:
    """No width or count beyond what may be written: "x".center(10**9), "{:>999999999}".format(1)."""
    widths = [int(width) for width in re.findall(r"\d{1,18}", pattern)]
    if any(type(value) is int and value > CHARACTERS for value in (*args, *widths)):
        raise _TooMuchError(f"asks for more than {CHARACTERS} characters")


def _watched(function: Callable[..., Any], pattern: str = "") -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **values: Any) -> Any:
        _check_arguments(*args, *values.values(), pattern=pattern)
        return function(*args, **values)

    return watched


def _joined(values: list[Any]) -> str:
    texts = [str(value) for value in values]
    if sum(map(len, texts)) > CHARACTERS:
        raise _TooMuchError(f"builds a text of more than {CHARACTERS} characters")
    return "".join(texts)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja's own filter escapes for HTML, which is not what a model reads
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _Dictionary:
    """`dict` for templates, without the type behind it."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _plain(value: Any) -> Any:
    """Only JSON's types reach a template: other objects have methods that the sandbox knows nothing of."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value] if isinstance(value, list) else tuple(map(_plain, value))
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """What the model thought goes by several names; templates read the first or the second."""
    thought = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}
