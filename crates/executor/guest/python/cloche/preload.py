"""Runs in: a template, and in its cells whenever the program imports a module.

Modules that were imported ahead wait, out of sight, for the program to import them.
"""

import builtins
import sys

from cloche import own_builtins as __builtins__  # noqa: F401


class Preloaded:
    """Modules that wait. `sys.modules` has none of them.

    When a program imports one, that module enters `sys.modules` together with what it had imported
    itself, in that order, and what it had registered is registered now. If a module of that name,
    or of a name it needs, would be found elsewhere by now (the program has a `random.py` beside
    it), the waiting module is not used, and the import takes its usual way.
    """

    def __init__(self):
        self.modules = {}  # all of them, in the order in which they were ready
        self.waiting = {}  # those that the program has not imported yet
        self.used = []  # the names of those that it has
        self.specs = {}
        self.imports = {}  # what each has imported
        self.effects = {}  # what each has registered
        self.aliases = {}  # what each has put under another name
        self.loggers = {}  # the names of the loggers that each has made
        self.manager = None  # the manager of all loggers
        self.plans = {}
        self.finders = {}
        self.places = [place for place in sys.path if place]

    def module(self, name):
        """A module that the runtime needs: one that waits, or one that was there before."""
        return self.modules.get(name) or sys.modules[name]

    def load(self, names):
        """Imports modules, records what each of them does, and puts them out of sight."""
        bare = dict(sys.modules)
        self._import_recording(names)
        self._put_away(bare)
        for name in self.loggers.keys() - self.waiting.keys():
            for logger in self.loggers[name]:
                self._put_logger(logger)
        for name in names:
            if name in self.waiting:
                self._plan(name)
        self._hook(bare["_frozen_importlib"])

    def _import_recording(self, names):
        """Imports modules while imports, exit and fork functions, pickle reductions and loggers are
        recorded.
        """
        importing = builtins.__import__
        builtins.__import__ = self._recording_import(importing)
        import atexit
        import copyreg
        import os

        reductions = dict(copyreg.dispatch_table)
        register, reduce, at_fork = atexit.register, copyreg.pickle, os.register_at_fork

        def recording_register(*arguments, **keywords):
            self._record_effect(register, arguments, keywords)
            return arguments[0]

        def recording_reduce(*arguments):
            self._record_effect(reduce, arguments, {})

        def recording_at_fork(**functions):
            # The template itself puts the functions of these away.
            if sys._getframe(1).f_globals.get("__name__") in ("logging", "random", "threading"):
                at_fork(**functions)
            else:
                self._record_effect(at_fork, (), functions)

        atexit.register, copyreg.pickle = recording_register, recording_reduce
        os.register_at_fork = recording_at_fork
        if "logging" in names:
            self._record_loggers(builtins.__import__("logging").Logger.manager)
        for name in names:
            try:
                builtins.__import__(name)
            except ImportError:
                pass
        atexit.register, copyreg.pickle, os.register_at_fork = register, reduce, at_fork
        builtins.__import__ = importing
        if self.manager is not None:
            del self.manager.getLogger
            self.manager.loggerDict.clear()
        copyreg.dispatch_table.clear()
        copyreg.dispatch_table.update(reductions)

    def _recording_import(self, importing):
        """An `__import__` that records which module asked for which."""
        pending = []

        def recording_import(name, globals=None, locals=None, fromlist=(), level=0):
            importer = (globals or {}).get("__name__") or ""
            if importer.startswith("importlib._bootstrap") and pending:
                importer = pending[-1]
            full = name
            if level:
                package = globals.get("__package__") or importer.rpartition(".")[0]
                package = package.rsplit(".", level - 1)[0] if level > 1 else package
                full = package + "." + name if name else package
            pending.append(full)
            try:
                result = importing(name, globals, locals, fromlist, level)
            finally:
                pending.pop()
            recorded = self.imports.setdefault(importer, {})
            recorded[full] = None
            for item in fromlist or ():
                if full + "." + item in sys.modules:
                    recorded[full + "." + item] = None
            return result

        return recording_import

    def _record_loggers(self, manager):
        """Records which module makes which logger. It is put where programs see it when the program
        imports the module.
        """
        get_logger = manager.getLogger

        def recording_logger(name):
            logger, frame = get_logger(name), sys._getframe(1)
            while frame.f_back is not None and frame.f_globals.get("__name__") == "logging":
                frame = frame.f_back
            module = frame.f_globals.get("__name__")
            self.loggers.setdefault(module, []).append(logger)
            self.effects.setdefault(module, []).append((self._put_logger, (logger,), {}))
            return logger

        self.manager, manager.getLogger = manager, recording_logger

    def _put_logger(self, logger):
        """Does what `logging` does with a logger that it has just made."""
        manager, known = self.manager, self.manager.loggerDict
        before = known.get(logger.name)
        if before is not logger:
            known[logger.name] = logger
            if before is not None:
                manager._fixupChildren(before, logger)
            manager._fixupParents(logger)

    def _has_other_loggers(self, names):
        """Whether the program has made a logger that one of these modules makes, or wants another
        kind of loggers.
        """
        made = [logger for name in names if name in self.waiting
                for logger in self.loggers.get(name, ())]
        if not made:
            return False
        logging, known = self.modules["logging"], self.manager.loggerDict
        if self.manager.loggerClass is not None or logging._loggerClass is not logging.Logger:
            return True
        return any(not isinstance(known.get(logger.name, logger), logging.PlaceHolder)
                   and known.get(logger.name, logger) is not logger for logger in made)

    def _record_effect(self, function, arguments, keywords):
        # This frame, that of the recording function, then that of the module.
        module = sys._getframe(2).f_globals.get("__name__")
        self.effects.setdefault(module, []).append((function, arguments, keywords))

    def _put_away(self, bare):
        for name, module in list(sys.modules.items()):
            if name in bare or module is None:
                continue
            spec = getattr(module, "__spec__", None)
            self.modules[name] = module
            if getattr(spec, "name", None) == name:
                self.waiting[name], self.specs[name] = module, spec
            else:
                # Another name that a module has put there for itself or a part of itself.
                self.aliases.setdefault(name.rpartition(".")[0], {})[name] = module
        sys.modules.clear()
        sys.modules.update(bare)
        for name, module in self.waiting.items():
            package, _, last = name.rpartition(".")
            package = self.modules.get(package) or bare.get(package)
            if package is not None and vars(package).get(last) is module:
                delattr(package, last)

    def put_finders_away(self, known):
        """Takes the finders of directories out of sight that are not among those known before."""
        for place in set(sys.path_importer_cache) - known:
            self.finders[place] = sys.path_importer_cache.pop(place)

    def _hook(self, importlib):
        """Has the first finder of all look here. The import system asks it for every module."""
        finder, waiting = importlib.BuiltinImporter, self.waiting
        natively = finder.find_spec.__func__

        def find_spec(cls, fullname, path=None, target=None):
            if fullname in waiting:
                names, places = self._plan(fullname)
                if self._are_found(places) and not self._has_other_loggers(names):
                    for name in names:
                        if name in waiting and name != fullname:
                            sys.modules[name] = module = self.create_module(name)
                            self._finish(name, module)
                    return importlib.ModuleSpec(fullname, self)
            return natively(cls, fullname, path, target)

        find_spec.__qualname__ = natively.__qualname__
        find_spec.__module__ = natively.__module__
        finder.find_spec = classmethod(find_spec)

    def _plan(self, name):
        """What comes with a module, in order; and their first names, by where they were found."""
        plan = self.plans.get(name)
        if plan is None:
            found, remaining = {name}, [name]
            while remaining:
                module = remaining.pop()
                for needed in (module.rpartition(".")[0], *self.imports.get(module, ())):
                    if needed in self.modules and needed not in found:
                        found.add(needed)
                        remaining.append(needed)
            plan = [needed for needed in self.modules if needed in found], self._places_of(found)
            self.plans[name] = plan
        return plan

    def _places_of(self, names):
        """The first names of modules, by the directories in which they were found."""
        places = {}
        for first in {name.partition(".")[0] for name in names}:
            spec = self.specs.get(first)
            if spec is not None and spec.has_location:
                place, _, file = spec.origin.rpartition("/")
                # Not by its `__path__`: a single file (`six`) may have one.
                if file.startswith("__init__."):
                    place = place.rpartition("/")[0]
                places.setdefault(place, set()).add(first)
        return places

    def _are_found(self, places):
        """Whether an import would find these where they were found ahead.

        The directories that were there ahead cannot be written to. Only what was added since, like
        the program's own directory, can hold another module of the same name.
        """
        left, before = dict(places), iter(self.places)
        for entry in sys.path:
            if entry in self.places:
                if next((place for place in before if place == entry), None) is None:
                    return False  # in another order
                left.pop(entry, None)
                continue
            finder = self._finder(entry)
            for names in left.values():
                if finder is not None and not self._is_without(finder, names):
                    return False
        return not left

    def _is_without(self, finder, names):
        """Whether a finder finds none of these names."""
        finder.find_spec(next(iter(names)))  # has it look again if its directory has changed
        present = getattr(finder, "_path_cache", None)
        if present is not None:
            names = names.intersection([file.partition(".")[0] for file in present])
        specs = [finder.find_spec(name) for name in names]
        return all(spec is None or spec.loader is None for spec in specs)

    def _finder(self, entry):
        """What looks into a directory; made if need be, as the import system does it."""
        try:
            return sys.path_importer_cache[entry]
        except KeyError:
            external = sys.modules["_frozen_importlib_external"]
            return external.PathFinder._path_importer_cache(entry)

    def create_module(self, spec):
        """The import system calls this, with the spec of `find_spec`."""
        name = getattr(spec, "name", spec)
        self.used.append(name)
        return self.waiting.pop(name)

    def exec_module(self, module):
        """The import system calls this instead of running the module's code."""
        name = module.__spec__.name
        module.__spec__ = self.specs[name]
        self._finish(name, module)

    def _finish(self, name, module):
        """Does what the module did when it was imported, as far as others see it."""
        package, _, last = name.rpartition(".")
        if package:
            package = sys.modules.get(package) or self.modules.get(package)
            if package is not None:
                vars(package).setdefault(last, module)
                for entry in getattr(package, "__path__", ()):
                    if entry in self.finders:
                        sys.path_importer_cache.setdefault(entry, self.finders[entry])
        if name in self.aliases:
            sys.modules.update(self.aliases[name])
        for function, arguments, keywords in self.effects.get(name, ()):
            function(*arguments, **keywords)
