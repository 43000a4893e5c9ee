import sys


class Fails:
    def __del__(self):
        raise ValueError("in del")


class Imports:
    def __del__(self):
        import json

        print("imported", json.dumps(1))


class ImportsNew:
    def __del__(self):
        import colorsys

        print(colorsys)


class Opens:
    def __del__(self):
        print(open("main.py").readline())


class Globals:
    def __del__(self):
        print(sorted(name for name in globals() if not name.startswith("_")), sys)


class Threads:
    def __del__(self):
        import threading

        threading.Thread(target=print).start()


objects = [Fails(), Imports(), ImportsNew(), Opens(), Globals(), Threads()]
Fails()
print("the end")
EACH = None
