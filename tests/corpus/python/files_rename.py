import os
import shutil
import tempfile

with tempfile.TemporaryDirectory() as place:
    for number in range(3):
        with open(os.path.join(place, f"f{number}.log"), "w") as file:
            file.write("x" * (number + 1))
    for name in sorted(os.listdir(place)):
        os.rename(os.path.join(place, name), os.path.join(place, name.replace(".log", ".txt")))
    shutil.copy(os.path.join(place, "f0.txt"), os.path.join(place, "copy.txt"))
    print(sorted(os.listdir(place)), sum(entry.stat().st_size for entry in os.scandir(place)))
print(os.path.exists(place))
