import atexit

atexit.register(print, "never")
atexit._clear()
class A:
    def __del__(self):
        print("deleted")
a = A()
