from bisect import bisect_left


def bubble_sort(values):
    values = list(values)
    for end in range(len(values) - 1, 0, -1):
        for at in range(end):
            if values[at] > values[at + 1]:
                values[at], values[at + 1] = values[at + 1], values[at]
    return values


ordered = bubble_sort([64, 34, 25, 12, 22, 11, 90])
print(ordered, bisect_left(ordered, 25), ordered[bisect_left(ordered, 90)])
