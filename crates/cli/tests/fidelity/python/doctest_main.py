"""
>>> 1 + 1
2
>>> f()
4
"""
import doctest


def f():
    """
    >>> f()
    3
    """
    return 3


print(doctest.testmod())
