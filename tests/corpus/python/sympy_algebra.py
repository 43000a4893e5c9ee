# needs: sympy
from sympy import Eq, Rational, diff, expand, factor, integrate, limit, sin, solve, symbols

x, y = symbols("x y")
print(expand((x + y) ** 3), factor(x**2 - 5 * x + 6))
print(diff(sin(x) * x**2, x), integrate(x**2 * sin(x), x))
print(solve(Eq(x**2, 2), x), solve([x + y - 3, x - y - 1], [x, y]))
print(limit(sin(x) / x, x, 0), Rational(1, 3) + Rational(1, 6))
