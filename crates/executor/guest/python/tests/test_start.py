"""Runs in: test. How an interpreter waits for one job, and which ones may be templates."""

import subprocess
import sys
import unittest

from cloche import start
from harness import ARCHIVE, PATIENCE, run_plain, run_single
from programs import PROGRAMS


class SupportedVersions(unittest.TestCase):
    def test_versions_that_passed_the_fidelity_suite_are_supported(self):
        for version in ((3, 11, 7), (3, 12, 1), (3, 13, 5), (3, 14, 0)):
            self.assertTrue(start.is_supported("cpython", version, ""), version)

    def test_other_versions_implementations_and_builds_are_not(self):
        for version in ((3, 9, 18), (3, 10, 13), (3, 15, 0), (4, 0)):
            self.assertFalse(start.is_supported("cpython", version, ""), version)
        self.assertFalse(start.is_supported("pypy", (3, 11), ""))
        self.assertFalse(start.is_supported("cpython", (3, 14), "t"))

    def test_a_template_of_another_version_says_so_and_ends(self):
        code = "from cloche import start\nstart.SUPPORTED = (2, 0), (2, 7)\n" \
            "start.start_template(%r, [])" % ARCHIVE
        ended = subprocess.run(
            [sys.executable, "-c", "import sys; sys.path.insert(0, %r)\n%s" % (ARCHIVE, code)],
            capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr.decode(), "a template needs CPython 2.0, 2.7; this is cpy")


class SingleInterpreters(unittest.TestCase):
    def test_programs_run_as_in_an_interpreter_of_their_own(self):
        for name, _, program in PROGRAMS:
            with self.subTest(name):
                self.assertEqual(run_single(program), run_plain(program))

    def test_the_archive_is_removed_before_the_job(self):
        self.assertEqual(run_single("import os\nprint(os.path.exists('cloche.zip'))")[1], "False\n")


if __name__ == "__main__":
    unittest.main()
