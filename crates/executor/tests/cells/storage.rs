//! Runs in: test. Storage mounts in real cells: volumes, directories and buckets at `/data`.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_executor::{
    Executor, ExecutorConfig, MountStorageConfig, PoolSettings, RunError, RunIo,
};
use cloche_model::{
    ByteSize, KeyPrefix, Language, MountLimits, MountReport, MountSource, MountSpec,
    ObjectConnection, ObjectCredentials, ObjectStoreKind, RunEnding, RunOutcome, RunSpec, Secret,
    VolumeId,
};
use cloche_mounts::{ObjectPath, ObjectStorage, PutCondition, SystemAccess, VolumeStore};
use cloche_test_support::{eventually, moto::Moto, own_main::OwnTest, own_tests, processes};
use tokio::sync::{Barrier, mpsc};
use tokio_util::sync::CancellationToken;

use crate::host;

mod faulty_store;

use faulty_store::{Fault, FaultyStore};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    random_operations_on_a_volume_answer_as_on_a_plain_directory,
    real_programs_work_on_a_volume,
    real_programs_work_on_a_bucket,
    a_volume_is_full_at_its_quota_for_all_runs_together,
    files_deleted_while_open_count_until_they_are_closed,
    a_read_only_mount_refuses_every_change,
    a_mount_shows_only_its_sub_path,
    a_directory_is_mounted_in_parked_and_forked_cells,
    a_mount_that_cannot_be_made_ends_the_run_before_any_code,
    a_store_that_does_not_answer_ends_the_run_before_any_code,
    the_stores_of_a_run_are_asked_at_the_same_time,
    keys_without_a_name_are_hidden,
    of_two_writers_the_second_gets_estale,
    large_files_are_uploaded_in_parts_and_read_back,
    a_faulty_store_is_an_error_and_never_a_hang,
    a_store_that_dies_during_a_run_is_an_error,
    a_stopped_run_stores_nothing_and_ends_at_once,
    a_stopped_run_reports_what_it_has_transferred,
    a_mount_server_has_limits_of_its_own_and_for_buckets_an_id,
    a_file_that_is_left_open_is_stored_when_the_program_ends,
];

const RANDOM: &str = include_str!("storage/random_operations.py");
const PROGRAMS: &str = include_str!("storage/programs.py");

/// An executor with volumes in a temporary directory.
pub(crate) struct StorageHost {
    pub(crate) executor: Executor,
    volumes: VolumeStore,
    directory: tempfile::TempDir,
}

impl StorageHost {
    pub(crate) async fn start(pool: Option<PoolSettings>) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let volumes = VolumeStore::open(directory.path().join("volumes")).unwrap();
        let spool = directory.path().join("spool");
        let storage = MountStorageConfig::with_spool(volumes.clone(), spool).unwrap();
        let config = ExecutorConfig { storage, ..host::own_config(pool) };
        let executor = host::start_with(config).await?;
        Some(Self { executor, volumes, directory })
    }

    pub(crate) fn new_volume(&self, id: &str) -> VolumeId {
        let id: VolumeId = id.parse().unwrap();
        self.volumes.create(&id).unwrap();
        id
    }

    pub(crate) async fn run(&self, spec: RunSpec) -> RunOutcome {
        self.executor.run(spec, RunIo::default()).await.unwrap()
    }

    /// Runs a program that must succeed. Returns what it printed.
    pub(crate) async fn output(&self, spec: RunSpec) -> String {
        let outcome = self.run(spec).await;
        let (out, err) = (outcome.stdout.to_text_lossy(), outcome.stderr.to_text_lossy());
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{out}\n{err}");
        out
    }
}

pub(crate) fn python(code: &str, mounts: Vec<MountSpec>) -> RunSpec {
    RunSpec { mounts, ..RunSpec::new(Language::Python, code) }
}

fn bash(code: &str, mounts: Vec<MountSpec>) -> RunSpec {
    RunSpec { mounts, ..RunSpec::new(Language::Bash, code) }
}

pub(crate) fn mount(slug: &str, source: MountSource) -> MountSpec {
    let limits = MountLimits::default();
    MountSpec { slug: slug.parse().unwrap(), source, read_only: false, limits }
}

pub(crate) fn volume(slug: &str, id: &VolumeId, quota: u64) -> MountSpec {
    let source = MountSource::Volume {
        id: id.clone(),
        quota: ByteSize(quota),
        sub_path: KeyPrefix::default(),
    };
    mount(slug, source)
}

fn connection(endpoint: &str) -> ObjectConnection {
    ObjectConnection {
        kind: ObjectStoreKind::S3,
        endpoint: Some(endpoint.to_owned()),
        bucket: "layers".to_owned(),
        region: None,
        credentials: ObjectCredentials::AccessKey {
            id: "test".to_owned(),
            secret: Secret::new("test"),
            session_token: None,
        },
        allows_private_endpoint: true,
    }
}

pub(crate) fn bucket(slug: &str, endpoint: &str, prefix: &str) -> MountSpec {
    let prefix = prefix.parse().unwrap();
    mount(slug, MountSource::Objects { connection: connection(endpoint), prefix })
}

pub(crate) fn client(endpoint: &str, prefix: &str) -> ObjectStorage {
    let access = Arc::new(SystemAccess);
    ObjectStorage::connect(&connection(endpoint), prefix.parse().unwrap(), access).unwrap()
}

async fn put(storage: &ObjectStorage, path: &str, content: impl Into<Vec<u8>>) {
    let path = ObjectPath::parse(path).unwrap();
    let content: Vec<u8> = content.into();
    storage.put(&path, content.into(), &PutCondition::Always).await.unwrap();
}

async fn random_operations_on_a_volume_answer_as_on_a_plain_directory() {
    let Some(host) = StorageHost::start(None).await else { return };
    let id = host.new_volume("vol_random");
    let directory = host.directory.path().join("plain");
    fs::create_dir(&directory).unwrap();
    for seed in 0..6 {
        let mut spec = python(RANDOM, vec![volume("v", &id, 1 << 30)]);
        let plain = format!("/tmp/plain{seed}");
        let setup = format!("import os\nos.makedirs('{plain}'); os.makedirs('/data/v/{seed}')\n");
        spec.code = [setup.as_bytes(), RANDOM.as_bytes()].concat();
        for (name, value) in [
            ("ONE", format!("/data/v/{seed}")),
            ("TWO", plain),
            ("SEED", seed.to_string()),
            ("COUNT", "400".to_owned()),
        ] {
            spec.env.insert(name.to_owned(), value);
        }
        let printed = host.output(spec).await;
        assert!(printed.starts_with("same"), "seed {seed}: {printed}");
    }
    // What the ledger counts is what is there.
    let counted = host.volumes.usage(&id).unwrap();
    let (bytes, entries) = count(&host.directory.path().join("volumes/vol_random/files"));
    assert_eq!((counted.bytes, counted.entries), (bytes, entries));
    host.executor.stop().await;
}

/// The bytes of files and the number of entries below a directory.
fn count(directory: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let (mut bytes, mut entries) = (0, 0);
    let mut linked = std::collections::HashSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        entries += 1;
        let found = fs::symlink_metadata(entry.path()).unwrap();
        if found.is_dir() {
            let below = count(&entry.path());
            (bytes, entries) = (bytes + below.0, entries + below.1);
        } else if found.is_file() && linked.insert(found.ino()) {
            bytes += found.len();
        }
    }
    (bytes, entries)
}

async fn run_programs(host: &StorageHost, mount: MountSpec, links: bool) {
    let mut spec = python(PROGRAMS, vec![mount]);
    spec.env.insert("ROOT".to_owned(), "/data/p".to_owned());
    spec.env.insert("LINKS".to_owned(), if links { "1" } else { "0" }.to_owned());
    spec.limits.timeout = Duration::from_secs(180);
    let printed = host.output(spec).await;
    let failed: Vec<&str> = printed.lines().filter(|line| !line.starts_with("ok ")).collect();
    assert!(failed.is_empty() && printed.lines().count() >= 16, "{printed}");
}

async fn real_programs_work_on_a_volume() {
    let Some(host) = StorageHost::start(None).await else { return };
    let id = host.new_volume("vol_programs");
    run_programs(&host, volume("p", &id, 1 << 30), true).await;
    host.executor.stop().await;
}

async fn real_programs_work_on_a_bucket() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    run_programs(&host, bucket("p", &endpoint, "team/a"), false).await;
    // What was written is in the bucket, below the prefix, under the names of the files.
    let storage = client(&endpoint, "team/a");
    let (info, _) = storage.read(&ObjectPath::parse("u.bin").unwrap(), None, None).await.unwrap();
    assert_eq!(info.size, 300_000);
    let page = storage.list_page(&ObjectPath::parse("sub3").unwrap(), None).await.unwrap();
    assert_eq!(page.objects.len(), 1);
    host.executor.stop().await;
}

async fn a_volume_is_full_at_its_quota_for_all_runs_together() {
    let Some(host) = StorageHost::start(None).await else { return };
    let id = host.new_volume("vol_quota");
    let quota = 10 << 20;
    let code = "\
import errno, os, sys
name, wrote = sys.stdin.read().strip(), 0
with open(f'/data/v/{name}', 'wb', buffering=0) as f:
    try:
        while True:
            wrote += f.write(b'x' * 65536)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
print(wrote)
";
    let run = |name: &str| {
        let mut spec = python(code, vec![volume("v", &id, quota)]);
        spec.stdin = name.as_bytes().to_vec();
        host.output(spec)
    };
    let (one, two, three) = tokio::join!(run("a"), run("b"), run("c"));
    let wrote = |text: String| text.trim().parse::<u64>().unwrap();
    // Exact to the size of one write: a write that does not fit is refused as a whole.
    let total = wrote(one) + wrote(two) + wrote(three);
    assert!(total <= quota && total > quota - 65536, "{total}");
    assert_eq!(host.volumes.usage(&id).unwrap().bytes, total);
    let small = "\
import errno, os
free = os.statvfs('/data/v'); free = free.f_bfree * free.f_frsize
with open('/data/v/small', 'wb', buffering=0) as f:
    total = 0
    try:
        while True: total += f.write(b'y')
    except OSError as error: assert error.errno == errno.ENOSPC
for name in 'abc': os.unlink(f'/data/v/{name}')
open('/data/v/more', 'wb').write(b'z' * 100000)
os.truncate('/data/v/more', 50)
print(os.path.getsize('/data/v/small') < 65536, os.statvfs('/data/v').f_blocks * 4096)
";
    let printed = host.output(python(small, vec![volume("v", &id, quota)])).await;
    assert_eq!(printed, format!("True {quota}\n"));
    assert_eq!(host.volumes.usage(&id).unwrap().bytes, quota - total + 50);
    host.executor.stop().await;
}

async fn files_deleted_while_open_count_until_they_are_closed() {
    let Some(host) = StorageHost::start(None).await else { return };
    let id = host.new_volume("vol_open");
    let code = "\
import errno, os
f = open('/data/v/f', 'wb', buffering=0)
f.write(b'x' * 700000)
os.unlink('/data/v/f')
g = open('/data/v/g', 'wb', buffering=0)
try:
    g.write(b'x' * 700000)
    print('too much')
except OSError as error:
    print(errno.errorcode[error.errno])
f.close()
import time
for _ in range(500):
    try:
        print('then', g.write(b'x' * 700000))
        break
    except OSError:
        time.sleep(0.02)
";
    let printed = host.output(python(code, vec![volume("v", &id, 1 << 20)])).await;
    assert_eq!(printed, "ENOSPC\nthen 700000\n");
    assert_eq!(host.volumes.usage(&id).unwrap().bytes, 700_000);
    host.executor.stop().await;
}

async fn a_read_only_mount_refuses_every_change() {
    let Some(host) = StorageHost::start(None).await else { return };
    let id = host.new_volume("vol_ro");
    let quota = ByteSize::mib(1);
    host.volumes.write_file(&id, quota, "d/f.txt", &mut &b"hello"[..]).unwrap();
    let mut spec = volume("v", &id, 1 << 20);
    spec.read_only = true;
    let code = "cat /data/v/d/f.txt; cd /data/v; LC_ALL=C; for c in 'touch x' 'mkdir y' 'rm d/f.txt' \
                'mv d e' 'chmod 700 d' 'ln -s a b'; do $c 2>&1 | grep -c 'Read-only file system'; done";
    let printed = host.output(bash(code, vec![spec])).await;
    assert_eq!(printed, "hello1\n1\n1\n1\n1\n1\n");
    host.executor.stop().await;
}

async fn a_mount_shows_only_its_sub_path() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    let all = client(&endpoint, "");
    for key in ["users/1/in", "users/10/out", "users/1", "other/out"] {
        put(&all, key, "x").await;
    }
    let id = host.new_volume("vol_sub");
    for path in ["users/1/in", "users/10/out", "other/out"] {
        host.volumes.write_file(&id, ByteSize::mib(1), path, &mut &b"x"[..]).unwrap();
    }
    let mut narrowed = volume("v", &id, 1 << 20);
    narrowed.source =
        MountSource::Volume { id, quota: ByteSize::mib(1), sub_path: "users/1".parse().unwrap() };
    let mounts = vec![bucket("s", &endpoint, "users/1"), narrowed];
    let code = "\
import os
for root in ('/data/s', '/data/v'):
    print(os.listdir(root), open(root + '/in').read())
    for way in ('../10/out', '/../10/out', '..', '10/out', '%2e%2e/10/out'):
        try: print('SEEN', way, open(f'{root}/{way}').read())
        except OSError as error: assert error.errno in (2, 21), error
    open(root + '/made', 'w').write('y')
os.symlink('/etc/passwd', '/data/v/link')
os.symlink('../10/out', '/data/v/link2')
print(open('/data/v/link').read().startswith('root:x:0:0'), os.path.exists('/data/v/link2'))
";
    let printed = host.output(python(code, mounts)).await;
    assert_eq!(printed, "['in'] x\n['in'] x\nTrue False\n");
    assert!(all.head(&ObjectPath::parse("users/1/made").unwrap()).await.is_ok());
    host.executor.stop().await;
}

async fn a_directory_is_mounted_in_parked_and_forked_cells() {
    let Some(host) = StorageHost::start(Some(PoolSettings::default())).await else { return };
    let directory = host.directory.path().join("shown");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("f"), "content").unwrap();
    host.executor.prewarm_pool(
        Language::Python,
        &RunSpec::new(Language::Python, "").limits,
        &cloche_model::SandboxShape::default(),
    );
    for turn in 0..6 {
        let language = if turn % 2 == 0 { Language::Python } else { Language::Bash };
        let code = match language {
            Language::Python => {
                format!("print(open('/data/d/f').read()); open('/data/d/{turn}', 'w')")
            }
            _ => format!("cat /data/d/f; echo; touch /data/d/{turn}"),
        };
        let mounts = vec![mount("d", MountSource::Directory(directory.clone()))];
        let spec = RunSpec { mounts, ..RunSpec::new(language, code) };
        assert_eq!(host.output(spec).await, "content\n");
        assert!(directory.join(turn.to_string()).exists());
    }
    // Another run does not see it.
    assert_eq!(host.output(bash("ls -A /data", Vec::new())).await, "");
    host.executor.stop().await;
}

async fn a_mount_that_cannot_be_made_ends_the_run_before_any_code() {
    let Some(host) = StorageHost::start(None).await else { return };
    let missing: VolumeId = "vol_missing".parse().unwrap();
    let directory = host.directory.path().join("shown");
    fs::create_dir(&directory).unwrap();
    let mounts = vec![
        mount("d", MountSource::Directory(directory.clone())),
        volume("company-data", &missing, 1 << 20),
    ];
    let ended = host.executor.run(bash("touch /data/d/ran", mounts), RunIo::default()).await;
    let Err(error @ RunError::Storage { .. }) = ended else { panic!("{ended:?}") };
    let sentence = error.to_string();
    assert!(sentence.starts_with("storage mount \"company-data\" failed: "), "{sentence}");
    assert!(!directory.join("ran").exists());
    host.executor.wait_for_teardown().await;
    host.executor.stop().await;
}

async fn a_store_that_does_not_answer_ends_the_run_before_any_code() {
    let Some(host) = StorageHost::start(None).await else { return };
    let directory = host.directory.path().join("shown");
    fs::create_dir(&directory).unwrap();
    let mounts = |store: &FaultyStore| {
        let shown = mount("d", MountSource::Directory(directory.clone()));
        vec![shown, bucket("company-data", &store.endpoint, "")]
    };
    for (fault, expected) in [
        (Fault::Unavailable, "the storage could not be reached"),
        (Fault::Denied, "the storage refuses the credentials of the connection"),
        (Fault::Hangs, "the storage did not answer in time"),
    ] {
        let store = FaultyStore::start(fault).await;
        let began = Instant::now();
        // Many runs at once wait for one answer.
        let run = || host.executor.run(bash("touch /data/d/ran", mounts(&store)), RunIo::default());
        let (one, two) = tokio::join!(run(), run());
        for ended in [one, two] {
            let Err(error @ RunError::Storage { .. }) = ended else {
                panic!("{fault:?}: {ended:?}")
            };
            let sentence = format!("storage mount \"company-data\" failed: {expected}");
            assert_eq!(error.to_string(), sentence);
        }
        assert!(began.elapsed() < Duration::from_secs(14), "{fault:?}: {:?}", began.elapsed());
        assert!(!directory.join("ran").exists());
        // A failure is not remembered.
        store.set_fault(Fault::None);
        host.output(bash("touch /data/d/ran", mounts(&store))).await;
        fs::remove_file(directory.join("ran")).unwrap();
    }
    host.executor.stop().await;
}

async fn the_stores_of_a_run_are_asked_at_the_same_time() {
    let Some(host) = StorageHost::start(None).await else { return };
    // None of them answers before all of them were asked.
    let barrier = Arc::new(Barrier::new(3));
    let start = || FaultyStore::start_at(Fault::None, Arc::clone(&barrier));
    let stores = [start().await, start().await, start().await];
    let mounts = stores.iter().enumerate();
    let mounts = mounts.map(|(at, store)| bucket(&format!("s{at}"), &store.endpoint, "")).collect();
    assert_eq!(host.output(bash("ls /data | tr '\\n' ' '", mounts)).await, "s0 s1 s2 ");
    host.executor.stop().await;
}

async fn keys_without_a_name_are_hidden() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    let long = "y".repeat(256);
    let odd = [
        "p/ok",
        "p/%2E%2E%2Fx",
        "p/a%2F%2Fb",
        "p/.",
        "p/c%01d",
        "p/dir",
        "p/dir/in",
        &format!("p/{long}"),
    ];
    for key in odd {
        put_raw(&moto.address, key).await;
    }
    let code = "\
import os
print(sorted(os.listdir('/data/s')), os.path.isdir('/data/s/dir'), os.listdir('/data/s/dir'))
for name in ('a', 'nul'): print(os.path.exists('/data/s/' + name))
for name, error in (('y' * 256, 36), ('new\\n', 22), (b'\\xff', 84)):
    try:
        at = name if isinstance(name, bytes) else name.encode()
        open(b'/data/s/' + at, 'w'); print('made', name)
    except OSError as found: print(found.errno == error, found.errno)
";
    let printed = host.output(python(code, vec![bucket("s", &endpoint, "p")])).await;
    let expected = "['dir', 'ok'] True ['in']\nTrue\nFalse\nTrue 36\nTrue 22\nTrue 84\n";
    // The directory `a` exists, because a key below it does; that key has no name.
    assert_eq!(printed.replace("['a', 'dir', 'ok']", "['dir', 'ok']"), expected);
    host.executor.stop().await;
}

/// Puts an object with a key that no client library of ours would send.
async fn put_raw(address: &str, encoded_key: &str) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "PUT /layers/{encoded_key} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 1\r\n\
         Connection: close\r\n\r\nx"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{encoded_key}: {answer}");
}

async fn of_two_writers_the_second_gets_estale() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    let storage = client(&endpoint, "w");
    put(&storage, "f", "first").await;
    let (ready, go) = (host.directory.path().join("ready"), host.directory.path().join("go"));
    fs::create_dir(&ready).unwrap();
    fs::create_dir(&go).unwrap();
    let code = "\
import errno, os, time
f = open('/data/s/f', 'r+b', buffering=0)
r = open('/data/s/g', 'rb', buffering=0) if os.path.exists('/data/s/g') else None
f.write(b'mine')
open('/data/ready/1', 'w').close()
while not os.path.exists('/data/go/1'): time.sleep(0.02)
try:
    os.fsync(f.fileno()); print('stored')
except OSError as error: print(errno.errorcode[error.errno])
os._exit(0)
";
    let mounts = vec![
        bucket("s", &endpoint, "w"),
        mount("ready", MountSource::Directory(ready.clone())),
        mount("go", MountSource::Directory(go.clone())),
    ];
    let run = host.output(python(code, mounts));
    let change = async {
        while !ready.join("1").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        put(&storage, "f", "theirs").await;
        fs::write(go.join("1"), "").unwrap();
    };
    let (printed, ()) = tokio::join!(run, change);
    assert_eq!(printed, "ESTALE\n");
    let (info, _) = storage.read(&ObjectPath::parse("f").unwrap(), None, None).await.unwrap();
    assert_eq!(info.size, 6, "the other writer's object is there");
    host.executor.stop().await;
}

async fn large_files_are_uploaded_in_parts_and_read_back() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    let code = "\
import hashlib, os
data = os.urandom(1 << 20) * 30 + b'end'
with open('/data/s/big', 'wb') as f: f.write(data)
want = hashlib.sha256(data).hexdigest()
print(hashlib.sha256(open('/data/s/big', 'rb').read()).hexdigest() == want)
with open('/data/s/big', 'rb') as f:
    f.seek(-3, 2); print(f.read()); f.seek(20 << 20); print(f.read(10) == data[20 << 20:][:10])
with open('/data/s/big', 'ab') as f: f.write(b'more')
print(os.path.getsize('/data/s/big') == len(data) + 4)
";
    let mut spec = python(code, vec![bucket("s", &endpoint, "big")]);
    spec.limits.timeout = Duration::from_secs(120);
    let outcome = host.run(spec).await;
    let printed = outcome.stdout.to_text_lossy();
    assert_eq!(printed, "True\nb'end'\nTrue\nTrue\n", "{}", outcome.stderr.to_text_lossy());
    let report = &outcome.mounts[0];
    assert_eq!(report.slug.as_str(), "s");
    assert_eq!(report.bytes_written, 2 * ((30 << 20) + 3) + 4);
    assert!(report.bytes_read >= 30 << 20 && report.errors == 0, "{report:?}");
    host.executor.stop().await;
}

async fn a_faulty_store_is_an_error_and_never_a_hang() {
    let Some(host) = StorageHost::start(None).await else { return };
    let code = "\
import errno, os, time
began = time.monotonic()
def attempt(what):
    try: return what()
    except OSError as error: return errno.errorcode[error.errno]
print(attempt(lambda: len(os.listdir('/data/s'))), attempt(lambda: len(open('/data/s/data.bin', 'rb').read())))
print(time.monotonic() - began < 75)
";
    for (fault, expected) in [
        (Fault::None, "1 3145728"),
        (Fault::Unavailable, "EIO EIO"),
        (Fault::Hangs, "ETIMEDOUT ETIMEDOUT"),
        (Fault::Lies, "1 EIO"),
        (Fault::Drops, "1 EIO"),
        (Fault::EndlessListing, "EIO 3145728"),
        (Fault::ChangingTag, "1 ESTALE"),
        (Fault::Denied, "EACCES EACCES"),
        (Fault::Slow, "1 ETIMEDOUT"),
    ] {
        // The store fails after it has answered: one that fails before is not mounted.
        let store = FaultyStore::start(Fault::None).await;
        assert_eq!(host.output(python("", vec![bucket("s", &store.endpoint, "")])).await, "");
        store.set_fault(fault);
        let mut spec = python(code, vec![bucket("s", &store.endpoint, "")]);
        spec.limits.timeout = Duration::from_secs(150);
        let outcome = host.run(spec).await;
        let printed = outcome.stdout.to_text_lossy().to_string();
        let err = outcome.stderr.to_text_lossy();
        assert_eq!(printed, format!("{expected}\nTrue\n"), "{fault:?} {err} {:?}", outcome.mounts);
    }
    host.executor.stop().await;
}

async fn a_store_that_dies_during_a_run_is_an_error() {
    let Some(host) = StorageHost::start(None).await else { return };
    let store = FaultyStore::start(Fault::None).await;
    let go = host.directory.path().join("go");
    fs::create_dir(&go).unwrap();
    let code = "\
import errno, os, time
f = open('/data/s/data.bin', 'rb', buffering=0)
print(len(f.read(1000)))
open('/data/go/ready', 'w').close()
while not os.path.exists('/data/go/dead'): time.sleep(0.02)
try: f.seek(2500000); f.read(100); print('read')
except OSError as error: print(errno.errorcode[error.errno])
print('goes on')
";
    let mounts =
        vec![bucket("s", &store.endpoint, ""), mount("go", MountSource::Directory(go.clone()))];
    let run = host.run(python(code, mounts));
    let kill = async {
        while !go.join("ready").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        store.set_fault(Fault::Unavailable);
        fs::write(go.join("dead"), "").unwrap();
    };
    let (outcome, ()) = tokio::join!(run, kill);
    assert_eq!(outcome.stdout.to_text_lossy(), "1000\nEIO\ngoes on\n");
    assert_eq!(outcome.ending, RunEnding::Exited(0));
    assert!(outcome.mounts[0].errors > 0 && outcome.mounts[0].first_error.is_some());
    host.executor.stop().await;
}

async fn a_stopped_run_stores_nothing_and_ends_at_once() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    // One program waits for a store that never answers, which no signal interrupts; the other has
    // written half a file.
    let store = FaultyStore::start(Fault::None).await;
    assert_eq!(host.output(python("", vec![bucket("h", &store.endpoint, "")])).await, "");
    store.set_fault(Fault::Hangs);
    let code = "\
import os, threading, time
threading.Thread(target=lambda: os.listdir('/data/h')).start()
f = open('/data/s/partial', 'wb', buffering=0)
f.write(b'half')
time.sleep(100)
";
    let mounts = vec![bucket("s", &endpoint, "t"), bucket("h", &store.endpoint, "")];
    let mut spec = python(code, mounts);
    spec.limits.timeout = Duration::from_secs(2);
    let began = Instant::now();
    let outcome = host.run(spec).await;
    assert_eq!(outcome.ending, RunEnding::TimedOut);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    host.executor.wait_for_teardown().await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let path = ObjectPath::parse("partial").unwrap();
    assert!(client(&endpoint, "t").head(&path).await.is_err());
    host.executor.stop().await;
}

/// The mount servers below this process: their pids.
fn mount_servers() -> Vec<u32> {
    let names = |pid: u32| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
    };
    let below = processes::below(std::process::id()).into_iter().map(|(pid, _)| pid);
    below.filter(|pid| names(*pid).any(|name| name == "mount\n")).collect()
}

async fn a_mount_server_has_limits_of_its_own_and_for_buckets_an_id() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    let id = host.new_volume("vol_limits");
    let server = rustix::process::getuid().as_raw();
    for (mount, is_own) in [(bucket("s", &endpoint, "t"), true), (volume("v", &id, 1000), false)] {
        let (output, mut lines) = mpsc::channel(16);
        let cancel = CancellationToken::new();
        let io = RunIo { output: Some(output), cancel: cancel.clone(), ..RunIo::default() };
        // A mount server has no threads before its mount is used.
        let code = "import os, time\nos.listdir('/data/' + os.listdir('/data')[0])\n\
                    print('up', flush=True)\ntime.sleep(100)";
        let running = host.executor.run(python(code, vec![mount]), io);
        let looking = async {
            lines.recv().await.unwrap();
            let [pid] = mount_servers()[..] else { panic!("{:?}", mount_servers()) };
            let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
            let status = read("status");
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_whitespace().nth(1).unwrap().to_owned()
            };
            let user: u32 = field("Uid:").parse().unwrap();
            assert_eq!(user != server, is_own && server == 0, "{status}");
            assert_eq!((&*field("CapEff:"), &*field("NoNewPrivs:")), ("0000000000000000", "1"));
            // The last filter takes away the calls with which it has confined itself.
            let filters: u32 = field("Seccomp_filters:").parse().unwrap();
            assert!(field("Seccomp:") == "2" && filters >= 3, "{status}");
            let parent = fs::read_to_string(format!("/proc/{}/cgroup", field("PPid:"))).unwrap();
            assert_ne!(read("cgroup"), parent);
            cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(running, looking);
        assert_eq!(outcome.unwrap().ending, RunEnding::Cancelled);
        host.executor.wait_for_teardown().await;
        eventually("the mount server is gone", async || mount_servers().is_empty()).await;
    }
    host.executor.stop().await;
}

async fn a_stopped_run_reports_what_it_has_transferred() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    put(&client(&endpoint, "t"), "in", vec![7; 5000]).await;
    let id = host.new_volume("vol_stopped");
    let code = "\
import time
data = open('/data/s/in', 'rb').read()
open('/data/s/out', 'wb').write(data[:100])
open('/data/v/copy', 'wb').write(data)
print('copied', flush=True)
time.sleep(100)
";
    for by_cancel in [false, true] {
        let mut spec = python(code, vec![bucket("s", &endpoint, "t"), volume("v", &id, 1 << 20)]);
        let (output, mut lines) = mpsc::channel(16);
        let cancel = CancellationToken::new();
        let io = RunIo { output: Some(output), cancel: cancel.clone(), ..RunIo::default() };
        // The timeout is long enough for the copies on a busy machine.
        spec.limits.timeout = Duration::from_secs(if by_cancel { 100 } else { 10 });
        let running = host.executor.run(spec, io);
        let stopping = async {
            lines.recv().await.unwrap();
            if by_cancel {
                cancel.cancel();
            }
        };
        let (outcome, ()) = tokio::join!(running, stopping);
        let outcome = outcome.unwrap();
        let expected = if by_cancel { RunEnding::Cancelled } else { RunEnding::TimedOut };
        assert_eq!(outcome.ending, expected);
        let counts = |at: usize| {
            let MountReport { bytes_read, bytes_written, errors, .. } = outcome.mounts[at];
            (bytes_read, bytes_written, errors)
        };
        assert_eq!((counts(0), counts(1)), ((5000, 100, 0), (0, 5000, 0)));
    }
    host.executor.stop().await;
}

async fn a_file_that_is_left_open_is_stored_when_the_program_ends() {
    let Some(moto) = Moto::start() else { return };
    let pool = Some(PoolSettings::default());
    let Some(host) = StorageHost::start(pool).await else { return };
    let endpoint = format!("http://{}", moto.address);
    let code = "\
import mmap, os
fd = os.open('/data/s/raw', os.O_CREAT | os.O_RDWR)
os.write(fd, b'x' * 5000)
m = mmap.mmap(fd, 5000)
m[0:4] = b'MMAP'
keep = open('/data/s/object', 'w'); keep.write('text')
";
    let storage = client(&endpoint, "o");
    for _ in 0..3 {
        host.output(python(code, vec![bucket("s", &endpoint, "o")])).await;
        let path = ObjectPath::parse("raw").unwrap();
        let (info, mut body) = storage.read(&path, None, None).await.unwrap();
        let first = futures::StreamExt::next(&mut body).await.unwrap().unwrap();
        assert_eq!((info.size, &first[..4]), (5000, &b"MMAP"[..]));
        let info = storage.head(&ObjectPath::parse("object").unwrap()).await.unwrap();
        assert_eq!(info.size, 4);
        storage.delete(&path).await.unwrap();
    }
    host.executor.stop().await;
}
