# What programs do to files, in the directory of the first argument.
import csv, gzip, json, logging, mmap, os, pickle, shutil, sqlite3, subprocess, tarfile
import tempfile, threading, wave, zipfile

root = os.environ["ROOT"]
links = os.environ.get("LINKS") == "1"
os.chdir(root)


def part(name):
    def run(body):
        try:
            body()
            print("ok", name)
        except Exception as error:
            print("FAILED", name, type(error).__name__, error)
    return run


@part("csv")
def _():
    with open("t.csv", "w", newline="") as f:
        csv.writer(f).writerows([[i, i * i] for i in range(1000)])
    with open("t.csv") as f:
        assert sum(int(row[1]) for row in csv.reader(f)) == sum(i * i for i in range(1000))


@part("zip")
def _():
    with zipfile.ZipFile("t.zip", "w", zipfile.ZIP_DEFLATED) as z:
        for i in range(20):
            z.writestr(f"m{i}", os.urandom(5000))
    with zipfile.ZipFile("t.zip", "a") as z:
        z.writestr("late", "text")
    with zipfile.ZipFile("t.zip") as z:
        assert z.testzip() is None and z.read("late") == b"text" and len(z.namelist()) == 21


@part("wave: seeks back to the header")
def _():
    with wave.open("t.wav", "wb") as w:
        w.setnchannels(1); w.setsampwidth(2); w.setframerate(8000)
        w.writeframes(b"\1\2" * 5000)
    with wave.open("t.wav") as w:
        assert w.getnframes() == 5000


@part("gzip, pickle, tar")
def _():
    with gzip.open("t.gz", "wb") as f:
        f.write(b"x" * 100000)
    assert gzip.open("t.gz").read() == b"x" * 100000
    pickle.dump({"a": 1}, open("t.pickle", "wb"))
    assert pickle.load(open("t.pickle", "rb")) == {"a": 1}
    with tarfile.open("t.tar.gz", "w:gz") as t:
        t.add("t.csv")
    assert tarfile.open("t.tar.gz").getnames() == ["t.csv"]


@part("append")
def _():
    for i in range(5):
        with open("log.txt", "a") as f:
            f.write(f"line {i}\n")
    more = "echo more >> log.txt; echo tee | tee -a log.txt >/dev/null"
    subprocess.run(more, shell=True, check=True)
    handler = logging.FileHandler("log.txt")
    logging.getLogger("t").addHandler(handler)
    logging.getLogger("t").warning("logged")
    handler.close()
    lines = "".join(f"line {i}\n" for i in range(5))
    assert open("log.txt").read() == lines + "more\ntee\nlogged\n"


@part("sed -i")
def _():
    open("s.txt", "w").write("old old\n" * 100)
    subprocess.run(["sed", "-i", "s/old/new/g", "s.txt"], check=True)
    assert open("s.txt").read() == "new new\n" * 100


@part("tempfile and os.replace")
def _():
    for i in range(3):
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as f:
            json.dump({"i": i}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(f.name, "config.json")
        assert json.load(open("config.json")) == {"i": i}
    assert not [name for name in os.listdir(".") if name.startswith("tmp")]


@part("shutil.copy2 and move")
def _():
    shutil.copy2("t.csv", "copy.csv")
    os.mkdir("sub")
    shutil.move("copy.csv", "sub/moved.csv")
    assert open("sub/moved.csv").read() == open("t.csv").read()
    shutil.move("sub", "sub2")
    assert os.listdir("sub2") == ["moved.csv"] and not os.path.exists("sub")
    shutil.copytree("sub2", "sub3")
    shutil.rmtree("sub2")
    assert not os.path.exists("sub2") and os.path.exists("sub3/moved.csv")


@part("sqlite, journal and wal")
def _():
    for mode in ["delete", "wal"] if links else ["delete"]:
        db = sqlite3.connect(f"{mode}.db")
        assert db.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
        db.execute("create table t (x)")
        for i in range(20):
            db.execute("insert into t values (?)", (os.urandom(500),))
            db.commit()
        db.execute("update t set x = 1 where rowid % 2")
        db.commit()
        db.close()
        again = sqlite3.connect(f"{mode}.db").execute("select count(*), sum(x=1) from t")
        assert again.fetchone() == (20, 10)


@part("mapped memory")
def _():
    with open("m.bin", "w+b") as f:
        f.truncate(200000)
        m = mmap.mmap(f.fileno(), 200000)
        m[0:5] = b"first"
        m[199995:] = b"last!"
        m.flush()
        m.close()
    data = open("m.bin", "rb").read()
    assert len(data) == 200000 and data[:5] == b"first" and data[-5:] == b"last!"


@part("holes and writes out of order")
def _():
    with open("h.bin", "wb") as f:
        f.seek(100000)
        f.write(b"end")
        f.seek(10)
        f.write(b"begin")
    data = open("h.bin", "rb").read()
    assert len(data) == 100003 and data[10:15] == b"begin" and data[50000] == 0


@part("update in place")
def _():
    open("u.bin", "wb").write(b"0" * 300000)
    with open("u.bin", "r+b") as f:
        f.seek(150000)
        f.write(b"MIDDLE")
    data = open("u.bin", "rb").read()
    assert len(data) == 300000 and data[149999:150007] == b"0MIDDLE0"


@part("locks")
def _():
    import fcntl
    with open("lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        fcntl.lockf(f, fcntl.LOCK_UN)


@part("threads that write one file each")
def _():
    def write(i):
        with open(f"thread{i}", "wb") as f:
            f.write(bytes([i]) * 50000)
    all_threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    [t.start() for t in all_threads]; [t.join() for t in all_threads]
    assert all(open(f"thread{i}", "rb").read() == bytes([i]) * 50000 for i in range(8))


@part("numpy and pandas, if they are here")
def _():
    try:
        import numpy, pandas
    except ImportError:
        return
    numpy.savez("n.npz", a=numpy.arange(10000))
    assert numpy.load("n.npz")["a"].sum() == 49995000
    m = numpy.memmap("mm.bin", dtype="int32", mode="w+", shape=(1000,)); m[:] = 7; m.flush(); del m
    assert numpy.memmap("mm.bin", dtype="int32", mode="r").sum() == 7000
    frame = pandas.DataFrame({"x": range(1000)})
    frame.to_csv("p.csv"); assert len(pandas.read_csv("p.csv")) == 1000
    kinds = [("p.parquet", "to_parquet", "read_parquet"), ("p.xlsx", "to_excel", "read_excel")]
    for name, write, read in kinds:
        try:
            getattr(frame, write)(name)
        except ImportError:
            continue
        assert len(getattr(pandas, read)(name)) == 1000


@part("git")
def _():
    if not shutil.which("git"):
        return
    names = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"]
    env = {**os.environ, **{name: "a@b" for name in names}}
    os.mkdir("repo")
    how = dict(cwd="repo", env=env, check=True, capture_output=True, text=True)
    run = lambda *a: subprocess.run(["git", "-c", "gc.auto=0", *a], **how).stdout
    run("init", "-q")
    if not links:
        return
    open("repo/f", "w").write("content")
    run("add", "f"); run("commit", "-qm", "first")
    assert run("show", "HEAD:f") == "content" and run("status", "--porcelain") == ""


if links:
    @part("links")
    def _():
        os.symlink("t.csv", "soft"); os.link("t.csv", "hard")
        assert os.path.samefile("soft", "hard") and os.stat("t.csv").st_nlink == 2
else:
    @part("links are refused")
    def _():
        for make in (os.symlink, os.link):
            try:
                make("t.csv", "refused")
                raise AssertionError(make)
            except PermissionError:
                pass
