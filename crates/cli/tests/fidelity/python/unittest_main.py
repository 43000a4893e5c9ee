import unittest


class Test(unittest.TestCase):
    def test_passes(self):
        self.assertTrue(True)

    @unittest.skip("skipped")
    def test_skipped(self):
        pass

    def test_main(self):
        self.assertEqual(__name__, "__main__")

    def test_fails(self):
        self.assertEqual([1, 2], [1, 3])


class Result(unittest.TextTestResult):
    pass


if __name__ == "__main__":
    import time

    time.perf_counter = lambda: 0
    unittest.main()
