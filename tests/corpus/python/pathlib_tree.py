from pathlib import Path

root = Path("project")
for name in ("src/a.py", "src/b.txt", "docs/readme.md"):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {path.stem}\n")
print(sorted(str(path) for path in root.rglob("*") if path.is_file()))
print([path.name for path in root.glob("**/*.py")], (root / "src/a.py").read_text().strip())
print(Path("/a/b/../c.tar.gz").suffixes, Path("x").with_suffix(".md"))
(root / "missing.txt").read_text()
