from functools import lru_cache


@lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


print([fibonacci(n) for n in range(15)])
print(fibonacci(150))
print(fibonacci.cache_info())
