import abc
import weakref


class Base(abc.ABC):
    pass


class Thing:
    pass


print(isinstance(Thing(), Base))
thing = Thing()
reference = weakref.ref(thing, lambda reference: print("gone"))
other = Thing()
builtin = weakref.ref(other, [].append)
