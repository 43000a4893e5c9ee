# differs: objects kept by a library
import logging

open("one.py", "w").write("""
class Loud:
    def __init__(self, name): self.name = name
    def __del__(self): print("gone", self.name, __name__)
a = Loud("one.a")
""")
import one

logging.kept = one.Loud("on logging")
logging.addLevelName(33, one.Loud("a level"))
