"""Runs in: test. Parts of the runtime that can be called without an interpreter of their own."""

import ast
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from cloche import job, protocol, warm_pages
from harness import ARCHIVE, PATIENCE

_SOURCES = pathlib.Path(__file__).parent.parent
_PRELOAD = "import sys; sys.path.insert(0, %r)\nfrom cloche.preload import Preloaded\n" \
    "sys.path.pop(0)\npreloaded = Preloaded()\npreloaded.load(['json', 'colorsys'])\n" % ARCHIVE


def take(job_bytes):
    """What the reader makes of a job, in a process of its own: exit code, variables, files."""
    with tempfile.TemporaryDirectory() as directory:
        code = "import sys; sys.path.insert(0, %r)\nfrom cloche import job\n" \
            "print(job.take_job(0))" % ARCHIVE
        done = subprocess.run([sys.executable, "-c", code], input=job_bytes, cwd=directory,
                              capture_output=True, timeout=PATIENCE, check=False)
        files = {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}
        return done.returncode, done.stdout.decode().strip(), files


class Jobs(unittest.TestCase):
    def test_a_job_is_read_as_it_was_written(self):
        content, variables = b"x" * 200_000, [b"A=1", b"B="]
        written = job.encode_file(b"a.txt", 0o600, content) + job.encode_exec(variables)
        self.assertEqual(take(written), (0, str(variables), {"a.txt": content}))

    def test_a_job_that_is_cut_ends_the_guest_quietly(self):
        written = job.encode_exec([b"A=1"])
        for length in range(len(written)):
            self.assertEqual(take(written[:length]), (protocol.EXIT_NO_JOB, "", {}), length)

    def test_a_job_that_cannot_be_taken_ends_the_guest(self):
        words = job._words
        for bad in (words(9), words(protocol.JOB_DIRECTORY, 3) + b"abc",
                    words(protocol.JOB_DIRECTORY, protocol.PATH_BYTES + 1),
                    job.encode_file(b"absent/a", 0o600, b""),
                    words(protocol.JOB_EXEC, 0, 0, 0, protocol.EXEC_BYTES + 1),
                    words(protocol.JOB_EXEC, 0, 0, 2, 10, 2, 0) + b"a\0"):
            self.assertEqual(take(bad)[:2], (protocol.EXIT_BAD_JOB, ""), bad)

    def test_variables_are_replaced_in_their_order(self):
        before = dict(os.environb)
        self.addCleanup(job.set_variables, [b"=".join(pair) for pair in before.items()])
        job.set_variables([b"Z=1", b"A=b=c"])
        self.assertEqual(list(os.environb.items()), [(b"Z", b"1"), (b"A", b"b=c")])


class PreloadedModules(unittest.TestCase):
    def run_preloaded(self, code, **files):
        with tempfile.TemporaryDirectory() as directory:
            for name, content in files.items():
                pathlib.Path(directory, name + ".py").write_text(content)
            done = subprocess.run([sys.executable, "-c", _PRELOAD + code], cwd=directory,
                                  capture_output=True, timeout=PATIENCE, check=True)
            return done.stdout.decode().split()

    def test_they_are_out_of_sight_until_they_are_imported(self):
        code = "print('json' in sys.modules)\nimport json\nprint('json.decoder' in sys.modules)\n" \
            "print(json is preloaded.modules['json'], json.__spec__.name)"
        self.assertEqual(self.run_preloaded(code), ["False", "True", "True", "json"])

    def test_a_module_beside_the_program_comes_first(self):
        code = "sys.path.insert(0, '.')\nimport colorsys\nprint(colorsys.mine)"
        self.assertEqual(self.run_preloaded(code, colorsys="mine = 'own'"), ["own"])


class PreloadedLoggers(unittest.TestCase):
    SHOW = "import logging\nknown = logging.root.manager.loggerDict\nprint(*known, 'and')\n"

    def run_with_asyncio(self, code):
        preload = _PRELOAD.replace("'json', 'colorsys'", "'asyncio', 'logging'")
        done = subprocess.run([sys.executable, "-c", preload + code], capture_output=True,
                              timeout=PATIENCE, check=True)
        return done.stdout.decode().split()

    def test_a_logger_is_out_of_sight_until_its_module_is_imported(self):
        code = self.SHOW + "import asyncio\nprint(*known)\nprint(asyncio.log.logger is " \
            "logging.getLogger('asyncio'), asyncio is preloaded.modules['asyncio'])\n" \
            "print(known['asyncio'].parent is logging.root)"
        self.assertEqual(self.run_with_asyncio(code), [
            "and", "concurrent.futures", "concurrent", "asyncio", "True", "True", "True"])

    def test_a_logger_of_the_program_is_the_one_of_the_module(self):
        code = self.SHOW + "own = logging.getLogger('asyncio')\nimport asyncio\n" \
            "print(asyncio.log.logger is own, asyncio is preloaded.modules['asyncio'])"
        self.assertEqual(self.run_with_asyncio(code), ["and", "True", "False"])

    def test_children_of_the_program_find_their_parent(self):
        code = self.SHOW + "own = logging.getLogger('asyncio.mine')\nimport asyncio\n" \
            "print(own.parent is asyncio.log.logger is logging.getLogger('asyncio'))"
        self.assertEqual(self.run_with_asyncio(code), ["and", "True"])


class WarmPages(unittest.TestCase):
    def test_pages_become_ranges(self):
        self.assertEqual(warm_pages.join_pages({0x13, 0x10, 0x16, 0x11}), [
            0x10000, 0x2000, 0x13000, 0x1000, 0x16000, 0x1000])
        self.assertEqual(warm_pages.join_pages(set()), [])

    def test_pages_of_others_and_of_files_are_left_out(self):
        own, shared, file = 0x81 << 56, 0x80 << 56, 0xA1 << 56
        self.assertEqual(list(map(warm_pages._is_own, [own, shared, file, 0])),
                         [True, False, False, False])


class Shape(unittest.TestCase):
    def test_functions_have_at_most_60_lines_and_files_at_most_400(self):
        sources = [*_SOURCES.glob("*.py"), *_SOURCES.glob("cloche/*.py")]
        self.assertGreater(len(sources), 6)
        for source in sources:
            text = source.read_text()
            self.assertLessEqual(len(text.splitlines()), 400, source)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    length = node.end_lineno - node.lineno + 1
                    self.assertLessEqual(length, 60, "%s: %s" % (source, node.name))


if __name__ == "__main__":
    unittest.main()
