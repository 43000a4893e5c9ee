import runpy
import sys

print(__name__, sys.argv)
if __name__ == "__main__":
    runpy.run_path(__file__, run_name="again")
    import main

    print(main.__name__, main is sys.modules["__main__"], main.__file__, main.__cached__)
