import functools


def retry(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for attempt in range(1, times + 1):
                try:
                    return function(*args, **kwargs)
                except ConnectionError as error:
                    print(f"attempt {attempt}: {error}")
            raise RuntimeError(f"{function.__name__} failed {times} times")
        return wrapper
    return decorate


@retry(2)
def unstable(value):
    raise ConnectionError(f"no {value}")


unstable("server")
