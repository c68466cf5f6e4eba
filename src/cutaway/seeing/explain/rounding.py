"""How far the network's number may be from the recomputed one, because the network rounds.

It computes in float32 (or less), we in float64 from the very same inputs; so the two differ by the network's own
rounding and by nothing else. Each operation rounds its result by at most u = ε/2 of it (2⁻²⁴ in float32), and passes
on, times its slope, what its arguments were off by. That is added up along the tree, to first order, in units of u.
"""

import math

from cutaway.seeing.explain.expression import (
    Call,
    Dot,
    Expression,
    Function,
    Mean,
    MeanSquare,
    Number,
    Product,
    Quotient,
    Softmax,
    Sum,
    Variance,
    call,
    dot,
    evaluate,
)

OF_FUNCTIONS = 4.0  # units in which exp, tanh and the like may be off: libraries promise two, and round their argument
SMALLEST = 2.0**-126  # of float32: fast kernels make a number below it 0


def roundings(n: int) -> float:
    """By how many u the sum of n products may be off, relative to Σ |aᵢ bᵢ|, in whatever order it is added up.

    n at worst. The errors of a long sum have either sign: under 8 √n, but for one in 10¹³ (Higham & Mary 2019).
    """
    return min(n, 8.0 * math.sqrt(n)) + 1.0


def off(e: Expression, result: float | None = None) -> float:
    """In units of u; `result` is what e comes to, if that is known."""
    match e:
        case Number(value=value, of=of, off=given):
            if given is not None:
                return given
            return 0.0 if of is not None else abs(value)
        case Sum(terms=terms):
            return sum(map(off, terms)) + len(terms) * sum(abs(evaluate(term)) for term in terms)
        case Product(factors=factors):
            value, error = 1.0, 0.0
            for factor in factors:
                x = evaluate(factor)
                value, error = value * x, abs(x) * error + abs(value) * off(factor) + abs(value * x)
            return error
        case Quotient(over=over, under=under):
            a, b = abs(evaluate(over)), abs(evaluate(under))
            return (off(over) + a * off(under) / b + 2.0 * a) / b if b else math.inf
        case Dot(a=x, b=y):
            error = roundings(len(x.values)) * sum([abs(a * b) for a, b in zip(x.values, y.values, strict=True)])
            return error + dot(x.offs, map(abs, y.values)) + dot(y.offs, map(abs, x.values))
        case Softmax(scores=scores, place=place):
            # s - max is rounded before e^ makes of it a relative error; the terms of the sum likewise, d e^-d < 0.4.
            distance = max(scores.values) - scores.values[place]
            n = len(scores.values)
            relative = roundings(n) + 0.4 * n + 4.0 * OF_FUNCTIONS + distance
            if not math.isfinite(distance):
                return 0.0
            return relative * (evaluate(e) if result is None else result)
        case Mean(x=x):
            n = len(x.values)
            return (roundings(n) + 1.0) * sum(map(abs, x.values)) / n + sum(x.offs) / n
        case MeanSquare(x=x):
            n = len(x.values)
            return (roundings(n) + 2.0) * evaluate(e) + 2.0 * dot(x.offs, map(abs, x.values)) / n
        case Variance(x=x, mean=mean):
            n, centre = len(x.values), evaluate(mean)
            away = [abs(value - centre) for value in x.values]
            return (roundings(n) + 4.0) * evaluate(e) + 2.0 * (dot(x.offs, away) + off(mean) * sum(away)) / n
        case Call(function=function, x=argument):
            return through(function, evaluate(argument), off(argument))


def through(function: Function, x: float, error: float) -> float:
    """How far function(x) is off if x is off by `error`."""
    y = abs(call(function, x))
    match function:
        case "relu":
            return error
        case "exp":
            return y * (error + abs(x) + OF_FUNCTIONS)
        case "sqrt":
            return (error / (2.0 * y) if y else 0.0) + OF_FUNCTIONS * y
        case "gelu" | "gelu_tanh":  # x (1 + erf) / 2: where erf is near -1, what is left is off by a part of x
            return 1.2 * error + 2.0 * OF_FUNCTIONS * abs(x)
        case "silu":
            return 1.2 * error + 2.0 * OF_FUNCTIONS * y
        case "tanh":
            return (1.0 - y * y) * error + OF_FUNCTIONS * y
        case "sigmoid":
            return y * (1.0 - y) * error + OF_FUNCTIONS * y
        case "sin" | "cos":
            return error + OF_FUNCTIONS * y
