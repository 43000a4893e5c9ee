import random

random.seed(42)
print([random.randint(1, 6) for _ in range(10)])
print(random.choice(["red", "green", "blue"]), round(random.random(), 6))
deck = list(range(10))
random.shuffle(deck)
print(deck, random.sample(range(100), 5), random.choices("ab", weights=[9, 1], k=5))
print(round(random.gauss(0, 1), 6))
