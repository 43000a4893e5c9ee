class Loud:
    def __del__(self):
        print("gone", __name__, Loud)


b = Loud()
a = Loud()
