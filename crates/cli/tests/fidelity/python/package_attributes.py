# each: import urllib; urllib.parse
# each: import importlib; importlib.util
# each: import concurrent; concurrent.futures
# each: import xml; xml.etree
# each: import os; os.path
# each: import logging; logging.handlers
# each: import collections; collections.abc
EACH
print("there")
