import io
import unittest


class Tests(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(1 + 1, 2)

    def test_fails(self):
        self.assertEqual([1, 2], [1, 3])


result = unittest.TextTestRunner(io.StringIO(), resultclass=unittest.TestResult).run(
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests))
print(result.testsRun, len(result.failures))
print(result.failures[0][1])
