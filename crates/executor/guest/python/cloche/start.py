"""Runs in: an interpreter at the end of its own start-up, called by `usercustomize`.

CLOCHE_START says how it waits. `single`: this interpreter waits for one job. `template`: it becomes
a template, a moment later, when CPython probes its main file.
"""

import os
import sys

from cloche import job, protocol
from cloche import own_builtins as __builtins__  # noqa: F401

# The versions of CPython with which the fidelity suite passes. A template depends on internals of
# CPython, and on how it ends, so another version is not used before the suite has run with it.
SUPPORTED = (3, 11), (3, 12), (3, 13), (3, 14)


def start(usercustomize):
    """Waits for the job, or prepares a template. Returns whether the guest's own
    `usercustomize` was imported.
    """
    archive = os.path.dirname(os.path.abspath(usercustomize))
    way = os.environ.pop(protocol.START_VARIABLE)
    preload = os.environ.pop(protocol.PRELOAD_VARIABLE, "").split()
    restore_python_path(archive)
    if way == protocol.START_TEMPLATE:
        start_template(archive, preload)
        return False
    forget_runtime(archive)
    try:
        os.unlink(archive)
    except OSError:
        pass
    return wait_for_job()


def restore_python_path(archive):
    """Takes the runtime out of the variable, which an image may use as well."""
    of_image = os.environ["PYTHONPATH"][len(archive) + 1:]
    if of_image:
        os.environ["PYTHONPATH"] = of_image
    else:
        del os.environ["PYTHONPATH"]


def start_template(archive, preload):
    """Prepares a template, or ends where this interpreter is not a supported one."""
    if not is_supported(sys.implementation.name, sys.version_info, sys.abiflags):
        # The executor logs this and starts interpreters one by one: they wait in `single`, which
        # depends on nothing but `site`, and they end natively.
        message = "a template needs CPython %s; this is %s %d.%d%s\n" % (
            ", ".join("%d.%d" % version for version in SUPPORTED),
            sys.implementation.name, *sys.version_info[:2], sys.abiflags)
        os.write(2, message.encode())
        os._exit(1)
    from cloche import template

    template.install(os.path.dirname(archive), preload, forget_runtime(archive))


def is_supported(implementation, version, flags):
    """Whether the fidelity suite passes with this interpreter. Builds without a global lock (`t`)
    and those for debugging (`d`) are other interpreters.
    """
    return implementation == "cpython" and tuple(version[:2]) in SUPPORTED and not flags


def forget_runtime(archive):
    """Removes the runtime from what the program can see. Returns its modules."""
    sys.path[:] = [entry for entry in sys.path if entry != archive]
    for entry in [entry for entry in sys.path_importer_cache if entry.startswith(archive)]:
        del sys.path_importer_cache[entry]
    zipimport = sys.modules.get("zipimport")
    if zipimport is not None:
        zipimport._zip_directory_cache.pop(archive, None)
    names = [name for name in sys.modules if name.partition(".")[0] == "cloche"]
    return [sys.modules.pop(name) for name in names]


def wait_for_job():
    """Says that this interpreter waits, and takes its job."""
    os.write(protocol.JOB_FD, protocol.READY.encode())
    variables = job.take_job(protocol.JOB_FD)
    os.close(protocol.JOB_FD)
    job.set_variables(variables)
    if not job.redo_start():
        return False
    del sys.modules["usercustomize"]
    # The guest's own. If it has none, this raises what `site` expects of a missing module.
    import usercustomize  # noqa: F401

    return True
