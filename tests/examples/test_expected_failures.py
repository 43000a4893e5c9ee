"""The list of expected failures is about examples that exist."""

from conftest import EXPECTED, HERE, MISSING


def test_every_expected_failure_names_an_example():
    for example in EXPECTED:
        module, name = example.split("::")
        assert f"def {name}(" in (HERE / f"{module}.py").read_text(), example


def test_no_example_is_listed_twice():
    assert len(EXPECTED) == sum(len(missing["examples"]) for missing in MISSING)
