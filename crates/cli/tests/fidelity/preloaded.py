# Libraries that were imported in the template, used as if they were imported now.
import sys

before = "numpy" in sys.modules, "pandas" in sys.modules
import asyncio
import multiprocessing
import ssl
import urllib.request

import numpy
import pandas

print(before, numpy.__file__, pandas.__spec__)
print(numpy.random.seed(1), numpy.random.random(3), (numpy.ones((600, 600)) @ numpy.ones((600, 600))).sum())
print(numpy.linalg.svd(numpy.eye(200))[1].sum(), numpy.fft.fft(numpy.ones(8))[0])
frame = pandas.DataFrame({"a": [1, 2, 3], "b": list("xyx")})
print(frame.groupby("b").sum(), frame.describe())
print(pandas.read_csv(__import__("io").StringIO("a,b\n1,2\n")))
print(ssl.create_default_context().verify_mode, asyncio.run(asyncio.sleep(0, 5)))
print(urllib.request.__spec__, urllib.request._opener)
print(sorted(name for name in sys.modules if name.startswith(("asyncio", "email", "http", "urllib"))))
try:
    urllib.request.urlopen("http://127.0.0.1:9/")
except OSError as error:
    print(type(error), error)


def square(x):
    return x * x


with multiprocessing.Pool(2) as pool:
    print(pool.map(square, [1, 2, 3]))
frame["missing"]
