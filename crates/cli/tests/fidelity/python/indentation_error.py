def f():
    a
      b
