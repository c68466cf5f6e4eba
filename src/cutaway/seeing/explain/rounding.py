"""The rounding error of the network: the largest distance of its number from the recomputed one.

It computes in float32 (or less), we in float64 from the very same inputs; so the two differ by the network's own
rounding and by nothing else. Each operation rounds its result by at most u = ε/2 of it (2⁻²⁴ in float32), and passes
on, times its slope, the errors of its arguments. They are added up along the tree, to first order, in units of u.
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

FUNCTION_ERROR = 4.0  # of exp, tanh and the like, in units of u: libraries promise two, and round their argument
SMALLEST = 2.0**-126  # of float32: fast kernels make a number below it 0


def roundings(n: int) -> float:
    """The error of a sum of n products in u, relative to Σ |aᵢ bᵢ|, in whatever order it is added up.

    n at worst. The errors of a long sum have either sign: under 8 √n, but for one in 10¹³ (Higham & Mary 2019).
    """
    return min(n, 8.0 * math.sqrt(n)) + 1.0


def error_of(e: Expression, result: float | None = None) -> float:
    """The error of an expression in units of u; `result`: its value, if that is known."""
    match e:
        case Number(value=value, of=of, error=given):
            if given is not None:
                return given
            return 0.0 if of is not None else abs(value)
        case Sum(terms=terms):
            return sum(map(error_of, terms)) + len(terms) * sum(abs(evaluate(term)) for term in terms)
        case Product(factors=factors):
            value, error = 1.0, 0.0
            for factor in factors:
                x = evaluate(factor)
                value, error = value * x, abs(x) * error + abs(value) * error_of(factor) + abs(value * x)
            return error
        case Quotient(over=over, under=under):
            a, b = abs(evaluate(over)), abs(evaluate(under))
            return (error_of(over) + a * error_of(under) / b + 2.0 * a) / b if b else math.inf
        case Dot(a=x, b=y):
            error = roundings(len(x.values)) * sum([abs(a * b) for a, b in zip(x.values, y.values, strict=True)])
            return error + dot(x.errors, map(abs, y.values)) + dot(y.errors, map(abs, x.values))
        case Softmax(scores=scores, place=place):
            # s - max is rounded before e^ makes of it a relative error; the terms of the sum likewise, d e^-d < 0.4.
            distance = max(scores.values) - scores.values[place]
            n = len(scores.values)
            relative = roundings(n) + 0.4 * n + 4.0 * FUNCTION_ERROR + distance
            if not math.isfinite(distance):
                return 0.0
            return relative * (evaluate(e) if result is None else result)
        case Mean(x=x):
            n = len(x.values)
            return (roundings(n) + 1.0) * sum(map(abs, x.values)) / n + sum(x.errors) / n
        case MeanSquare(x=x):
            n = len(x.values)
            return (roundings(n) + 2.0) * evaluate(e) + 2.0 * dot(x.errors, map(abs, x.values)) / n
        case Variance(x=x, mean=mean):
            n, centre = len(x.values), evaluate(mean)
            away = [abs(value - centre) for value in x.values]
            return (roundings(n) + 4.0) * evaluate(e) + 2.0 * (dot(x.errors, away) + error_of(mean) * sum(away)) / n
        case Call(function=function, x=argument):
            return through(function, evaluate(argument), error_of(argument))


def through(function: Function, x: float, error: float) -> float:
    """The error of function(x) for an x with this error."""
    y = abs(call(function, x))
    match function:
        case "relu":
            return error
        case "exp":
            return y * (error + abs(x) + FUNCTION_ERROR)
        case "sqrt":
            return (error / (2.0 * y) if y else 0.0) + FUNCTION_ERROR * y
        case "gelu" | "gelu_tanh":  # x (1 + erf) / 2: where erf is near -1, the error of the difference is a part of x
            return 1.2 * error + 2.0 * FUNCTION_ERROR * abs(x)
        case "silu":
            return 1.2 * error + 2.0 * FUNCTION_ERROR * y
        case "tanh":
            return (1.0 - y * y) * error + FUNCTION_ERROR * y
        case "sigmoid":
            return y * (1.0 - y) * error + FUNCTION_ERROR * y
        case "sin" | "cos":
            return error + FUNCTION_ERROR * y
