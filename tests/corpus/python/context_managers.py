import contextlib
import io
import os
import tempfile


class Resource:
    def __enter__(self):
        print("opened")
        return self

    def __exit__(self, kind, error, trace):
        print("closed after", kind and kind.__name__)
        return kind is ZeroDivisionError


with Resource():
    1 / 0
with contextlib.redirect_stdout(io.StringIO()) as captured:
    print("hidden")
print("captured:", captured.getvalue().strip())
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "file.txt")
    with open(path, "w") as file:
        file.write("x" * 100)
    print(os.path.getsize(path))
print(os.path.exists(path))
