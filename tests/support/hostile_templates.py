"""Chat templates that are made to hang a machine, to fill its memory or to crash the process that renders them."""


def doubled(first: str, more: str, use: str = "{{ ns.x | length }}") -> str:
    """A value that grows by itself 60 times."""
    return (
        f"{{% set ns = namespace(x={first}) %}}{{% for i in range(60) %}}{{% set ns.x = {more} %}}{{% endfor %}}{use}"
    )


def nested(use: str, depth: int = 30) -> str:
    """Lists of the same two lists, 2^30 at the end, in little memory."""
    return doubled("[1]", "[ns.x, ns.x]", use).replace("60", str(depth))


def pair(use: str) -> str:
    """Two nested lists that are equal, and not the same."""
    grow = "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
    return f"{{% set ns = namespace(x=[1], y=[1]) %}}{{% for i in range(30) %}}{grow}{{% endfor %}}{use}"


def loops(body: str) -> str:
    return f"{{% for i in range(99999) %}}{{% for j in range(99999) %}}{body}{{% endfor %}}{{% endfor %}}"


SAMPLE: dict[str, str] = {
    "loops": loops(""),
    "nested lists, printed": nested("{{ ns.x }}"),
    "nested lists, compared": pair("{{ ns.x == ns.y }}"),
    "repetition of a text": "{{ 'a' * 10**9 }}",
    "doubling by ~": doubled("'xx'", "ns.x ~ ns.x"),
    "% with a width": "{{ '%999999999d' % 1 }}",
    "% with a width as argument": "{{ '%*d' % (10**9, 1) }}",
    "format with a width": "{{ '{:>999999999}'.format(1) }}",
    "join of itself": doubled("'ab'", "ns.x.join([ns.x, ns.x, ns.x])"),
    "replace": "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "bytes": "{{ ('a' * 10**8).encode('utf-16').hex() }}",
    "power": "{{ 10 ** (10**8) }}",
    "macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "brackets at parse time": "{{ " + "[" * 100_000,
    "parentheses at parse time": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "blocks at parse time": "{% if 1 %}" * 40_000 + "{% endif %}" * 40_000,
}
"""One of each kind; the proof has more of them (proof/hostile_templates.py)."""
