import shutil
from pathlib import Path

base = Path("project")
(base / "src").mkdir(parents=True)
(base / "src" / "main.txt").write_text("one\ntwo\nthree\n")
(base / "notes.md").write_text("# Notes")
for path in sorted(base.rglob("*")):
    print(path, "dir" if path.is_dir() else path.stat().st_size)
shutil.make_archive("project", "zip", base)
print(Path("project.zip").exists(), Path("project.zip").suffix, Path.cwd())
shutil.rmtree(base)
print(base.exists())
