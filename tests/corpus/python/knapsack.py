def knapsack(items, capacity):
    best = [0] * (capacity + 1)
    for weight, value in items:
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


print(knapsack([(12, 4), (2, 2), (1, 1), (1, 2), (4, 10)], 15))
