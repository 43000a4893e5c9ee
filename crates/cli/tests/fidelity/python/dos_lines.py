print("dos")
if True:
    print(len("""a
b"""))
