# env: GREETING=hello there
import getpass
import os
import platform
import sys

print(os.environ["GREETING"], os.environ["HOME"], os.getcwd(), __file__, __name__, sys.argv)
print(getpass.getuser(), os.getuid(), os.path.expanduser("~/x"), platform.system())
print(sys.version_info[:2] >= (3, 9), sys.flags.optimize, sys.byteorder, os.sep)
