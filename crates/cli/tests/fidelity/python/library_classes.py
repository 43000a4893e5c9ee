# What a library has built by itself at its import is the same as if it were imported now.
import collections
import decimal
import enum
import functools
import json
import logging
import random
import re
import subprocess
import tempfile
import typing

print(logging._handlerList, logging.root.handlers, logging.Logger.manager.loggerDict)
print(subprocess._active, tempfile.tempdir, tempfile._name_sequence, subprocess._USE_VFORK)
print(functools.singledispatch, enum.Enum.__subclasses__() != [], typing.get_type_hints(print) == {})
print(decimal.getcontext().flags, random.getstate()[0], json.__all__)
print(collections.OrderedDict.__module__, SystemExit.code, SystemExit.__doc__)
