import pickle
from collections import namedtuple

Point = namedtuple("Point", "x y")
data = {"points": [Point(1, 2), Point(3, 4)], "set": {1}, "bytes": b"x"}
again = pickle.loads(pickle.dumps(data))
print(again == data, again["points"][0].x, type(again["points"][0]).__name__)
pickle.dumps(lambda: None)
