# needs: numpy
import numpy as np

matrix = np.arange(12).reshape(3, 4)
print(matrix.T @ matrix)
print(matrix.mean(axis=0), matrix[matrix % 2 == 0], matrix.dtype)
rng = np.random.default_rng(3)
sample = rng.normal(size=1000)
print(sample.mean().round(6), np.percentile(sample, [5, 50, 95]).round(6))
print(np.linalg.solve([[3.0, 1], [1, 2]], [9, 8]), np.linalg.det(np.eye(3) * 2))
np.save("m.npy", matrix)
print(np.array_equal(np.load("m.npy"), matrix))
print(np.array([1, 0]) / 0)
