//! Runs in: test. Homes of threads: a run finds the home as the run before it left it.

use cloche_executor::{PoolSettings, RunError, RunIo};
use cloche_model::{
    ByteSize, FileName, HomeQuota, InputFile, Language, LayerDigest, RunEnding, RunLimits, RunSpec,
    ThreadHome,
};
use cloche_test_support::{own_main::OwnTest, own_tests};

use crate::homes_host::{HomesHost, Thread};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    files_in_the_home_survive_and_no_others_do,
    hard_links_stay_links_to_one_file,
    removing_a_hard_link_or_changing_a_mode_copies_no_content,
    the_home_directory_keeps_its_mode_time_and_attributes,
    a_directory_can_be_renamed_at_any_depth,
    attributes_beyond_the_quota_are_reported_as_lost,
    packages_of_pip_and_npm_are_there_in_the_next_run,
    a_run_without_a_thread_names_the_files_that_it_wrote,
    output_files_of_a_threadless_run_are_truncated_and_flagged,
    a_full_home_is_reported_and_can_be_cleared,
    a_file_with_the_name_of_the_program_is_replaced_but_not_a_directory,
    a_missing_layer_is_an_error_and_nothing_runs,
    the_disk_limit_covers_the_home_and_all_other_writable_places,
    a_program_that_fakes_its_end_writes_nothing_while_its_home_is_packed,
];

async fn files_in_the_home_survive_and_no_others_do() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn hard_links_stay_links_to_one_file() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
    let mut thread = Thread::default();
    let make = "mkdir d e; echo one > a; for n in b d/c e/x; do ln a $n; done; ln -s a s; ln s d/s";
    thread.bash(&host, make).await;
    let changed = "echo two >> b; chmod 640 a; mv e f; touch -hd @77 s; cat a d/c f/x; rm b";
    assert_eq!(thread.bash(&host, changed).await, "one\ntwo\n".repeat(3));
    let look = "cat a d/c f/x; stat -c '%a %h' a; stat -c %Y s d/s; \
        [ a -ef d/c ] && [ a -ef f/x ] && echo one file";
    let seen = format!("{}640 3\n77\n77\none file\n", "one\ntwo\n".repeat(3));
    assert_eq!(thread.bash(&host, look).await, seen);
    // Written under a name that the same run removes.
    thread.bash(&host, "echo three >> a; rm a").await;
    assert_eq!(thread.bash(&host, "cat d/c").await, "one\ntwo\nthree\n");
    thread.bash(&host, "chmod 600 f/x; rm f/x").await;
    assert_eq!(thread.bash(&host, "stat -c %a d/c").await, "600\n");
    host.executor.stop().await;
}

async fn removing_a_hard_link_or_changing_a_mode_copies_no_content() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn the_home_directory_keeps_its_mode_time_and_attributes() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
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

async fn a_directory_can_be_renamed_at_any_depth() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn attributes_beyond_the_quota_are_reported_as_lost() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn packages_of_pip_and_npm_are_there_in_the_next_run() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
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

async fn a_run_without_a_thread_names_the_files_that_it_wrote() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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
    assert_eq!(named.len(), 2, "unchanged inputs are not named: {named:?}");
    assert_eq!(thread.bash(&host, "cat left").await, "input", "but the thread keeps them");
    let quiet = host.run(RunSpec::new(Language::Python, "print(1)")).await;
    assert_eq!(quiet.written, Default::default());
    host.executor.stop().await;
}

async fn output_files_of_a_threadless_run_are_truncated_and_flagged() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn a_full_home_is_reported_and_can_be_cleared() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn a_file_with_the_name_of_the_program_is_replaced_but_not_a_directory() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
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

async fn a_missing_layer_is_an_error_and_nothing_runs() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), None).await else { return };
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

async fn the_disk_limit_covers_the_home_and_all_other_writable_places() {
    let Some(host) = HomesHost::start(ByteSize::gib(1), Some(PoolSettings::default())).await else {
        return;
    };
    let limits = RunLimits { disk: ByteSize::mib(32), ..RunLimits::default() };
    let room = HomeQuota { bytes: ByteSize::gib(1), inodes: 100_000 };
    // Sizes are rounded up to pages, so a byte more or less does not matter.
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

/// Announces its end, sets a timer that continues it while its home is packed, and writes.
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

async fn a_program_that_fakes_its_end_writes_nothing_while_its_home_is_packed() {
    let pools = [None, Some(PoolSettings { floor: 1, ceiling: 1, ..PoolSettings::default() })];
    for pool in pools {
        let Some(host) = HomesHost::start(ByteSize::gib(1), pool).await else { return };
        let mut believed = 0;
        // The packer works then: after the end was reported, before everything is compressed.
        for after in [300, 600, 900] {
            let mut thread = Thread::default();
            let mut spec = RunSpec::new(Language::Python, FAKED_END);
            spec.env.insert("AFTER".to_owned(), after.to_string());
            let outcome = thread.run(&host, spec).await;
            let found = thread.bash(&host, "cat yyy zzz; ls | grep later || true").await;
            // A program that is continued before pid 1 looks has not ended, and exits by itself.
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
