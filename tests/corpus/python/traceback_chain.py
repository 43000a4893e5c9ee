import sys


class ConfigError(Exception):
    """The configuration cannot be used."""


def read_setting(settings, name):
    try:
        return settings[name]
    except KeyError as error:
        raise ConfigError(f"{name} is missing") from error


print("before", flush=True)
print("to stderr", file=sys.stderr)
read_setting({"a": 1}, "b")
