import cmath
import math

print(math.factorial(20), math.gcd(84, 36), math.lcm(4, 6), math.comb(10, 3))
print(round(math.pi, 6), math.isclose(0.1 + 0.2, 0.3), math.hypot(3, 4))
print(cmath.sqrt(-4), abs(3 + 4j), math.prod(range(1, 6)))
a, b, c = 1, -3, 2
d = b * b - 4 * a * c
print(sorted([(-b + math.sqrt(d)) / (2 * a), (-b - math.sqrt(d)) / (2 * a)]))
print(math.sqrt(-1))
