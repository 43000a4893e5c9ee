import random

generator = random.Random(7)
inside = sum(generator.random() ** 2 + generator.random() ** 2 <= 1 for _ in range(3000))
print(4 * inside / 3000)
