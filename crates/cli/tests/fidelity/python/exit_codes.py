# each: None
# each: 0
# each: 3
# each: -1
# each: 256
# each: 257
# each: 2**31
# each: 2**63
# each: -2**70
# each: True
# each: False
# each: 1.5
# each: ""
# each: "text"
# each: "täxt \udce4"
# each: (1, 2)
# each: (5,)
# each: ()
# each: [4]
# each: b"bytes"
# each: object
# each: Number()
# each: Odd()
# each: Raises()
# each: SystemExit(6)
import sys


class Number(int):
    def __int__(self):
        return 8


class Odd:
    def __str__(self):
        return "odd"


class Raises:
    def __str__(self):
        raise ValueError("no text")


class Noticed:
    def __del__(self):
        print("cleaned up")


noticed = Noticed()
sys.exit(EACH)
