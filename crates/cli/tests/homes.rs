//! Homes of threads on the real executor: what one run leaves is what the next one finds.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]

use std::{
    collections::BTreeSet,
    io::Write,
    os::unix::fs::chown,
    path::Path,
    process::{Command, Stdio},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunError, RunIo};
use cloche_layers::{LayerBounds, Layers, LayersConfig, StoreConfig};
use cloche_model::{
    ByteSize, FileName, HomeQuota, InputFile, Language, LayerDigest, RunEnding, RunLimits,
    RunOutcome, RunSpec, SandboxShape, ThreadHome,
};
use proptest::{collection::vec, prelude::*};
use serde::Serialize;
use tempfile::TempDir;

#[path = "support/cloche.rs"]
mod support;

use support::{binary, skip};

/// An executor that keeps homes in a directory of its own.
struct Host {
    executor: Executor,
    layers: Layers,
    _dir: TempDir,
}

impl Host {
    async fn start(cache: ByteSize, pool: Option<PoolSettings>) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let config = LayersConfig {
            dir: dir.path().join("layers"),
            store: StoreConfig::Local,
            cache_bytes: cache,
            bounds: LayerBounds::default(),
        };
        let layers = Layers::open(config).await.unwrap();
        let mut config = ExecutorConfig { pool, ..ExecutorConfig::with_program(binary()) };
        config.unpacked_layers = Some(layers.cache_dir().to_owned());
        config.layers = Some(layers.clone());
        match Executor::start(config).await {
            Ok(executor) => Some(Self { executor, layers, _dir: dir }),
            Err(error) => {
                skip(&error.to_string());
                None
            }
        }
    }

    async fn run(&self, spec: RunSpec) -> RunOutcome {
        self.executor.run(spec, RunIo::default()).await.unwrap()
    }
}

/// A thread: its layers so far.
#[derive(Default)]
struct Thread {
    layers: Vec<LayerDigest>,
}

impl Thread {
    async fn run(&mut self, host: &Host, spec: RunSpec) -> RunOutcome {
        let room = HomeQuota { bytes: ByteSize::mib(64), inodes: 10_000 };
        let home = Some(ThreadHome { layers: self.layers.clone(), room });
        let outcome = host.run(RunSpec { home, ..spec }).await;
        self.layers.extend(outcome.written.layer.clone().map(|layer| layer.digest));
        outcome
    }

    async fn bash(&mut self, host: &Host, code: &str) -> String {
        let outcome = self.run(host, RunSpec::new(Language::Bash, code)).await;
        assert_eq!(
            outcome.ending,
            RunEnding::Exited(0),
            "{code}: {}",
            outcome.stderr.to_text_lossy()
        );
        outcome.stdout.to_text_lossy()
    }
}

#[derive(Clone, Debug, Serialize)]
struct Step {
    act: &'static str,
    on: u16,
    into: u16,
    name: &'static str,
    seed: u16,
    at: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Call {
    steps: Vec<Step>,
    dies: bool,
    #[serde(skip)]
    squash: bool,
}

const NAMES: [&str; 7] = ["a", "b", "c d", "\u{e9}", ".wh.a", ".wh..wh..opq", "new\nline"];
const ACTS: [&str; 15] = [
    "write",
    "write",
    "directory",
    "directory",
    "append",
    "append",
    "link",
    "link",
    "link",
    "sparse",
    "remove",
    "rename",
    "rename",
    "symlink",
    "mode",
];

fn call() -> impl Strategy<Value = Call> {
    let step = (0..=ACTS.len(), any::<u16>(), any::<u16>(), 0..NAMES.len(), any::<u16>());
    let steps = vec(step, 1..10).prop_map(|steps| {
        let number = |(at, (act, on, into, name, seed)): (usize, _)| {
            let act = ACTS.get::<usize>(act).copied().unwrap_or("attribute");
            let name: usize = name;
            Step { act, on, into, name: NAMES[name], seed, at: 1_000_000_000_000 + at as u64 * 7 }
        };
        steps.into_iter().enumerate().map(number).collect()
    });
    (steps, prop::bool::weighted(0.15), prop::bool::weighted(0.2))
        .prop_map(|(steps, dies, squash)| Call { steps, dies, squash })
}

const WORK: &str = include_str!("homes/work.py");
const DUMP: &str = include_str!("homes/dump.py");

/// Runs a program in a plain directory, as an ordinary user.
fn bare(directory: &Path, code: &str, input: &[u8]) -> String {
    let mut child = Command::new("setpriv")
        .args(["--reuid=12345", "--regid=12345", "--clear-groups", "/usr/bin/python3", "-c", code])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// A thread and a plain directory in which the same is done.
async fn live(host: &Host, calls: &[Call]) {
    let plain = tempfile::tempdir().unwrap();
    chown(plain.path(), Some(12345), Some(12345)).unwrap();
    let mut thread = Thread::default();
    for call in calls {
        let input = serde_json::to_vec(call).unwrap();
        let spec = RunSpec { stdin: input.clone(), ..RunSpec::new(Language::Python, WORK) };
        let outcome = thread.run(host, spec).await;
        let wanted = if call.dies { RunEnding::Signalled(9) } else { RunEnding::Exited(0) };
        assert_eq!(outcome.ending, wanted, "{}", outcome.stderr.to_text_lossy());
        bare(plain.path(), WORK, &input);
        let found = thread.run(host, RunSpec::new(Language::Python, DUMP)).await;
        assert_eq!(found.ending, RunEnding::Exited(0), "{}", found.stderr.to_text_lossy());
        assert_eq!(found.written.layer, None, "looking writes nothing");
        let (found, wanted) =
            (lines(&found.stdout.to_text_lossy()), lines(&bare(plain.path(), DUMP, b"")));
        let more: Vec<_> = found.difference(&wanted).collect();
        let less: Vec<_> = wanted.difference(&found).collect();
        assert!(more.is_empty() && less.is_empty(), "more {more:#?}, less {less:#?}");
        if call.squash {
            let squashed = host.layers.squash_stack(&thread.layers).await.unwrap();
            thread.layers = squashed.map(|stored| stored.layer.digest).into_iter().collect();
        }
    }
}

#[test]
fn a_home_is_like_a_plain_directory_over_many_runs() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Hardly any layer stays unpacked that is not in use.
    let pool = Some(PoolSettings::default());
    let Some(host) = runtime.block_on(Host::start(ByteSize::kib(16), pool)) else { return };
    host.executor.prewarm_pool(Language::Python, &RunLimits::default(), &SandboxShape::default());
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() };
    proptest!(config, |(calls in vec(call(), 1..7))| {
        runtime.block_on(live(&host, &calls));
    });
    runtime.block_on(host.executor.stop());
}

#[tokio::test]
async fn what_is_in_the_home_survives_and_nothing_else_does() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let mut thread = Thread::default();
    thread
        .bash(
            &host,
            "mkdir -p p/q; echo one > p/q/f; ln p/q/f hard; touch -d @77 hard /tmp/gone; mkdir e",
        )
        .await;
    thread.bash(&host, "mv p moved; rmdir e; chmod 500 moved/q").await;
    let seen = thread
        .bash(&host, "ls -A; cat moved/q/f; stat -c %a moved/q; stat -c '%Y %h' hard; ls /tmp")
        .await;
    assert_eq!(seen, "hard\nmain.sh\nmoved\none\n500\n77 2\n");
    let unchanged = thread.run(&host, RunSpec::new(Language::Bash, "cat hard")).await;
    assert_eq!(unchanged.written.layer, None, "nothing written, nothing stored");
    host.executor.stop().await;
}

#[tokio::test]
async fn a_file_with_several_names_stays_one_file() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let mut thread = Thread::default();
    let make = "mkdir d e; echo one > a; for n in b d/c e/x; do ln a $n; done; ln -s a s; ln s d/s";
    thread.bash(&host, make).await;
    let changed = "echo two >> b; chmod 640 a; mv e f; touch -hd @77 s; cat a d/c f/x; rm b";
    assert_eq!(thread.bash(&host, changed).await, "one\ntwo\n".repeat(3));
    let look = "cat a d/c f/x; stat -c '%a %h' a; stat -c %Y s d/s; \
        [ a -ef d/c ] && [ a -ef f/x ] && echo one file";
    let seen = format!("{}640 3\n77\n77\none file\n", "one\ntwo\n".repeat(3));
    assert_eq!(thread.bash(&host, look).await, seen);
    // Under the one name that is removed in the same call.
    thread.bash(&host, "echo three >> a; rm a").await;
    assert_eq!(thread.bash(&host, "cat d/c").await, "one\ntwo\nthree\n");
    thread.bash(&host, "chmod 600 f/x; rm f/x").await;
    assert_eq!(thread.bash(&host, "stat -c %a d/c").await, "600\n");
    host.executor.stop().await;
}

#[tokio::test]
async fn losing_one_of_several_names_or_a_mode_copies_no_content() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let mut thread = Thread::default();
    let make = "head -c 3M /dev/urandom > big; ln big other; cp big single; sha256sum big";
    let sum = thread.bash(&host, make).await;
    // In a home that has no room for another copy.
    let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 50 };
    let run = async |layers: &[LayerDigest], code: &str| {
        let home = Some(ThreadHome { layers: layers.to_vec(), room });
        let outcome = host.run(RunSpec { home, ..RunSpec::new(Language::Bash, code) }).await;
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{}", outcome.stderr.to_text_lossy());
        outcome.written.layer.unwrap()
    };
    let removed = run(&thread.layers, "rm other").await;
    assert!(removed.bytes.bytes() < 10_000, "{removed:?}");
    let moded = run(&thread.layers, "chmod 600 big; mv single moved").await;
    thread.layers.push(moded.digest);
    let seen = thread.bash(&host, "sha256sum < other; sha256sum < moved; stat -c %a other").await;
    let sum = sum.split(' ').next().unwrap();
    assert_eq!(seen, format!("{sum}  -\n{sum}  -\n600\n"));
    host.executor.stop().await;
}

#[tokio::test]
async fn the_home_itself_keeps_its_mode_time_and_attributes() {
    let Some(host) = Host::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
        return;
    };
    let mut thread = Thread::default();
    let mark = "import os; os.setxattr('.', 'user.mark', b'home')";
    let marked = thread.run(&host, RunSpec::new(Language::Python, mark)).await;
    assert!(marked.written.layer.is_some(), "an attribute of the home is worth a layer");
    thread.bash(&host, "echo kept > file; touch -d @77 .").await;
    let look = "import os; s = os.stat('.'); \
        print(os.getxattr('.', 'user.mark').decode(), oct(s.st_mode), int(s.st_mtime))";
    let seen = thread.run(&host, RunSpec::new(Language::Python, look)).await;
    assert_eq!(seen.stdout.to_text_lossy(), "home 0o40755 77\n", "{}", seen.stderr.to_text_lossy());
    assert_eq!(seen.written.layer, None);
    for (mode, in_the_run) in [("500", "500"), ("000", "100"), ("1700", "1700")] {
        let changed =
            thread.run(&host, RunSpec::new(Language::Bash, format!("chmod {mode} ."))).await;
        assert!(changed.written.layer.is_some(), "{mode}");
        let seen = thread.bash(&host, "stat -c %a .; cat file").await;
        assert_eq!(seen, format!("{in_the_run}\nkept\n"));
        let squashed = host.layers.squash_stack(&thread.layers).await.unwrap().unwrap();
        let kept = squashed.index.get(b"").unwrap();
        assert_eq!(format!("{:03o}", kept.mode), mode, "what the thread keeps");
        thread.layers = vec![squashed.layer.digest];
        // Through a run that changes something else.
        thread.bash(&host, "[ ! -w . ] || echo more >> other; echo kept > file").await;
        let kept = host.layers.load_index(thread.layers.last().unwrap()).await.unwrap();
        assert_eq!(format!("{:03o}", kept.get(b"").unwrap().mode), mode, "after another run");
    }
    host.executor.stop().await;
}

#[tokio::test]
async fn a_directory_can_be_renamed_however_deep_it_lies() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let mut thread = Thread::default();
    let down = "n=$(printf 'x%.0s' $(seq 200)); for i in $(seq 25); do mkdir -p $n; cd $n; done";
    thread
        .bash(&host, &format!("{down}; mkdir -p before/inner; echo deep > before/inner/file"))
        .await;
    thread.bash(&host, &format!("{down}; mv before after; mv after/inner after/again")).await;
    thread.bash(&host, &format!("{down}; mv after/again after/last")).await;
    assert_eq!(
        thread.bash(&host, &format!("{down}; ls; cat after/last/file")).await,
        "after\ndeep\n"
    );
    host.executor.stop().await;
}

#[tokio::test]
async fn attributes_that_a_home_cannot_keep_are_not_lost_in_silence() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let mut thread = Thread::default();
    let most = "import os; open('f', 'w'); os.setxattr('f', 'user.a', b'a' * 3500); os.mkdir('d')
for i in range(60): os.setxattr('d', f'user.{i}', b'b' * 30)";
    let kept = thread.run(&host, RunSpec::new(Language::Python, most)).await;
    assert!(!kept.written.quota_exceeded, "{kept:?}");
    let look = "import os; os.rename('d', 'e'); print(len(os.getxattr('f', 'user.a')), len(os.listxattr('e')))";
    let seen = thread.run(&host, RunSpec::new(Language::Python, look)).await;
    assert_eq!(seen.stdout.to_text_lossy(), "3500 60\n", "{}", seen.stderr.to_text_lossy());
    let seen = thread
        .run(&host, RunSpec::new(Language::Python, "import os; print(len(os.listxattr('e')))"))
        .await;
    assert_eq!(seen.stdout.to_text_lossy(), "60\n", "{}", seen.stderr.to_text_lossy());
    let more = "import os; os.setxattr('f', 'user.b', b'b' * 200)";
    let lost = thread.run(&host, RunSpec::new(Language::Python, more)).await;
    assert_eq!(lost.ending, RunEnding::Exited(0));
    assert!(lost.written.quota_exceeded, "{lost:?}");
    host.executor.stop().await;
}

/// Makes a wheel by hand, so that nothing is needed from a network.
const WHEEL: &str = r#"
python3 - <<'END'
import zipfile
with zipfile.ZipFile("greet-1.0-py3-none-any.whl", "w") as wheel:
    info = "greet-1.0.dist-info/"
    wheel.writestr("greet.py", "def greet(): return 'hello from a wheel'\n")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
END
pip install --user --no-index --quiet ./greet-1.0-py3-none-any.whl && rm greet-1.0-py3-none-any.whl
"#;

#[tokio::test]
async fn what_pip_and_npm_install_is_there_in_the_next_call() {
    let Some(host) = Host::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
        return;
    };
    let mut thread = Thread::default();
    thread.bash(&host, WHEEL).await;
    let code = "import greet; print(greet.greet())";
    let imported = thread.run(&host, RunSpec::new(Language::Python, code)).await;
    assert_eq!(
        imported.stdout.to_text_lossy(),
        "hello from a wheel\n",
        "{}",
        imported.stderr.to_text_lossy()
    );
    let package = "mkdir dep && cd dep && echo '{\"name\":\"dep\",\"version\":\"1.0.0\"}' > package.json \
        && echo 'module.exports = 42' > index.js && npm pack --silent && cd .. \
        && npm install --offline --silent --no-audit ./dep/dep-1.0.0.tgz && rm -r dep";
    thread.bash(&host, package).await;
    let required =
        thread.run(&host, RunSpec::new(Language::Node, "console.log(require('dep'))")).await;
    assert_eq!(required.stdout.to_text_lossy(), "42\n", "{}", required.stderr.to_text_lossy());
    host.executor.stop().await;
}

#[tokio::test]
async fn what_a_run_wrote_is_named_also_without_a_thread() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let input = |name: &str| InputFile {
        name: FileName::try_from(name.to_owned()).unwrap(),
        content: b"input".to_vec(),
    };
    let code =
        "mkdir d; head -c 3000 /dev/zero > d/out.bin; echo more >> changed; chmod 000 d/out.bin";
    let spec = RunSpec {
        files: vec![input("left"), input("changed")],
        ..RunSpec::new(Language::Bash, code)
    };
    let written = host.run(spec.clone()).await.written;
    let files: Vec<_> = written.files.iter().map(|file| (file.name.as_str(), file.size)).collect();
    assert_eq!(files, [("changed", 10), ("d/out.bin", 3000)]);
    let mut thread = Thread::default();
    let named = thread.run(&host, spec).await.written.files;
    assert_eq!(named.len(), 2, "inputs that were left alone are not named: {named:?}");
    assert_eq!(thread.bash(&host, "cat left").await, "input", "but they are the thread's now");
    let quiet = host.run(RunSpec::new(Language::Python, "print(1)")).await;
    assert_eq!(quiet.written, Default::default());
    host.executor.stop().await;
}

#[tokio::test]
async fn of_what_a_run_without_a_thread_wrote_a_part_is_kept_and_said_to_be_one() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let code = "head -c 33M /dev/zero > big; ln big z-link; echo small > small; echo x > $'odd\\xff'; \
        for i in 1 2 3 4; do head -c 30M /dev/zero > d$i; done; \
        truncate -s 1G hole; echo end >> hole";
    let limits =
        RunLimits { disk: ByteSize::mib(400), memory: ByteSize::gib(1), ..RunLimits::default() };
    let written = host.run(RunSpec { limits, ..RunSpec::new(Language::Bash, code) }).await.written;
    let files = written.files.iter().map(|it| (it.name.as_str(), it.size >> 20, it.truncated));
    let expected = [
        ("big", 33, true),
        ("d1", 30, false),
        ("d2", 30, false),
        ("d3", 30, false),
        ("d4", 30, true),
        ("hole", 1024, true),
        (r"odd\xFF", 0, true),
        ("small", 0, true),
        ("z-link", 33, true),
    ];
    assert_eq!(files.collect::<Vec<_>>(), expected);
    let layer = written.layer.unwrap();
    assert_eq!(layer.bytes, ByteSize::mib(128));
    let index = host.layers.load_index(&layer.digest).await.unwrap();
    let kept: Vec<u64> = index.files().map(|(_, size)| size >> 20).collect();
    assert_eq!(kept, [32, 30, 30, 30, 6, 0, 0, 0, 32]);
    host.executor.stop().await;
}

#[tokio::test]
async fn a_home_that_is_full_says_so_and_can_be_cleared() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 50 };
    let run = async |layers: &[LayerDigest], code: &str| {
        let home = Some(ThreadHome { layers: layers.to_vec(), room });
        host.run(RunSpec { home, ..RunSpec::new(Language::Bash, code) }).await
    };
    let full = run(&[], "head -c 5M /dev/zero > big").await;
    assert!(
        full.stderr.to_text_lossy().contains("No space left"),
        "{}",
        full.stderr.to_text_lossy()
    );
    assert!(full.written.quota_exceeded);
    let layer = full.written.layer.unwrap().digest;
    let cleared = run(&[layer], "rm big && echo cleared").await;
    assert_eq!(cleared.stdout.to_text_lossy(), "cleared\n");
    assert!(!cleared.written.quota_exceeded);
    let deep = "mkdir d; cd d; echo kept > ~/kept; for i in $(seq 90); do \
        n=$(printf 'x%.0s' $(seq 200)); mkdir $n && cd $n || exit 1; done";
    let deep = host
        .run(RunSpec {
            home: Some(ThreadHome { layers: Vec::new(), room: HomeQuota { inodes: 1000, ..room } }),
            ..RunSpec::new(Language::Bash, deep)
        })
        .await;
    assert!(deep.written.files.iter().any(|file| file.name == "kept"), "{deep:?}");
    let many = run(&[], "for i in $(seq 200); do : > f$i || exit 3; done").await;
    assert!(many.written.quota_exceeded, "{:?}", many.written);
    host.executor.stop().await;
}

#[tokio::test]
async fn what_has_the_program_s_name_gives_way_unless_it_is_a_directory() {
    let Some(host) = Host::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
        return;
    };
    for before in
        ["ln -s /etc/passwd main.py", "echo > main.py; chmod 444 main.py", "ln -s gone main.py"]
    {
        let mut thread = Thread::default();
        thread.bash(&host, before).await;
        let ran = thread.run(&host, RunSpec::new(Language::Python, "print(1)")).await;
        assert_eq!(ran.stdout.to_text_lossy(), "1\n", "{before}: {}", ran.stderr.to_text_lossy());
    }
    let mut thread = Thread::default();
    thread.bash(&host, "mkdir main.py").await;
    let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 50 };
    let home = Some(ThreadHome { layers: thread.layers.clone(), room });
    let spec = RunSpec { home, ..RunSpec::new(Language::Python, "print(1)") };
    let error = host.executor.run(spec, RunIo::default()).await.unwrap_err();
    let RunError::Home(why) = error else { panic!("{error:?}") };
    assert!(why.to_string().starts_with("main.py in the thread's home is a directory"), "{why}");
    host.executor.stop().await;
}

#[tokio::test]
async fn a_layer_that_is_not_there_is_an_error_and_no_run() {
    let Some(host) = Host::start(ByteSize::gib(1), None).await else { return };
    let room = HomeQuota { bytes: ByteSize::mib(1), inodes: 50 };
    let layers = vec![LayerDigest::from_sha256([7; 32])];
    let spec = RunSpec {
        home: Some(ThreadHome { layers, room }),
        ..RunSpec::new(Language::Bash, "echo ran")
    };
    let error = host.executor.run(spec, RunIo::default()).await.unwrap_err();
    assert!(matches!(error, RunError::Home(_)), "{error:?}");
    host.executor.wait_for_teardown().await;
    host.executor.stop().await;
}

#[tokio::test]
async fn a_thread_s_run_has_one_disk_limit_for_its_home_and_its_other_places() {
    let Some(host) = Host::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
        return;
    };
    let limits = RunLimits { disk: ByteSize::mib(32), ..RunLimits::default() };
    let room = HomeQuota { bytes: ByteSize::gib(1), inodes: 100_000 };
    // A byte per file beyond what fits is no matter of rounding: each is a page.
    let fill = "for place in ~ /tmp /dev/shm; do head -c 40M /dev/zero > $place/big 2> /dev/null; done; \
        cat ~/big /tmp/big /dev/shm/big | wc -c";
    for language in [Language::Bash, Language::Python] {
        let code = match language {
            Language::Python => {
                format!("import subprocess; subprocess.run([\"bash\", \"-c\", {fill:?}])")
            }
            _ => fill.to_owned(),
        };
        let home = Some(ThreadHome { layers: Vec::new(), room });
        let outcome = host.run(RunSpec { home, limits, ..RunSpec::new(language, code) }).await;
        let written: u64 = outcome.stdout.to_text_lossy().trim().parse().unwrap();
        assert!(written > 24 << 20, "{language}: {written}");
        assert!(written <= 33 << 20, "{language}: {} MiB written of 32", written >> 20);
    }
    host.executor.stop().await;
}

/// A program that says that it has ended, has itself continued while its home is packed, and writes.
const FAKED_END: &str = r#"
import ctypes, os, signal
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
open("aaa", "wb").write(os.urandom(40 << 20))
late = [os.open(name, os.O_RDWR | os.O_CREAT) for name in ("yyy", "zzz")]
for file in late: os.pwrite(file, b"before", 0)
timer = ctypes.c_int()
libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, 0, b"")), ctypes.byref(timer))
libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, int(os.environ["AFTER"]) * 1_000_000), None)
libc.prctl(15, b"cloche end 7")
os.kill(os.getpid(), signal.SIGSTOP)
for file in late: os.pwrite(file, b"after!", 0)
for n in range(1000): open("much-later", "w").close()
os._exit(9)
"#;

#[tokio::test]
async fn a_program_that_fakes_its_end_writes_nothing_while_its_home_is_packed() {
    let pools = [None, Some(PoolSettings { floor: 1, ceiling: 1, ..PoolSettings::default() })];
    for pool in pools {
        let Some(host) = Host::start(ByteSize::gib(1), pool).await else { return };
        let mut believed = 0;
        // The packer is at work: long after the end was reported, and before all is compressed.
        for after in [300, 600, 900] {
            let mut thread = Thread::default();
            let mut spec = RunSpec::new(Language::Python, FAKED_END);
            spec.env.insert("AFTER".to_owned(), after.to_string());
            let outcome = thread.run(&host, spec).await;
            let found = thread.bash(&host, "cat yyy zzz; ls | grep later || true").await;
            // One that goes on before pid 1 has looked has not ended, and ends by itself.
            let expected = match outcome.ending {
                RunEnding::Exited(7) => "beforebefore",
                RunEnding::Exited(9) => "after!after!much-later\n",
                ending => panic!("{ending:?}: {}", outcome.stderr.to_text_lossy()),
            };
            assert_eq!(found, expected, "continued after {after} ms");
            believed += u32::from(outcome.ending == RunEnding::Exited(7));
        }
        assert!(believed > 0, "no end was believed, so nothing was tried");
        host.executor.stop().await;
    }
}
