//! What people's programs need works inside: each by a small real job of its own.

use std::fs;

#[path = "support/cloche.rs"]
mod support;

use support::{can_sandbox, cloche, run, skip};

/// Runs a job and demands these lines.
#[track_caller]
fn prints(language: &str, code: &str, expected: &str) {
    if can_sandbox() {
        assert_eq!(run(language, code).printed(), expected);
    }
}

/// Whether the host has a program for the guest to use.
#[track_caller]
fn has(program: &str) -> bool {
    let there = |dir: &&str| fs::exists(format!("{dir}/{program}")).unwrap_or(false);
    let found = ["/usr/local/bin", "/usr/bin"].iter().any(there);
    found || skip(&format!("this host has no {program}"))
}

#[test]
fn python_has_its_libraries() {
    let code = "
import ssl, sqlite3, hashlib, zlib, lzma, bz2, ctypes, decimal, json, uuid, secrets, tempfile
db = sqlite3.connect('a.db')
db.execute('create table t (x)')
db.executemany('insert into t values (?)', [(1,), (2,)])
db.commit()
print(db.execute('select sum(x) from t').fetchone()[0])
print(len(ssl.create_default_context().get_ca_certs()) > 0)
print(hashlib.sha256(b'').hexdigest()[:8], zlib.decompress(zlib.compress(b'x')))
print(ctypes.CDLL(None).getpid() > 0, len(secrets.token_bytes(8)))
import time, locale, zoneinfo
print(time.strftime('%Y') >= '2024', str(zoneinfo.ZoneInfo('Europe/Paris')))
";
    prints("python", code, "3\nTrue\ne3b0c442 b'x'\nTrue 8\nTrue Europe/Paris\n");
}

#[test]
fn python_runs_things_side_by_side() {
    let code = "
import asyncio, multiprocessing as mp, subprocess, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import shared_memory

def square(x):
    return x * x

def fill(name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[0] = 7
    memory.close()

async def echo():
    async def serve(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'hello\\n')
    line = await reader.readline()
    child = await asyncio.create_subprocess_exec('echo', 'child', stdout=subprocess.PIPE)
    return line, (await child.communicate())[0]

if __name__ == '__main__':
    print(asyncio.run(echo()))
    for method in ('fork', 'spawn', 'forkserver'):
        with mp.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(4)))
    memory = shared_memory.SharedMemory(create=True, size=64)
    child = mp.Process(target=fill, args=(memory.name,))
    child.start(); child.join()
    print(memory.buf[0])
    memory.close(); memory.unlink()
    with ThreadPoolExecutor(4) as threads, ProcessPoolExecutor(2) as processes:
        print(sum(threads.map(square, range(10))), sum(processes.map(square, range(10))))
    lock, queue = mp.Lock(), mp.Queue()
    with lock:
        queue.put('queued')
    print(queue.get(), subprocess.check_output('echo a | tr a b', shell=True))
";
    let expected = "(b'hello\\n', b'child\\n')\n\
        fork [0, 1, 4, 9]\nspawn [0, 1, 4, 9]\nforkserver [0, 1, 4, 9]\n7\n285 285\nqueued b'b\\n'\n";
    prints("python", code, expected);
}

#[test]
fn python_handles_signals_terminals_and_files() {
    let code = "
import os, pty, signal, sys, mmap, fcntl, select, socket
signal.signal(signal.SIGALRM, lambda *_: print('alarm'))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
master, slave = pty.openpty()
os.write(slave, b'tty\\n')
print(os.read(master, 10), os.isatty(slave))
with open('m', 'wb+') as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[:2] = b'ok'
    fcntl.flock(file, fcntl.LOCK_EX)
    print(file.read(2))
os.symlink('m', 'l'); os.link('m', 'h'); os.chmod('m', 0o600); os.mkfifo('f')
print(os.readlink('l'), os.stat('h').st_nlink, oct(os.stat('m').st_mode & 0o777))
left, right = socket.socketpair()
left.send(b'x')
print(select.select([right], [], [], 1)[0] == [right])
print(os.memfd_create('x') > 2, os.eventfd(0) > 2, sys.getfilesystemencoding())
";
    let expected = "alarm\nb'tty\\r\\n' True\nb'ok'\nm 2 0o600\nTrue\nTrue True utf-8\n";
    prints("python", code, expected);
}

#[test]
fn numpy_and_pandas_compute() {
    if !can_sandbox() || !fs::exists("/usr/lib/python3/dist-packages/pandas").unwrap() {
        skip("this host has no python3-pandas");
        return;
    }
    let code = "
import numpy, pandas, io
matrix = numpy.arange(10000, dtype=float).reshape(100, 100)
print((matrix @ matrix.T).trace(), numpy.linalg.matrix_rank(matrix))
frame = pandas.read_csv(io.StringIO('k,v\\na,1\\nb,2\\na,3'))
print(frame.groupby('k').v.sum().to_dict(), frame.v.rolling(2).mean().tolist()[1:])
frame.to_csv('out.csv')
print(pandas.date_range('2024-01-01', periods=2, tz='Europe/Paris')[1])
";
    let expected = "333283335000.0 2\n{'a': 4, 'b': 2} [1.5, 2.5]\n2024-01-02 00:00:00+01:00\n";
    prints("python", code, expected);
}

#[test]
fn pip_installs_a_local_package() {
    if !can_sandbox() || !has("pip3") {
        return;
    }
    let code = r#"
set -e
mkdir -p pkg/hello && cd pkg
cat > setup.py <<'END'
from setuptools import setup
setup(name='hello', version='1.2', packages=['hello'],
      entry_points={'console_scripts': ['hello=hello:main']})
END
echo 'def main(): print("hello from a package")' > hello/__init__.py
pip3 install --no-index --no-build-isolation --quiet . 2> ../log || { cat ../log >&2; exit 1; }
cd ..
hello
python3 -c 'import hello; hello.main(); print(hello.__file__.startswith("/home/baponi/.local/"))'
pip3 list --format=freeze 2>/dev/null | grep hello
python3 -m venv --without-pip env && env/bin/python -c 'import sys; print(sys.prefix)'
"#;
    let expected =
        "hello from a package\nhello from a package\nTrue\nhello==1.2\n/home/baponi/env\n";
    prints("bash", code, expected);
}

#[test]
fn node_serves_works_and_hashes() {
    if !can_sandbox() || !has("node") {
        return;
    }
    let code = "
import http from 'node:http';
import crypto from 'node:crypto';
import fs from 'node:fs/promises';
import { execFileSync, fork } from 'node:child_process';
import { Worker } from 'node:worker_threads';
const server = http.createServer((request, response) => response.end('served ' + request.url));
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const answer = await fetch(`http://127.0.0.1:${server.address().port}/x`);
console.log(await answer.text());
server.close();
const worker = new Worker('require(`worker_threads`).parentPort.postMessage(6 * 7)', { eval: true });
console.log(await new Promise((done) => worker.once('message', done)));
console.log(execFileSync('echo', ['child']).toString().trim());
await fs.writeFile('child.js', 'process.send(`forked`)');
console.log(await new Promise((done) => fork('child.js').once('message', done)));
console.log(crypto.createHash('sha256').update('').digest('hex').slice(0, 8));
console.log(crypto.randomBytes(4).length, (await crypto.subtle.digest('SHA-1', Buffer.from(''))).byteLength);
console.log((await fs.readdir('.')).sort().join());
process.stdin.resume().on('end', () => console.log('end of input'));
";
    let expected = "served /x\n42\nchild\nforked\ne3b0c442\n4 20\nchild.js,main.js\nend of input\n";
    prints("node", code, expected);
    let commonjs = "const path = require('path'); console.log(path.basename(__filename), require.main === module)";
    prints("node", commonjs, "main.js true\n");
}

#[test]
fn npm_installs_a_local_package_and_runs_a_script() {
    if !can_sandbox() || !has("npm") {
        return;
    }
    let code = r#"
set -e
mkdir greet app
echo '{"name":"greet","version":"1.0.0","main":"index.js","bin":{"greet":"bin.js"}}' > greet/package.json
echo 'module.exports = () => "greetings"' > greet/index.js
printf '#!/usr/bin/env node\nconsole.log(require("./index.js")())\n' > greet/bin.js
cd app
npm init --yes > /dev/null
npm install --offline --no-audit --no-fund --silent ../greet
echo 'console.log(require("greet")())' > start.js
npm pkg set scripts.start='greet && node start.js'
npm run --silent start
npm install --global --offline --no-audit --no-fund --silent ../greet
greet
"#;
    prints("bash", code, "greetings\ngreetings\ngreetings\n");
}

#[test]
fn git_keeps_history() {
    if !can_sandbox() || !has("git") {
        return;
    }
    let code = "
set -e
git init -q -b main repo && cd repo
git config user.name me && git config user.email me@example.org
echo one > file && git add . && git commit -qm first
echo two >> file && git diff --stat | tail -1
git commit -qam second && git log --format=%s
git clone -q . ../copy && git -C ../copy rev-list --count HEAD
git checkout -q -b side HEAD~1 && git merge -q --no-edit main && git status --short | wc -l
git gc -q && git fsck 2>&1 | wc -l
";
    let expected = " 1 file changed, 1 insertion(+)\nsecond\nfirst\n2\n0\n0\n";
    prints("bash", code, expected);
}

#[test]
fn gcc_compiles_and_what_it_made_runs() {
    if !can_sandbox() || !has("gcc") {
        return;
    }
    let code = r##"
set -e
cat > a.c <<'END'
#include <math.h>
#include <pthread.h>
#include <stdio.h>
static void *work(void *arg) { *(double *)arg = sqrt(2.0); return 0; }
int main(void) {
    double root; pthread_t thread;
    pthread_create(&thread, 0, work, &root);
    pthread_join(thread, 0);
    printf("%.3f\n", root);
    return 3;
}
END
gcc -O2 -Wall -o a a.c -lm -pthread
./a || echo "code $?"
"##;
    prints("bash", code, "1.414\ncode 3\n");
}

#[test]
fn bash_does_what_scripts_do() {
    let code = r#"
set -euo pipefail
cat <<< "here" | tr a-z A-Z
diff <(echo a) <(echo b) || true
for i in {1..3}; do echo -n "$i"; done; echo
trap 'echo bye' EXIT
mapfile -t lines < <(seq 3); echo "${#lines[@]}"
coproc cat; echo sent >&"${COPROC[1]}"; read -r got <&"${COPROC[0]}"; echo "$got"
tar cf - main.sh | tar tf -; find . -name '*.sh'; awk 'BEGIN { print 2 ^ 10 }'; sort <<< $'b\na'
(sleep 0.01; echo late) & wait $!; date -d @0 -u +%F; mktemp -p /tmp > /dev/null
"#;
    let expected = "HERE\n1c1\n< a\n---\n> b\n123\n3\nsent\nmain.sh\n./main.sh\n1024\na\nb\nlate\n\
        1970-01-01\nbye\n";
    prints("bash", code, expected);
}

#[test]
fn there_is_no_network_and_it_is_said_at_once() {
    if !can_sandbox() {
        return;
    }
    let code = "import socket\ntry: socket.getaddrinfo('example.org', 80)\n\
        except OSError as error: print(type(error).__name__)";
    assert_eq!(cloche(["run", "--timeout", "10", "-c", code]).printed(), "gaierror\n");
}
