import atexit

atexit.register(print, "before logging was imported")
import logging
import logging.handlers

atexit.register(print, "after logging was imported")


class Loud(logging.Handler):
    def close(self):
        print("closed by logging")
        super().close()


handler = Loud()
