import random

random.seed(7)


def roll():
    return random.randint(1, 6) + random.randint(1, 6)


rolls = [roll() for _ in range(20000)]
for total in range(2, 13):
    print(f"{total:2} {'#' * (rolls.count(total) // 100)}")
inside = sum(random.random() ** 2 + random.random() ** 2 <= 1 for _ in range(50000))
print(round(4 * inside / 50000, 2))
