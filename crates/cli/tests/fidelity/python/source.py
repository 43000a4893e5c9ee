import inspect
import linecache
import traceback


def shown(a, b=2):
    """Its own source can be read."""
    return a + b


class Shown:
    def method(self):
        return inspect.stack()


print(inspect.getsource(shown), inspect.getsource(Shown), inspect.getsourcefile(shown))
print(inspect.getfile(Shown), inspect.getmodule(shown).__name__, shown.__module__, shown.__qualname__)
print([(f.filename, f.lineno, f.function, f.code_context) for f in Shown().method()])
print(len(inspect.stack()), inspect.currentframe().f_back, inspect.currentframe().f_code)
traceback.print_stack()
print(linecache.getline(__file__, 1), shown.__code__.co_filename, inspect.signature(shown))
print(inspect.currentframe().f_globals is globals(), inspect.currentframe().f_builtins is vars(__builtins__))
