"""Runs in: a template, and the guest of a cell until its program starts and when it ends.

The runtime makes a CPython interpreter wait for its job at the last moment of its own start-up.
The interpreter then goes on as `python3 main.py` does: same `__main__`, same tracebacks, same exit.
The program must not see the runtime: names, modules, paths and variables are removed.

- `start`: decides how the interpreter waits, and removes the traces of the runtime.
- `job`: reads the job and applies it.
- `template`: forks one interpreter for each cell.
- `preload`: keeps modules that were imported ahead, until a program imports them.
- `warm_pages`: finds the memory pages that every program needs, and those of usual programs.
- `usual_programs`: the programs with which they are found.
- `exit`: ends a forked interpreter without a full finalisation.
- `quiet_ends`: knows which objects and modules end without a trace.
- `protocol`: constants, written by build.rs from `crates/jail/src/protocol/constants.rs`.

Only modules that every CPython has at this moment may be imported at the top of these files.
"""

# The program may replace builtins, and parts of the runtime run after it. So each module of the
# runtime binds `__builtins__` to this copy, and its functions look builtins up here.
own_builtins = dict(vars(__import__("builtins")))
