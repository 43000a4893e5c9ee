import ast
import dis
import inspect
import sys
import typing


def sample(a: int, *, b: str = "x") -> typing.Optional[int]:
    """Does nothing."""
    return a if b else None


print(inspect.signature(sample), inspect.getdoc(sample))
print(inspect.getsource(sample).splitlines()[0])
print(ast.literal_eval("{'a': [1, 2.5, None]}"), eval("2 ** 10"))
print([node.__class__.__name__ for node in ast.walk(ast.parse("x = 1 + 2"))])
print(sum(1 for _ in dis.get_instructions(sample)) > 3, "json" in sys.modules)
