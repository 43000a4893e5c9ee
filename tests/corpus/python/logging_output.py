import logging
import warnings

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
log = logging.getLogger("app")
log.debug("not shown")
log.info("started with %d items", 3)
try:
    {}["missing"]
except KeyError:
    log.exception("lookup failed")
warnings.warn("this is old", DeprecationWarning, stacklevel=1)
warnings.warn("careful")
