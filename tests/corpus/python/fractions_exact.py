from fractions import Fraction

total = sum(Fraction(1, n) for n in range(1, 11))
print(total, float(total), total.limit_denominator(100))
print(Fraction("0.125"), Fraction(3, 4) ** 2, Fraction(1, 0))
