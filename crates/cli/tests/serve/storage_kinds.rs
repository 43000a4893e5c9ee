//! Runs in: test. Connections to Azure and to Google: made, checked, mounted and used by programs.

use serde_json::{Value, json};

use crate::{
    emulators::{Azurite, GcsGateway},
    host::Host,
    moto::Moto,
    storage_connections::{operator, operator_json},
};

/// What every kind of store can do. Each line that is printed is one thing that works.
const PROGRAM: &str = r#"
import errno, os, zipfile
root = '/data/s'
def put(name, content):
    with open(f'{root}/{name}', 'wb') as file: file.write(content)
def get(name):
    with open(f'{root}/{name}', 'rb') as file: return file.read()
put('a.txt', b'one')
put('a.txt', b'second')
assert get('a.txt') == b'second'
print('replaced')
with open(f'{root}/a.txt', 'ab') as file: file.write(b' more')
assert get('a.txt') == b'second more'
print('appended')
os.mkdir(f'{root}/d')
put('d/b c+%.txt', b'x' * 100)
assert os.listdir(f'{root}/d') == ['b c+%.txt'] and sorted(os.listdir(root)) == ['a.txt', 'd']
assert os.stat(f'{root}/d/b c+%.txt').st_size == 100
print('listed')
os.replace(f'{root}/a.txt', f'{root}/d/moved')
assert get('d/moved') == b'second more' and not os.path.exists(f'{root}/a.txt')
print('renamed')
big = os.urandom(1 << 20) * 20
put('big', big)
assert get('big') == big
with open(f'{root}/big', 'r+b') as file: file.seek(5 << 20); file.write(b'middle')
assert get('big') == big[:5 << 20] + b'middle' + big[(5 << 20) + 6:]
print('in parts')
with zipfile.ZipFile(f'{root}/z.zip', 'w') as archive: archive.writestr('n', 'content')
assert zipfile.ZipFile(f'{root}/z.zip').read('n') == b'content'
print('zip')
os.unlink(f'{root}/big')
try: get('big')
except OSError as error: print(errno.errorcode[error.errno])
"#;

const PRINTED: &str = "replaced\nappended\nlisted\nrenamed\nin parts\nzip\nENOENT\n";

/// Two mounts write one object, of which one has seen the object before the other changed it.
const WRITERS: &str = r#"
import errno, os
def write_twice(size):
    open('/data/s/w', 'wb').write(b'first')
    file = os.open('/data/s/w', os.O_RDWR)
    os.write(file, b'm' * size)
    open('/data/t/w', 'wb').write(b'theirs')
    try: os.fsync(file)
    except OSError as error: print(errno.errorcode[error.errno])
    print(open('/data/t/w').read(), flush=True)
    os._exit(0)
"#;

/// Makes two connections to one place, named `s` and `t`.
fn make_connections(host: &Host, words: &[&str], secret: &str) {
    for name in ["s", "t"] {
        let create = ["storage", "create", name, "--allow-private-endpoint", "--prefix", "team"];
        operator_json(host, &[&create[..], words].concat(), secret);
        let bind = ["storage", "bind", name, "--sandbox", "default", "--read-write"];
        operator_json(host, &bind, "");
    }
}

/// Uses a connection named `s` with the prefix `team`, and looks at it again in another execution.
async fn use_connection(host: &Host) {
    let check = operator_json(host, &["storage", "check", "s"], "");
    assert_eq!((&check["ok"], check["steps"].as_array().unwrap().len()), (&json!(true), 4));
    let run = async |language: &str, code: &str, sub_paths: &[&str]| -> Value {
        let body = json!({"language": language, "code": code, "sub_paths": sub_paths});
        host.run(body).await.1
    };
    let answer = run("python", PROGRAM, &[]).await;
    assert_eq!(answer["stdout"], PRINTED, "{answer} {}", host.said("log"));
    let answer = run("bash", "cd /data/s; find . -type f | sort; cat d/moved", &[]).await;
    assert_eq!(answer["stdout"], "./d/b c+%.txt\n./d/moved\n./z.zip\nsecond more", "{answer}");
    let answer = run("bash", "ls /data/s", &["/data/s/team/d"]).await;
    assert_eq!(answer["stdout"], "b c+%.txt\nmoved\n", "{answer}");
    // Another way to the same objects: the later of two writers finds that the object was changed.
    for size in ["10", "9 << 20"] {
        let code = format!("{WRITERS}write_twice({size})");
        let answer = run("python", &code, &[]).await;
        assert_eq!(answer["stdout"], "ESTALE\ntheirs\n", "{answer} {}", host.said("log"));
    }
}

#[tokio::test]
async fn a_container_of_azure_is_checked_and_used() {
    let Some(azurite) = Azurite::start() else { return };
    let Some(host) = Host::start().await else { return };
    let place = ["--kind", "azure", "--bucket", "data", "--endpoint", &azurite.endpoint];
    let words = [&place[..], &["--account", Azurite::ACCOUNT, "--secret-file", "-"]].concat();
    // Another key is refused, and the sentence does not have it.
    let wrong = "d3Jvbmcta2V5";
    let create = ["storage", "create", "s", "--allow-private-endpoint"];
    let refused = operator(&host, &[&create[..], &words].concat(), wrong);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("refuses these credentials"), "{refused:?}");
    assert!(!refused.stderr.contains(wrong), "{refused:?}");
    make_connections(&host, &words, Azurite::KEY);
    use_connection(&host).await;
}

#[tokio::test]
async fn a_bucket_of_google_is_checked_and_used() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = Host::start().await else { return };
    let gateway = GcsGateway::start(&moto);
    let place = ["--kind", "gcs", "--bucket", "layers", "--endpoint", &gateway.endpoint];
    make_connections(&host, &place, "");
    use_connection(&host).await;
}
