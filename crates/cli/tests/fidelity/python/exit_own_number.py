class Number(int):
    def __and__(self, other):
        print("looked at")
        return 5

    def __le__(self, other):
        print("compared")
        return False


raise SystemExit(Number(4))
