import _xxsubinterpreters as sub

made = sub.create()
sub.run_string(made, "import sys, os; print(__name__, sys.argv, 'json' in sys.modules, flush=True)")
sub.destroy(made)
print(sub.list_all())
