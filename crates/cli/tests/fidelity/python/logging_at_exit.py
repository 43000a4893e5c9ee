import logging
import logging.handlers

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
target = logging.StreamHandler()
memory = logging.handlers.MemoryHandler(100, target=target)
logger = logging.getLogger("held")
logger.propagate = False
logger.addHandler(memory)
logger.warning("held back until the end")
logging.info("at once")


class Loud(logging.Handler):
    def flush(self):
        print("flush")

    def close(self):
        print("close")
        super().close()

    def emit(self, record):
        print("emit", record.getMessage())


logging.getLogger().addHandler(Loud())
logging.warning("said %s", "twice")
print(logging.getLogger().handlers[0].stream.name, logging.root.level)
