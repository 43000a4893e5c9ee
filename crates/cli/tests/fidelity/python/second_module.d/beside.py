import inspect

print("beside is imported as", __name__)


def stack():
    return [frame.function for frame in inspect.stack()]


def fail():
    raise LookupError("beside")
