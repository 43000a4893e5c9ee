from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, getcontext
from fractions import Fraction

getcontext().prec = 30
price, rate = Decimal("19.99"), Decimal("0.0825")
for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN):
    print((price * rate).quantize(Decimal("0.01"), rounding=rounding))
print(Decimal(2).sqrt())
print(sum([Decimal("0.1")] * 10) == 1, sum([0.1] * 10) == 1)
print(Fraction(1, 3) + Fraction(1, 6), Fraction("0.125"))
