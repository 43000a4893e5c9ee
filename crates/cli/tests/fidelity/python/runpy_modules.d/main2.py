print(__name__, __file__)
