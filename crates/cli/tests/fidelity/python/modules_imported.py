# What an import brings, apart from what was there before.
import sys

before = set(sys.modules)
import colorsys
import wave
import plistlib

print("colorsys" in set(sys.modules) - before, "wave" in set(sys.modules) - before)
print(sys.modules["colorsys"].__spec__, colorsys.__loader__.__class__)
