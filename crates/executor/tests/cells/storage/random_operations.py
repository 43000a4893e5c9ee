# Does the same random operations in two directories and compares what each answers.
import errno, json, os, random, stat, sys

ONE, TWO = os.environ["ONE"], os.environ["TWO"]
seed, count = int(os.environ["SEED"]), int(os.environ["COUNT"])
rng = random.Random(seed)
NAMES = ["a", "b", "c", "d e", "ä", "x" * 255, ".hidden", "-rf"]


def path():
    return "/".join(rng.choice(NAMES) for _ in range(rng.choice([1, 1, 1, 2, 2, 3])))


def content():
    size = rng.choice([0, 1, 10, 4096, 5000])
    return bytes(rng.getrandbits(8) for _ in range(size)) * rng.choice([1, 1, 40])


def write(root, p, data, mode):
    with open(f"{root}/{p}", mode) as file:
        file.write(data)
    return len(data)


def update(root, p, offset, data):
    with open(f"{root}/{p}", "r+b") as file:
        file.seek(offset)
        file.write(data)
        file.seek(0)
        return hash(file.read())


def read(root, p):
    with open(f"{root}/{p}", "rb") as file:
        return hash(file.read())


def truncate(root, p, size):
    os.truncate(f"{root}/{p}", size)


def unlinked(root, p, data):
    # A file that has no name any more is still a file.
    with open(f"{root}/{p}", "w+b") as file:
        file.write(data)
        os.unlink(f"{root}/{p}")
        file.write(data)
        file.seek(0)
        return hash(file.read()), os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_nlink


def listing(root, p):
    return sorted(os.listdir(f"{root}/{p}" if p else root))


def facts(root, p):
    found = os.lstat(f"{root}/{p}")
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    links = 0 if stat.S_ISDIR(found.st_mode) else found.st_nlink
    return stat.filemode(found.st_mode), size, links


def times(root, p, when):
    os.utime(f"{root}/{p}", (when, when))
    return os.stat(f"{root}/{p}").st_mtime


def unlock(root):
    # Gives the owner every right again, from the top down. Returns the modes before.
    modes = {}
    pending = [root]
    while pending:
        at = pending.pop()
        for name in sorted(os.listdir(at)):
            p = f"{at}/{name}"
            mode = os.lstat(p).st_mode
            modes[os.path.relpath(p, root)] = stat.filemode(mode)
            if stat.S_ISDIR(mode):
                os.chmod(p, 0o755)
                pending.append(p)
            elif stat.S_ISREG(mode):
                os.chmod(p, 0o644)
    return modes


def operation():
    kind = rng.choice(
        "write write write append update update read truncate mkdir mkdir unlink rmdir rename "
        "rename link symlink readlink list facts chmod times unlinked exclusive mode unlock".split()
    )
    p, q, data = path(), path(), content()
    offset, size = rng.choice([0, 1, 100, 9000]), rng.choice([0, 5, 5000, 20000])
    mode, when = rng.choice([0o644, 0o600, 0o755, 0o755, 0o444, 0o311, 0]), rng.randrange(10**9)
    run = {
        "write": lambda r: write(r, p, data, "wb"),
        "append": lambda r: write(r, p, data, "ab"),
        "exclusive": lambda r: write(r, p, data, "xb"),
        "update": lambda r: update(r, p, offset, data),
        "read": lambda r: read(r, p),
        "truncate": lambda r: truncate(r, p, size),
        "mkdir": lambda r: os.mkdir(f"{r}/{p}"),
        "unlink": lambda r: os.unlink(f"{r}/{p}"),
        "rmdir": lambda r: os.rmdir(f"{r}/{p}"),
        "rename": lambda r: os.rename(f"{r}/{p}", f"{r}/{q}"),
        "link": lambda r: os.link(f"{r}/{p}", f"{r}/{q}"),
        "symlink": lambda r: os.symlink(q, f"{r}/{p}"),
        "readlink": lambda r: os.readlink(f"{r}/{p}"),
        "list": lambda r: listing(r, p),
        "facts": lambda r: facts(r, p),
        "chmod": lambda r: os.chmod(f"{r}/{p}", mode),
        "mode": lambda r: os.mkdir(f"{r}/{p}", mode),
        "unlock": lambda r: unlock(r) and None,
        "times": lambda r: times(r, p, when),
        "unlinked": lambda r: unlinked(r, p, data),
    }[kind]
    return f"{kind} {p[:20]} {q[:20]} {len(data)} {offset} {size} {oct(mode)}", run


def answer(run, root):
    try:
        return run(root)
    except OSError as error:
        return errno.errorcode[error.errno]


def tree(root):
    found = {}
    for at, directories, files in os.walk(root):
        for name in directories + files:
            p = os.path.relpath(f"{at}/{name}", root)
            kind = os.lstat(f"{root}/{p}").st_mode
            body = os.readlink(f"{root}/{p}") if stat.S_ISLNK(kind) else None
            if stat.S_ISREG(kind):
                body = read(root, p)
            found[p] = facts(root, p), body
    return found


history = []
for step in range(count):
    name, run = operation()
    history.append(name)
    one, two = answer(run, ONE), answer(run, TWO)
    if one != two:
        answers = {"step": step, "operation": name, "mount": str(one), "plain": str(two)}
        print(json.dumps({**answers, "before": history[-8:]}))
        sys.exit(1)
one, two = unlock(ONE), unlock(TWO)
if one != two:
    print("modes differ", {p: (one.get(p), two.get(p)) for p in one.keys() | two.keys()})
    sys.exit(1)
one, two = tree(ONE), tree(TWO)
if one != two:
    names = [p for p in one.keys() | two.keys() if one.get(p) != two.get(p)]
    print("trees differ", {p: (one.get(p), two.get(p)) for p in names})
    sys.exit(1)
print("same", len(one))
