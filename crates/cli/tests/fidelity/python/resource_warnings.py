# each: open("main.py")
# each: __import__("warnings").simplefilter("always"); open("main.py")
# each: __import__("warnings").simplefilter("always"); kept = open("main.py")
# each: __import__("warnings").simplefilter("error"); kept = open("main.py"); __import__("warnings").warn("x")
EACH
print("the end")
