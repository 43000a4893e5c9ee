//! Runs in: test. Each wall of a cell is left out in turn, and some probe must notice: a wall that
//! no probe notices is a wall that is not tested.
//!
//! This test is its own spawner: started with `__spawner MODE WALL` it builds cells without that
//! wall. Which probes guard a wall is data, as some attacks are safe only while a wall stands:
//! no probe sends `kill(-1)` where the pid namespace is left out.

#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]
#![allow(clippy::print_stdout, reason = "a test with its own main prints its own results")]

use std::{
    collections::BTreeSet,
    env, fmt,
    fs::{self, File},
    io::Write as _,
    os::fd::OwnedFd,
    path::Path,
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, ExecutorStartError, PoolSettings, RunIo};
use cloche_model::{Language, RunSpec, SandboxShape};
use cloche_test_support::{
    eventually_blocking,
    own_main::{self, OwnTest, block_on},
    processes, skip,
};
use cloche_verify::{
    HostDecoys, PROBES, Probe, ProbeFinding, ProbeRunner,
    host::{list_descendants, parent_pid},
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const TEST: OwnTest = OwnTest {
    path: "escape_mutation::every_wall_is_noticed_when_it_is_left_out",
    run: || block_on(every_wall_is_noticed_when_it_is_left_out()),
};
/// The environment variable with the only wall to leave out; all of them where it is not set.
const ONLY_WALL: &str = "CLOCHE_WALL";
/// How long a process that was killed may take to be gone.
const SIGNALLED: Duration = Duration::from_secs(2);
/// How many walls are tried at once.
const AT_ONCE: usize = 3;

/// The probes that would notice; by the beginning of the wall's name. The first that fits counts.
const GUARDS: &[(&str, &[&str])] = &[
    ("namespace:user", &["host-uid"]),
    ("namespace:mount", &["host-files"]),
    ("namespace:pid", &["processes"]),
    ("namespace:net", &["network-own"]),
    ("namespace:ipc", &["system-v"]),
    ("namespace:uts", &["names", "own-namespaces"]),
    ("namespace:cgroup", &["cgroup-view"]),
    ("cgroup:memory", &["memory-anonymous"]),
    ("cgroup:pids", &["process-limit"]),
    ("cgroup:cpu", &["cpu-quota"]),
    ("identity:", &["privileges"]),
    ("hostname", &["names"]),
    ("loopback", &["network-own"]),
    ("scratch", &["disk-full", "writable-places"]),
    ("root:", &["path-tricks", "writable-places"]),
    ("image:", &["mount-flags"]),
    ("dev:pts", &["terminals", "terminal-names"]),
    ("dev", &["devices"]),
    ("read-only:", &["mount-flags"]),
    ("bind:", &["mount-flags"]),
    ("proc", &["processes"]),
    ("mask:", &["masks"]),
    ("limit:max_inotify_instances", &["watches"]),
    ("limit:max_inotify_watches", &["watch-count"]),
    ("home:enter", &["environment"]),
    ("home", &["writable-places"]),
    ("tmp", &["writable-places", "left-files"]),
    ("shm", &["writable-places", "left-files"]),
    ("secrets", &["writable-places"]),
    ("data", &["mount-flags"]),
    ("rlimit:core", &["core-dump"]),
    ("rlimit:open-files", &["open-files"]),
    ("rlimit:signals", &["timers"]),
    ("rlimit:locked-memory", &["locked-memory"]),
    ("rlimit:message-queues", &["message-queues"]),
    ("rlimit:realtime", &["realtime"]),
    ("rlimit:processes", &["resource-limits"]),
    ("rlimit:cpu", &["resource-limits"]),
    ("rlimit:file-size", &["resource-limits"]),
    ("close-fds", &["descriptors"]),
    ("capabilities", &["privileges"]),
    ("no-new-privs", &["privileges"]),
    ("landlock", &["landlock"]),
    ("sockets", &["socket-queues"]),
    ("seccomp", &["kernel-calls"]),
    // What happens when the spawner dies is played by `orphan`, below.
    ("die-with-parent", &[]),
];

/// Walls that only a box of this kind needs, and so only it can miss.
const ONLY_ROOTLESS: &[&str] = &["capabilities"];

/// Which kind of box is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// From nothing.
    Cold,
    /// Forked by a template.
    Warm,
    /// From nothing, by an ordinary user.
    Rootless,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Rootless => "rootless",
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner", mode, wall] => spawner(mode, wall),
        asked => own_main::run_tests(&[TEST], asked),
    }
}

/// The spawner with one wall left out; or with none, and a list of them written down.
fn spawner(mode: &str, wall: &str) -> ExitCode {
    // A descriptor that is not closed on exec, for `close-fds` to be missed.
    let leak = File::open("/etc/hosts").unwrap();
    let leak = rustix::io::fcntl_dupfd_cloexec(&leak, 20).unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    let list = wall.strip_prefix("list:").map(|path| File::create(path).unwrap());
    let listed = Mutex::new(list);
    let ended = cloche_executor::spawner::run_spawner_with(&|plan| {
        let walls = plan.wall_names();
        // A template names the machine for its cells, and leaves the filter to them.
        let has = |name: &str| walls.iter().any(|wall| wall == name);
        let is_forked = has("seccomp") && !has("hostname");
        if let Some(list) = listed.lock().unwrap().as_mut()
            && is_forked == (mode == "warm")
        {
            list.write_all(walls.join("\n").as_bytes()).unwrap();
        }
        if (mode == "warm") != is_forked {
            return plan;
        }
        let without = plan.without_wall(wall);
        if wall != "namespace:user" {
            return without;
        }
        // These set limits of the user namespace they are in: here that would be the host's.
        let limits = walls.iter().filter(|wall| wall.starts_with("limit:"));
        limits.fold(without, |plan, limit| plan.without_wall(limit))
    });
    drop(leak);
    ended.unwrap_or(ExitCode::FAILURE)
}

fn config(mode: Mode, wall: &str) -> ExecutorConfig {
    let own = env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let spawner = ["__spawner", mode.name(), wall].map(str::to_owned);
    let mut config = ExecutorConfig::with_program(own);
    config.spawner_args = spawner.to_vec();
    match mode {
        Mode::Cold => {}
        Mode::Warm => {
            config.pool = Some(PoolSettings { floor: 1, ceiling: 1, ..Default::default() })
        }
        Mode::Rootless => {
            // By a descriptor: the build directory may be one that others cannot enter.
            let script = "exec 9<\"$0\"; exec setpriv --reuid 65534 --regid 65534 --clear-groups \
                /proc/self/fd/9 \"$@\"";
            config.program = "/bin/sh".into();
            config.spawner_args = ["-c", script, own].map(str::to_owned).to_vec();
            config.spawner_args.extend(spawner);
        }
    }
    config
}

/// Starts an executor whose boxes lack a wall; what an ordinary user cannot have may be missing.
async fn start(mode: Mode, wall: &str) -> Result<Executor, String> {
    let config = config(mode, wall);
    let started = match Executor::start(config.clone()).await {
        Err(ExecutorStartError::Missing(missing)) if mode == Mode::Rootless => {
            let allow_missing = missing.into_iter().map(|(wall, _)| wall).collect();
            Executor::start(ExecutorConfig { allow_missing, ..config }).await
        }
        started => started,
    };
    started.map_err(|error| error.to_string())
}

/// How a wall was missed.
enum Missed {
    /// A probe broke.
    Broke(String),
    /// The box could not be built without it.
    NotBuilt(String),
    /// This host forbids the same with or without it.
    Moot(String),
    /// No probe noticed.
    Not,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broke(got) => write!(f, "a probe broke: {got:.150}"),
            Self::NotBuilt(why) => write!(f, "no box: {why}"),
            Self::Moot(why) => write!(f, "cannot be told: {why}"),
            Self::Not => f.write_str("NO PROBE NOTICED"),
        }
    }
}

async fn every_wall_is_noticed_when_it_is_left_out() {
    let only = env::var(ONLY_WALL).ok();
    let started = Instant::now();
    let mut unnoticed = Vec::new();
    for mode in [Mode::Cold, Mode::Warm, Mode::Rootless] {
        match walls(mode).await {
            Ok(mut walls) => {
                walls.retain(|wall| only.as_ref().is_none_or(|only| wall == only));
                unnoticed.extend(try_all(mode, walls).await);
            }
            Err(why) => {
                skip(&format!("no {} cells: {why}", mode.name()));
            }
        }
    }
    println!("{:.1} s", started.elapsed().as_secs_f64());
    assert!(unnoticed.is_empty(), "no probe notices that these are left out: {unnoticed:#?}");
}

/// Every wall of such a box, from a box that has them all.
async fn walls(mode: Mode) -> Result<Vec<String>, String> {
    let list = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(list.path(), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let executor = start(mode, &format!("list:{}", list.path().display())).await?;
    let spec = RunSpec::new(Language::Python, "print(1)");
    if mode == Mode::Warm {
        warm(&executor, &spec).await?;
    }
    let outcome = executor.run(spec, RunIo::default()).await.map_err(|error| error.to_string())?;
    assert_eq!(outcome.stdout.to_text_lossy(), "1\n", "{outcome:?}");
    executor.stop().await;
    let walls: BTreeSet<String> =
        fs::read_to_string(list.path()).unwrap().lines().map(str::to_owned).collect();
    assert!(walls.len() > 20, "{walls:?}");
    let only = |wall: &String| mode != Mode::Rootless || ONLY_ROOTLESS.contains(&wall.as_str());
    let not = |wall: &String| mode == Mode::Rootless || !ONLY_ROOTLESS.contains(&wall.as_str());
    Ok(walls.into_iter().filter(|wall| only(wall) && not(wall)).collect())
}

/// Has a cell of this kind parked; an error where none can be.
async fn warm(executor: &Executor, spec: &RunSpec) -> Result<(), String> {
    executor.prewarm_pool(spec.language, &spec.limits, &spec.sandbox);
    let (mut waited, mut since_template) = (0, 0);
    // A template takes long to start; once it is there, a cell does not.
    while waited < 500 && since_template < 50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let shelves = executor.read_metrics().buckets;
        if shelves.iter().any(|shelf| shelf.parked > 0 && shelf.templates > 0) {
            return Ok(());
        }
        waited += 1;
        since_template += u32::from(shelves.iter().any(|shelf| shelf.templates > 0));
    }
    Err("no cell could be parked".to_owned())
}

async fn try_all(mode: Mode, walls: Vec<String>) -> Vec<String> {
    let (mut left, mut running) = (walls.into_iter(), tokio::task::JoinSet::new());
    let mut unnoticed = Vec::new();
    loop {
        while running.len() < AT_ONCE {
            let Some(wall) = left.next() else { break };
            running.spawn(async move { (miss(mode, &wall).await, wall) });
        }
        match running.join_next().await {
            Some(tried) => {
                let (missed, wall) = tried.unwrap();
                println!("{} without {wall}: {missed}", mode.name());
                if matches!(missed, Missed::Not) {
                    unnoticed.push(format!("{} {wall}", mode.name()));
                }
            }
            None => return unnoticed,
        }
    }
}

async fn miss(mode: Mode, wall: &str) -> Missed {
    // Cold, these two are not for the guest to notice: pid 1 is looked at from the host.
    if mode == Mode::Cold && wall == "die-with-parent" {
        return beside_a_guest(wall, outlived(wall)).await;
    }
    if mode == Mode::Cold && wall == "close-fds" {
        return beside_a_guest(wall, kept_open(wall)).await;
    }
    if mode == Mode::Cold && wall == "loopback" {
        return Missed::Moot(
            "networks are made ahead, with theirs up; see the warm ones".to_owned(),
        );
    }
    if wall == "rlimit:realtime" && host_forbids_realtime() {
        return Missed::Moot("this host gives no real-time priority to begin with".to_owned());
    }
    let executor = match start(mode, wall).await {
        Ok(executor) => executor,
        Err(why) => return Missed::NotBuilt(why),
    };
    let guards = GUARDS.iter().find(|(prefix, _)| wall.starts_with(prefix));
    let guards = guards.map_or(&[][..], |(_, guards)| guards);
    let (decoys, shape) = (HostDecoys::create().unwrap(), SandboxShape::default());
    let stage = ProbeRunner { executor, decoys, shape };
    let mut missed = Missed::Not;
    for name in guards {
        let probe = PROBES.iter().find(|probe| probe.name == *name).unwrap();
        missed = tokio::time::timeout(Duration::from_secs(30), attack(mode, &stage, probe))
            .await
            .unwrap_or_else(|_| Missed::NotBuilt("no answer".to_owned()));
        if !matches!(missed, Missed::Not) {
            break;
        }
    }
    // Without some walls a spawner does not end well; the next has its own.
    let _ = tokio::time::timeout(Duration::from_secs(5), stage.executor.stop()).await;
    missed
}

async fn attack(mode: Mode, stage: &ProbeRunner, probe: &Probe) -> Missed {
    if mode == Mode::Warm {
        let mut spec = RunSpec::new(probe.language, "");
        spec.limits = (probe.limits)();
        if let Err(why) = warm(&stage.executor, &spec).await {
            return Missed::NotBuilt(why);
        }
    }
    let cold_before = stage.executor.read_metrics().cold_starts;
    let found = stage.run_and_judge(probe).await;
    if mode == Mode::Warm && stage.executor.read_metrics().cold_starts > cold_before {
        return Missed::NotBuilt("no cell was forked".to_owned());
    }
    match found {
        ProbeFinding::Decided(verdict) if verdict.held => Missed::Not,
        ProbeFinding::Decided(verdict) => Missed::Broke(format!("{}: {}", probe.name, verdict.got)),
        ProbeFinding::NotStarted(why) => Missed::NotBuilt(why),
        ProbeFinding::NotHere(why) => Missed::Moot(why),
    }
}

fn host_forbids_realtime() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Rtprio).maximum == Some(0)
}

/// Looks at the host while a guest runs in a box without a wall.
async fn beside_a_guest(wall: &str, look: impl Future<Output = Missed>) -> Missed {
    let executor = match start(Mode::Cold, wall).await {
        Ok(executor) => executor,
        Err(why) => return Missed::NotBuilt(why),
    };
    let spec =
        RunSpec::new(Language::Python, "import time\nprint('READY', flush=True)\ntime.sleep(20)");
    let (output, mut printed) = tokio::sync::mpsc::channel(4);
    let running = {
        let executor = executor.clone();
        let io = RunIo { output: Some(output), ..RunIo::default() };
        tokio::spawn(async move { executor.run(spec, io).await })
    };
    printed.recv().await;
    let missed = look.await;
    let _ = tokio::time::timeout(Duration::from_secs(5), running).await;
    missed
}

/// Shares the locks of a spawner on its cgroup directories, which then hold after its end.
fn keep_locks(spawner: u32) -> Vec<OwnedFd> {
    let pid = Pid::from_raw(spawner.cast_signed()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let is_locked = |target: &Path| {
        let name = target.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("cloche."))
    };
    let mut locks = Vec::new();
    for entry in fs::read_dir(format!("/proc/{spawner}/fd")).unwrap().flatten() {
        let number = entry.file_name().to_str().unwrap().parse().unwrap();
        if fs::read_link(entry.path()).is_ok_and(|target| is_locked(&target)) {
            locks.push(pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).unwrap());
        }
    }
    assert!(!locks.is_empty());
    locks
}

/// The keeper of the spawner that leaves out a wall.
fn keeper(wall: &str) -> u32 {
    let words = format!("__spawner\0cold\0{wall}\0");
    let is_keeper = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.ends_with(words.as_bytes()) && parent_pid(*pid) == Some(std::process::id())
    };
    list_descendants(std::process::id()).into_iter().find(is_keeper).unwrap()
}

/// Whether pid 1 of a cell has a file open that is the spawner's.
async fn kept_open(wall: &str) -> Missed {
    for pid in list_descendants(keeper(wall)) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let first = |line: &str| line.starts_with("NSpid:") && line.ends_with("\t1");
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut files = files.filter_map(|file| fs::read_link(file.path()).ok());
        if status.lines().any(first) && files.any(|file| file.ends_with("etc/hosts")) {
            return Missed::Broke("pid 1 has a file of the spawner's open".to_owned());
        }
    }
    Missed::Not
}

/// Kills the keeper, and sees who of those below is still there. Ends what is.
async fn outlived(wall: &str) -> Missed {
    let keeper = keeper(wall);
    let below = list_descendants(keeper);
    let worker = below.iter().copied().find(|pid| parent_pid(*pid) == Some(keeper)).unwrap();
    // With its locks the spawner looks alive to the next one, which would end what it has left.
    let _locks = keep_locks(worker);
    processes::kill(keeper);
    eventually_blocking("the spawner ends with its supervisor", || !processes::is_alive(worker));
    // With the wall up, its cells have got their signal before the spawner was seen to be dead.
    // Without it they do not end, however long one looks.
    let deadline = Instant::now() + SIGNALLED;
    let still_alive = || below.iter().copied().filter(|pid| processes::is_alive(*pid));
    while still_alive().next().is_some() && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    let alive: Vec<u32> = still_alive().collect();
    if alive.is_empty() {
        return Missed::Not;
    }
    alive.iter().for_each(|pid| processes::kill(*pid));
    Missed::Broke(format!("{} of {} processes outlived the spawner", alive.len(), below.len()))
}
