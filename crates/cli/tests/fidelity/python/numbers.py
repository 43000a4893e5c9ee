import numpy
import pandas

print(numpy.arange(6).reshape(2, 3).sum(axis=0), numpy.linalg.det(numpy.eye(3)))
frame = pandas.DataFrame({"a": [1, 2, 3], "b": list("xyx")})
print(frame.groupby("b").sum(), frame.describe())
frame["missing"]
