"""Runs in: test. Cells that are forked from a template, without walls around them."""

import unittest

from harness import Template, home, run_plain
from programs import PROGRAMS


class Templates(unittest.TestCase):
    def test_programs_run_as_in_an_interpreter_of_their_own(self):
        with home() as directory:
            template = Template(directory)
            self.addCleanup(template.stop)
            for name, _, program in PROGRAMS:
                with self.subTest(name):
                    self.assertEqual(template.run(program), run_plain(program))


if __name__ == "__main__":
    unittest.main()
