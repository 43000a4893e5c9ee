import sys

events = []
sys.addaudithook(lambda name, arguments: events.append(name))
open("main.py").close()
print(events)
events.clear()
import colorsys

print(events[:6])
