# each: cause()
# each: context()
# each: suppressed()
# each: group()
# each: notes()
# each: deep()
# each: assert 1 == 2, "message"
# each: import broken
# each: import missing_module
# each: eval("1 +")
# each: compile("a\nb c", "given.py", "exec")
# each: exec("def f():\n  1/0\nf()")
# each: open("missing")
# each: {}["key"]
# each: [].spam
# each: json.loads("{")
# each: Odd()
# each: raise Unprintable
# each: warnings.warn("careful"); warnings.warn("old", DeprecationWarning); 1 / 0
# each: recursion()
# each: next(iter([]))
# each: int("x" * 5000)
# each: raise ValueError("täxt \udce4 \x00")
# each: threading.Thread(target=cause).start()
# each: (1).real.imaginary + undefined_name
import json
import threading
import warnings

open("broken.py", "w").write("x = 1\ndef f(:\n    pass\n")


def fails(text="inner"):
    raise ValueError(text)


def cause():
    try:
        fails()
    except ValueError as error:
        raise RuntimeError("outer") from error


def context():
    try:
        fails()
    except ValueError:
        undefined


def suppressed():
    try:
        fails()
    except ValueError:
        raise KeyError("only this") from None


def group():
    errors = []
    for text in ("a", "b"):
        try:
            fails(text)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("several", [*errors, ExceptionGroup("inner", [TypeError(1)])])


def notes():
    error = ValueError("noted")
    error.add_note("a note\non two lines")
    raise error


def deep(n=30):
    return deep(n - 1) if n else fails()


def recursion():
    return recursion()


class Odd:
    def __init__(self):
        self.value = (lambda: 1 / 0)()


class Unprintable(Exception):
    def __str__(self):
        raise ValueError


EACH
