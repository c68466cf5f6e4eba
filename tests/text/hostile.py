"""Chat templates that are made to hang a machine, to fill its memory or to crash the process that renders them."""


def _doubled(first: str, more: str, use: str = "{{ ns.x | length }}") -> str:
    """A value that grows by itself 60 times."""
    return (
        f"{{% set ns = namespace(x={first}) %}}{{% for i in range(60) %}}{{% set ns.x = {more} %}}{{% endfor %}}{use}"
    )


def _nested(use: str, depth: int = 30) -> str:
    """Lists of the same two lists, 2^30 at the end, in little memory."""
    return _doubled("[1]", "[ns.x, ns.x]", use).replace("60", str(depth))


def _pair(use: str) -> str:
    """Two nested lists that are equal, and not the same."""
    grow = "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
    return f"{{% set ns = namespace(x=[1], y=[1]) %}}{{% for i in range(30) %}}{grow}{{% endfor %}}{use}"


def _loops(body: str) -> str:
    return f"{{% for i in range(99999) %}}{{% for j in range(99999) %}}{body}{{% endfor %}}{{% endfor %}}"


SAMPLE: dict[str, str] = {
    "loops": _loops(""),
    "nested lists, printed": _nested("{{ ns.x }}"),
    "nested lists, compared": _pair("{{ ns.x == ns.y }}"),
    "repetition of a text": "{{ 'a' * 10**9 }}",
    "doubling by ~": _doubled("'xx'", "ns.x ~ ns.x"),
    "% with a width": "{{ '%999999999d' % 1 }}",
    "% with a width as argument": "{{ '%*d' % (10**9, 1) }}",
    "format with a width": "{{ '{:>999999999}'.format(1) }}",
    "join of itself": _doubled("'ab'", "ns.x.join([ns.x, ns.x, ns.x])"),
    "replace": "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "bytes": "{{ ('a' * 10**8).encode('utf-16').hex() }}",
    "power": "{{ 10 ** (10**8) }}",
    "macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "brackets at parse time": "{{ " + "[" * 100_000,
    "parentheses at parse time": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "blocks at parse time": "{% if 1 %}" * 40_000 + "{% endif %}" * 40_000,
}
"""One of each kind."""

HOSTILE: dict[str, str] = SAMPLE | {
    "output without end": _loops("{{ 'x' * 1000 }}"),
    "output of five million characters": "{{ 'x' * 5_000_000 }}",
    "loops without else":
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}"
        "{% if j %}{% endif %}{% endfor %}{% endfor %}",
    "loops with a filter": "{% for i in range(99999) if range(99999) | sum < 0 %}{% endfor %}",
    "nested lists, in JSON": _nested("{{ ns.x | tojson }}"),
    "nested lists, in JSON, spaced": _nested("{{ ns.x | tojson(indent=4) }}"),
    "nested lists, as text": _nested("{{ ns.x | string | length }}"),
    "nested lists, pretty": _nested("{{ ns.x | pprint }}"),
    "nested lists, sorted": _pair("{{ [ns.x, ns.y, ns.x] | sort }}"),
    "nested lists, grouped": _pair("{{ [{'k': ns.x}, {'k': ns.y}] | groupby('k') }}"),
    "nested lists, unique": _pair("{{ [ns.x, ns.y] | map('string') | unique | list }}"),
    "nested lists, less": _pair("{{ ns.x < ns.y }}"),
    "nested lists, contained": _pair("{{ ns.x in [ns.y] }}"),
    "nested lists, counted": _pair("{{ [ns.y].count(ns.x) }}"),
    "nested lists, formatted": _nested("{{ '%s' % (ns.x,) }}"),
    "nested lists, joined": _nested("{{ ns.x | join(',') }}"),
    "nested lists, attributes": _nested("{{ {'a': ns.x} | xmlattr }}"),
    "nested lists, escaped": _nested("{{ ns.x | forceescape }}"),
    "nested lists 10,000 deep": _nested("{{ ns.x }}", 10_000),
    "nested lists 10,000 deep, in JSON": _nested("{{ ns.x | tojson }}", 10_000),
    "nested lists 99,999 deep, compared": _pair("{{ ns.x == ns.y }}").replace("30", "99999"),
    "nested objects": _doubled("{'a': 1}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x }}"),
    "nested tuples": _doubled("(1,)", "(ns.x, ns.x)", "{{ ns.x }}"),
    "nested tuples as a key": _doubled("(1,)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "lists doubled by +": _doubled("[1, 2]", "ns.x + ns.x"),
    "texts doubled by +": _doubled("'xx'", "ns.x + ns.x"),
    "texts doubled by %": _doubled("'xx'", "'%s%s' % (ns.x, ns.x)"),
    "texts doubled by the filter format": _doubled("'xx'", "'%s%s' | format(ns.x, ns.x)"),
    "texts doubled by format": _doubled("'xx'", "'{0}{0}'.format(ns.x)"),
    "texts doubled by join": _doubled("'xx'", "[ns.x, ns.x] | join"),
    "texts doubled by replace": _doubled("'xx'", "ns.x | replace('x', 'xx')"),
    "texts doubled by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + _doubled("'xx'", "f(ns.x)"),
    "texts doubled by set": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}"
    "{% endset %}{% set ns.x = y %}{% endfor %}",
    "texts doubled by JSON": _doubled("'\"'", "ns.x | tojson"),
    "texts doubled by escape": _doubled("'&'", "(ns.x ~ ns.x) | forceescape"),
    "integers doubled": _doubled("3", "ns.x * ns.x", "{{ ns.x % 2 }}"),
    "a huge integer, printed": "{{ 2 ** (10**6) }}",
    "a huge integer, shifted by power": "{{ ((2 ** (10**7)) * (3 ** (10**7))) | string | length }}",
    "a huge power, modulo": "{{ 7 ** (10**8) % 3 }}",
    "an integer of a huge text": "{{ ('9' * 10**7) | int(base=10) + ('9' * 10**9) | int }}",
    "an integer in base 32": "{{ (('v' * 10**7) | int(base=32)) * (('v' * 10**7) | int(base=32)) ** 9 }}",
    "a float of a huge text": "{{ ('9' * 10**9) | float }}",
    "repetition of a list": "{{ ([0] * 10**9) | length }}",
    "repetition of a tuple": "{{ ((0,) * 10**9) | length }}",
    "repetition of a repetition": "{{ ([[0] * 10**4] * 10**4) | string | length }}",
    "range beyond the limit": "{{ range(10**9) | list }}",
    "lists of ranges":
        "{% set ns = namespace(x=[]) %}"
        "{% for i in range(99999) %}{% set ns.x = [ns.x, range(99999) | list] %}{% endfor %}",
    "format with a precision": "{{ '{:.999999999f}'.format(1.5) }}",
    "format with a nested width": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format_map with a width": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "the filter format with a width": "{{ '%999999999d' | format(1) }}",
    "% with a precision": "{{ '%.999999999f' % 1.5 }}",
    "% with a precision as argument": "{{ '%.*f' % (10**9, 1.5) }}",
    "% with a name and a width": "{{ '%(a)999999999d' % {'a': 1} }}",
    "center": "{{ 'x' | center(10**9) }}",
    "center, rjust and zfill": "{{ 'x'.center(10**8) ~ 'x'.rjust(10**9) ~ 'x'.zfill(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "indent": "{{ ('a\\n' * 10**5) | indent(10**5) }}",
    "indent by a text": "{{ ('a\\n' * 10**5) | indent('x' * 10**5) }}",
    "wordwrap": "{{ ('a ' * 10**7) | wordwrap(1, wrapstring='x' * 1000) }}",
    "batch": "{{ [1] | batch(10**9, 0) | list | length }}",
    "slice": "{{ [1] | slice(10**9, 0) | list | length }}",
    "translate": "{{ ('a' * 10**5).translate({97: 'b' * 10**5}) }}",
    "bytes repeated": "{{ 'a'.encode() * 10**10 }}",
    "bytes joined": "{{ ('x' * 10**5).encode().join(('y ' * 10**5).encode().split()) }}",
    "bytes of an integer": "{{ (1).to_bytes(10**10, 'big') }}",
    "truncate": "{{ ('a ' * 10**9) | truncate(10**9) }}",
    "split": "{{ ('a ' * 10**8).split() | length }}",
    "partition and find": _loops("{{ ('a' * 10**6 ~ 'b').find('a' * 10**5 ~ 'c') and '' }}"),
    "urlize": "{{ ('(' * 10**5 ~ 'www.a.com' ~ ')' * 10**5) | urlize }}" * 10_000,
    "striptags": _loops("{{ ('<!-- <a> -->' * 10**5) | striptags | length and '' }}"),
    "xmlattr": "{% set ns = namespace(x={}) %}" + _loops("{% set ns.x = dict(ns.x, **{'a' ~ i ~ j: 'b' * 10**4}) %}"),
    "title and capitalize": _loops("{{ ('a ' * 10**6) | title | capitalize and '' }}"),
    "casefold of ß": "{{ ('ß' * 2 * 10**8).casefold() | length }}",
    "upper of ligatures": "{{ ('ﬃ' * 10**8) | upper | length }}",
    "sort of texts": _loops("{{ range(99999) | map('string') | sort | length and '' }}"),
    "groupby": _loops("{{ range(99999) | groupby('real') | length and '' }}"),
    "sums of lists": "{{ ([[1] * 10**4] * 10**4) | sum(start=[]) | length }}",
    "unique": _loops("{{ range(99999) | unique | list | length and '' }}"),
    "map of map": "{{ (range(99999) | map('center', 99999) | list) | length }}",
    "select and reject": _loops("{{ range(99999) | select('odd') | reject('even') | list | length and '' }}"),
    "cycler": "{% set c = cycler(*([1] * 10**9)) %}{{ c.next() }}",
    "joiner": "{% set j = joiner('x' * 10**8) %}{{ j() }}{% for i in range(99999) %}{{ j() }}{% endfor %}",
    "dict": "{{ dict.fromkeys(range(99999), 'x' * 10**5) | string | length }}",
    "dicts of dicts":
        "{% set ns = namespace(x={}) %}"
        "{% for i in range(99999) %}{% set ns.x = dict(a=ns.x) %}{% endfor %}{{ ns.x }}",
    "attribute chains": "{{ messages" + ".a" * 100_000 + " }}",
    "filter chains": "{{ 'a'" + " | upper" * 100_000 + " }}",
    "minus signs at parse time": "{{ " + "-" * 100_000 + "1 }}",
    "not at parse time": "{{ " + "not " * 100_000 + "1 }}",
    "conditions at parse time": "{{ " + "1 if 1 else " * 80_000 + "1 }}",
    "sums at parse time": "{{ " + "1 + " * 100_000 + "1 }}",
    "concatenation at parse time": "{{ " + "x ~ " * 50_000 + "x }}" + _loops(""),
    "powers at parse time": "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}",
    "constants folded at parse time": "{{ ('a' * 10**8) ~ ('b' * 10**9) }}",
    "loops at parse time": "{% for i in [1] %}" * 1000 + "{% endfor %}" * 1000,
    "macros in macros at parse time": "{% macro f() %}" * 10_000 + "{% endmacro %}" * 10_000,
    "dictionaries at parse time": "{{ " + "{1: " * 100_000,
    "calls at parse time": "{{ " + "f(" * 100_000,
    "a number of 10^6 digits": "{{ " + "9" * 900_000 + " }}",
    "a template of two million characters": "a" * 2_000_000,
    "a comment that never ends": "{#" * 100_000,
    "raw that never ends": "{% raw %}" * 100_000,
    "macros that call each other":
        "{% macro f(n) %}{{ g(n) }}{{ g(n) }}{% endmacro %}"
        "{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a macro 2^60 times": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a caller that calls":
        "{% macro f() %}{{ caller() }}{% endmacro %}"
        "{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
    "a loop that calls itself": "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
    "a loop over a growing text": _doubled("'xx'", "ns.x ~ ns.x", "").replace("60", "24")
    + _loops("{% for c in ns.x %}{% endfor %}"),
    "blocks that include themselves": "{% block a %}{{ self.a() }}{% endblock %}",
    "templates of other files": "{% include '/etc/passwd' %}{% import 'os' as os %}",
    "strftime": "{{ strftime_now('%999999999d' * 1000) | length }}{{ strftime_now('%A' * 10**8) }}",
    "lipsum": "{{ lipsum(n=10**6, max=10**6) }}",
    "debugging": "{% debug %}",
    "Python's inside": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "Python's inside by attr": "{{ ('' | attr('__class__')).__mro__ }}",
    "Python's inside by format": "{{ '{0.__class__.__mro__}'.format('') }}" + _loops(""),
    "Python's inside by namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "Python's inside by a macro": "{% macro f() %}{% endmacro %}{{ f.__globals__.sys }}",
    "a refusal of 10^8 characters": "{{ raise_exception('x' * 10**8) }}",
    "a refusal with line breaks": "{{ raise_exception('x\\n' * 1000) }}",
    "random": _loops("{{ range(99999) | random and '' }}"),
}  # fmt: skip
