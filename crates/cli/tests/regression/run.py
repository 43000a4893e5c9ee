# Runs tests of CPython's own suite, and says of each how it went: one line, on the output that
# the tests themselves do not get.
import os
import sys
import unittest

if __name__ == "__main__":
    said = os.fdopen(os.dup(1), "w")
    nowhere = os.open("/dev/null", os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    from test import support

    support.use_resources = []
    support.verbose = 0

    class Noting(unittest.TestResult):
        def note(self, test, how):
            said.write(f"{test.id()} {how}\n")
            said.flush()

        def addSuccess(self, test):
            self.note(test, "passed")

        def addError(self, test, error):
            self.note(test, f"error {error[0].__name__}")

        def addFailure(self, test, error):
            self.note(test, "failed")

        def addSkip(self, test, reason):
            self.note(test, "skipped")

        def addExpectedFailure(self, test, error):
            self.note(test, "failed as expected")

        def addUnexpectedSuccess(self, test):
            self.note(test, "passed unexpectedly")

        def addSubTest(self, test, part, error):
            if error is not None:
                self.note(test, f"{part._subDescription()} failed".replace("\n", " "))

    names = os.environ["TESTS"].split()
    unittest.defaultTestLoader.loadTestsFromNames(names).run(Noting())
    said.write("all were run\n")
    said.flush()
    os._exit(0)
