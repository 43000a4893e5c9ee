def solve(size, row=0, columns=(), first=(), second=()):
    if row == size:
        yield columns
        return
    for column in range(size):
        if column not in columns and row + column not in first and row - column not in second:
            yield from solve(size, row + 1, columns + (column,), first + (row + column,),
                             second + (row - column,))


solutions = list(solve(6))
print(len(solutions))
for column in solutions[0]:
    print("." * column + "Q" + "." * (5 - column))
