//! Storage mounts: what an unused one adds to a warm run, and reading through one beside reading
//! with the client library.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, MountStorageConfig, PoolSettings, RunIo};
use cloche_model::{
    ByteSize, KeyPrefix, Language, MountLimits, MountSource, MountSpec, ObjectConnection,
    ObjectCredentials, ObjectStoreKind, RunEnding, RunSpec, VolumeId,
};
use cloche_mounts::{ObjectPath, ObjectStorage, SystemAccess, VolumeStore};
use futures::StreamExt as _;

use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures, print_promise},
    memory_store::MemoryStore,
    print_line,
};

/// The pause between two runs, in which the pool is refilled as in an idle server.
const PAUSE: Duration = Duration::from_millis(15);
/// How often each way of reading is measured; the best counts.
const READS: usize = 5;

/// Measures storage mounts, if requested.
pub(crate) async fn measure_storage(arguments: &BenchArguments) -> BenchResult<()> {
    let wanted = |part: &String| "storage".contains(part.as_str());
    if !arguments.only.is_empty() && !arguments.only.iter().any(wanted) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let volumes = VolumeStore::open(dir.path().join("volumes"))?;
    let id: VolumeId = "vol_bench".parse()?;
    volumes.create(&id)?;
    let spool = dir.path().join("spool");
    let executor = start_executor(MountStorageConfig::with_spool(volumes, spool)?).await?;
    let store = MemoryStore::start().await?;
    let volume =
        MountSource::Volume { id, quota: ByteSize::gib(1), sub_path: KeyPrefix::default() };
    let bucket = MountSource::Objects {
        connection: connection(&store.endpoint),
        prefix: KeyPrefix::default(),
    };
    measure_unused(&executor, &[volume, bucket.clone()], arguments.rounds.min(200)).await?;
    measure_idle_memory(&executor, &bucket).await?;
    measure_reading(&executor, &store, &bucket).await?;
    executor.stop().await;
    Ok(())
}

async fn start_executor(storage: MountStorageConfig) -> BenchResult<Executor> {
    let mut config = ExecutorConfig::with_program(std::env::current_exe()?);
    config.pool = Some(PoolSettings::default());
    config.storage = storage;
    let executor = Executor::start(config).await?;
    let spec = RunSpec::new(Language::Python, "");
    executor.prewarm_pool(Language::Python, &spec.limits, &spec.sandbox);
    while !executor.is_warm() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(executor)
}

fn connection(endpoint: &str) -> ObjectConnection {
    ObjectConnection {
        kind: ObjectStoreKind::S3,
        endpoint: Some(endpoint.to_owned()),
        bucket: "bench".to_owned(),
        region: None,
        credentials: ObjectCredentials::Anonymous,
        allows_private_endpoint: true,
    }
}

fn run_with(code: &str, source: Option<&MountSource>) -> BenchResult<RunSpec> {
    let mounts = match source {
        Some(source) => vec![MountSpec {
            slug: "s".parse()?,
            source: source.clone(),
            read_only: false,
            limits: MountLimits::default(),
        }],
        None => Vec::new(),
    };
    Ok(RunSpec { mounts, ..RunSpec::new(Language::Python, code) })
}

/// Runs a program that must succeed. Returns what it printed.
async fn run(executor: &Executor, spec: RunSpec) -> BenchResult<String> {
    let outcome = executor.run(spec, RunIo::default()).await?;
    match outcome.ending {
        RunEnding::Exited(0) => Ok(outcome.stdout.to_text_lossy()),
        ending => Err(format!("{ending:?}: {}", outcome.stderr.to_text_lossy()).into()),
    }
}

async fn measure_unused(
    executor: &Executor,
    sources: &[MountSource],
    rounds: usize,
) -> BenchResult<()> {
    let cases = [
        ("no mount", None),
        ("unused volume", Some(&sources[0])),
        ("unused bucket", Some(&sources[1])),
    ];
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=rounds {
        for ((_, source), times) in cases.iter().zip(&mut times) {
            tokio::time::sleep(PAUSE).await;
            let spec = run_with("print(1)", *source)?;
            let began = Instant::now();
            run(executor, spec).await?;
            if round > 0 {
                times.push(began.elapsed());
            }
        }
    }
    let named = cases.iter().zip(times);
    let figures: Vec<_> =
        named.map(|((name, _), times)| LatencyFigures::new((*name).to_owned(), times)).collect();
    figures::print_table(&figures);
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for unused in &figures[1..] {
        let added = unused.percentile(50) - figures[0].percentile(50);
        print_promise(&format!("{} adds ms", unused.name), 1.0, added);
    }
    Ok(())
}

/// The memory of a mount server that waits, as the kernel counts it for the process alone.
async fn measure_idle_memory(executor: &Executor, source: &MountSource) -> BenchResult<()> {
    let spec =
        run_with("import time, os; os.path.exists('/data/s/none'); time.sleep(2)", Some(source))?;
    let running = run(executor, spec);
    let looking = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        mount_server_memory()
    };
    let (ran, memory) = tokio::join!(running, looking);
    ran?;
    if let Some((resident, private)) = memory {
        print_promise("idle mount server, MiB resident", 32.0, resident);
        print_line(&format!("of these, {private:.1} MiB are private"));
    }
    Ok(())
}

/// Resident and private MiB of the mount server on this host: the process with a thread named so.
fn mount_server_memory() -> Option<(f64, f64)> {
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let tasks = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
        let is_mount = |task: &PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "mount")
        };
        if !tasks.map(|task| task.path()).any(|task| is_mount(&task)) {
            continue;
        }
        let rollup = fs::read_to_string(process.path().join("smaps_rollup")).ok()?;
        let field = |name: &str| {
            let line = rollup.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        };
        let private = field("Private_Dirty:")? + field("Private_Clean:")?;
        return Some((field("Rss:")? / 1024.0, private / 1024.0));
    }
    None
}

async fn measure_reading(
    executor: &Executor,
    store: &MemoryStore,
    source: &MountSource,
) -> BenchResult<()> {
    let storage = ObjectStorage::connect(
        &connection(&store.endpoint),
        KeyPrefix::default(),
        Arc::new(SystemAccess),
    )?;
    let whole = "\
import time
began = time.perf_counter()
with open('/data/s/big', 'rb', buffering=0) as f:
    n = 0
    while data := f.read(1 << 20): n += len(data)
assert n == 100_000_000, n
print(time.perf_counter() - began)";
    let many = "\
import os, time
began = time.perf_counter()
n = 0
for entry in os.scandir('/data/s/small'):
    with open(entry.path, 'rb') as f: n += len(f.read())
assert n == 1000 * 4096, n
print(time.perf_counter() - began)";
    let (mut best, mut direct) = ([f64::MAX; 2], [f64::MAX; 2]);
    for _ in 0..READS {
        let began = Instant::now();
        read_directly(&storage, "big").await?;
        direct[0] = direct[0].min(began.elapsed().as_secs_f64());
        best[0] = best[0].min(run(executor, run_with(whole, Some(source))?).await?.trim().parse()?);
        let began = Instant::now();
        read_all_directly(&storage).await?;
        direct[1] = direct[1].min(began.elapsed().as_secs_f64());
        best[1] = best[1].min(run(executor, run_with(many, Some(source))?).await?.trim().parse()?);
    }
    for (name, at, least) in [("100 MB in order", 0, 0.6), ("1,000 files of 4 KiB", 1, 0.5)] {
        let ratio = direct[at] / best[at];
        print_line(&format!(
            "| {name}: mount {:.1} ms, library {:.1} ms | at least {least} | {ratio:.2} |",
            best[at] * 1000.0,
            direct[at] * 1000.0
        ));
    }
    Ok(())
}

async fn read_directly(storage: &ObjectStorage, path: &str) -> BenchResult<u64> {
    let (_, mut body) = storage.read(&ObjectPath::parse(path)?, None, None).await?;
    let mut read = 0;
    while let Some(chunk) = body.next().await {
        read += chunk?.len() as u64;
    }
    Ok(read)
}

/// Lists a directory and reads each object of it, one after the other, as the program does.
async fn read_all_directly(storage: &ObjectStorage) -> BenchResult<()> {
    let directory = ObjectPath::parse("small")?;
    let mut from = None;
    loop {
        let page = storage.list_page(&directory, from).await?;
        for object in &page.objects {
            read_directly(storage, &format!("small/{}", object.name)).await?;
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}
