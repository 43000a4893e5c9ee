def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def knapsack(items, capacity):
    best = [0] * (capacity + 1)
    for weight, value in items:
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


print(edit_distance("kitten", "sitting"), knapsack([(3, 4), (4, 5), (2, 3)], 6))
board = [[0] * 8 for _ in range(8)]


def queens(row=0, columns=(), left=(), right=()):
    if row == 8:
        return 1
    return sum(queens(row + 1, (*columns, c), (*left, row + c), (*right, row - c))
               for c in range(8) if c not in columns and row + c not in left
               and row - c not in right)


print(queens())
