"""Renders a chat template as transformers does: Jinja, in its immutable sandbox, with the functions that templates use.

Nothing here bounds time or memory, so `answer` runs in a bounded process, which chat.py calls.
"""

import functools
import json
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGEST = 500  # characters of an error

for _name in ("encodings.unicode_escape", "html", "jinja2.debug", "pprint", "textwrap"):
    import_module(_name)  # Jinja imports them on demand, when the process can open no files any more


def answer(request: dict[str, Any]) -> dict[str, str]:
    """{"text": …}, {"failed": …} for a template that can't run, {"refused": …} for an error that this chat raises."""
    try:
        compiled = _compiled(request["template"])
    except jinja2.TemplateSyntaxError as error:
        return {"failed": f"is broken in line {error.lineno}: {error.message}"[:_LONGEST]}
    except RecursionError:
        return {"failed": "is nested too deeply"}
    except (SyntaxError, ValueError, OverflowError, TypeError) as error:  # of Python, to which Jinja compiles
        return {"failed": f"can't be compiled: {error}"[:_LONGEST]}
    now = datetime.fromisoformat(request["now"])

    def strftime_now(format: str) -> str:  # noqa: A002  # as transformers names it
        return now.strftime(format)

    try:
        return {"text": compiled.render(request["values"], strftime_now=strftime_now)}
    except MemoryError:
        raise
    except RecursionError:
        return {"failed": "calls itself without end, or nests its values too deeply"}
    except Exception as error:  # any error of a filter
        return {"refused": str(error)[:_LONGEST]}


class _Generation(Extension):
    """{% generation %}…{% endgeneration %} marks the model's messages; here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  # jinja's name and type

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without names that begin with an underscore, which lead to Python's inside."""

    def __init__(*args: Any, **values: Any) -> None:  # so that a value may be called self
        for name in dict(*args[1:], **values):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Dictionary:
    """`dict` for templates, without the type behind it."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


@functools.lru_cache(maxsize=1)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    del environment.globals["lipsum"]  # random Latin, which no conversation needs
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "dict": _Dictionary(), "namespace": _Namespace}
    return environment.from_string(source)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't hold the name {name!r}")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja's own filter escapes for HTML, which is not what a model reads
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
