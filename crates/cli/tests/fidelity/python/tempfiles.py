import os
import tempfile

print(tempfile.gettempdir(), tempfile.gettempprefix())
with tempfile.TemporaryDirectory() as directory:
    print(os.path.dirname(directory), oct(os.stat(directory).st_mode))
with tempfile.NamedTemporaryFile() as file:
    print(os.path.dirname(file.name), len(os.path.basename(file.name)))
