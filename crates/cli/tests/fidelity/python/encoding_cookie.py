# -*- coding: latin-1 -*-
print("äö")
import sys; print(open(__file__, "rb").read()[:40])
1/0 # ä
