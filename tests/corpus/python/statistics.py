import math
import random
import statistics

random.seed(42)
sample = [round(random.gauss(100, 15), 3) for _ in range(200)]
print(statistics.mean(sample), statistics.median(sample), round(statistics.stdev(sample), 9))
print(statistics.quantiles(sample, n=4))
print(random.sample(range(100), 5), random.choice("abc"), random.random())
print(math.comb(10, 3), math.isclose(math.pi, 3.14159265, rel_tol=1e-8), math.gcd(84, 36))
