from functools import lru_cache, partial, reduce, singledispatch


@lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@singledispatch
def show(value):
    return f"value {value}"


@show.register
def _(value: list):
    return f"list of {len(value)}"


print(fibonacci(90), fibonacci.cache_info())
print(show(3), show([1, 2]), partial(int, base=2)("1011"))
print(reduce(lambda a, b: a * b, range(1, 11)))
