class Matrix:
    def __init__(self, rows):
        self.rows = [list(row) for row in rows]

    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        return Matrix([[sum(a * b for a, b in zip(row, column)) for column in columns]
                       for row in self.rows])

    def __eq__(self, other):
        return self.rows == other.rows

    def __str__(self):
        return "\n".join(" ".join(f"{value:4d}" for value in row) for row in self.rows)


m = Matrix([[1, 2], [3, 4]])
print(m @ m)
print(m @ Matrix([[1, 0], [0, 1]]) == m)
