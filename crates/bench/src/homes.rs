//! Runs with a thread beside runs without one: the cost of a home that is unchanged, changed a
//! little, or large.

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo};
use cloche_layers::{
    LayerBounds, Layers, LayersConfig, OverlayXattrs, PackOptions, StoreConfig, StoredLayer,
    UpperDir, pack_upper_dir,
};
use cloche_model::{
    ByteSize, HomeQuota, Language, LayerDigest, RunEnding, RunLimits, RunSpec, ThreadHome,
};

use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures, print_promise},
    print_line,
};

/// The pause between two runs, in which the pool is refilled as in an idle server.
const PAUSE: Duration = Duration::from_millis(15);
/// A case: its name, its program, and the home it starts with. Without a home it runs without a
/// thread.
struct HomeCase {
    name: &'static str,
    code: &'static str,
    home: Option<Vec<LayerDigest>>,
}

/// The executors: with threads, and without storage.
struct HomeExecutors {
    threads: Executor,
    plain: Executor,
}

const QUIET: &str = "print(1)";
/// Lists a directory that every layer has, and looks for a file that no layer has.
const LOOK: &str = "import os; os.listdir('shared'); os.path.exists('shared/none'); print(1)";
const LINE: &str = "open('notes.txt', 'a').write('one line\\n'); print(1)";
const ONE_MB: &str =
    "import os\nfor i in range(16): open(f'f{i}', 'wb').write(os.urandom(65536))\nprint(1)";
const TEN_MB: &str =
    "import os\nfor i in range(160): open(f'f{i}', 'wb').write(os.urandom(65536))\nprint(1)";

/// Measures homes, if requested.
pub(crate) async fn measure_homes(arguments: &BenchArguments) -> BenchResult<()> {
    let wanted = |part: &String| "homes".contains(part.as_str());
    if !arguments.only.is_empty() && !arguments.only.iter().any(wanted) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let layers = Layers::open(LayersConfig {
        dir: dir.path().join("layers"),
        store: StoreConfig::Local,
        cache_bytes: ByteSize::gib(4),
        bounds: LayerBounds::default(),
    })
    .await?;
    let hosts = HomeExecutors {
        threads: start_with_layers(Some(&layers)).await?,
        plain: start_with_layers(None).await?,
    };
    let small = store_tree(&layers, &make_small_tree(dir.path())?).await?;
    let large = match install_pandas_tree(dir.path()) {
        Some(tree) => Some(store_tree(&layers, &tree).await?),
        None => {
            print_line("skipped: the large home: pandas could not be installed");
            None
        }
    };
    let small_home = vec![small.layer.digest.clone()];
    let mut cases = vec![
        HomeCase { name: "no thread", code: QUIET, home: None },
        HomeCase { name: "unchanged home", code: QUIET, home: Some(small_home.clone()) },
        HomeCase { name: "small home, a line", code: LINE, home: Some(small_home.clone()) },
        HomeCase { name: "1 MB, no thread", code: ONE_MB, home: None },
        HomeCase { name: "1 MB of new files", code: ONE_MB, home: Some(small_home.clone()) },
        HomeCase { name: "10 MB, no thread", code: TEN_MB, home: None },
        HomeCase { name: "10 MB of new files", code: TEN_MB, home: Some(small_home) },
    ];
    let deep = store_stack(&layers, dir.path(), 48).await?;
    for (name, depth) in [("8 layers", 8), ("16 layers", 16), ("48 layers", 48)] {
        cases.push(HomeCase { name, code: LOOK, home: Some(deep[..depth].to_vec()) });
    }
    if let Some(large) = &large {
        let home = Some(vec![large.layer.digest.clone()]);
        cases.push(HomeCase { name: "large home, unchanged", code: QUIET, home: home.clone() });
        cases.push(HomeCase { name: "large home, a line", code: LINE, home });
    }
    let (times, stored) = time_cases(&hosts, &cases, arguments.rounds.min(100)).await?;
    figures::print_table(&times);
    print_home_promises(&times);
    if let Some(large) = large {
        let share = stored as f64 / large.layer.bytes.bytes() as f64;
        print_promise("stored after a line : large home", 0.001, share);
        let entries = large.index.entries().len();
        print_line(&format!("\nthe large home: {} in {entries} entries", large.layer.bytes));
    }
    hosts.threads.stop().await;
    hosts.plain.stop().await;
    Ok(())
}

async fn start_with_layers(layers: Option<&Layers>) -> BenchResult<Executor> {
    let mut config = ExecutorConfig::with_program(std::env::current_exe()?);
    config.unpacked_layers = layers.map(|layers| layers.cache_dir().to_owned());
    config.pool = Some(PoolSettings::default());
    config.layers = layers.cloned();
    let executor = Executor::start(config).await?;
    let spec = RunSpec::new(Language::Python, "");
    executor.prewarm_pool(Language::Python, &spec.limits, &spec.sandbox);
    while !executor.is_warm() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(executor)
}

/// Runs every case in turn, `rounds` times. Also returns the bytes that the last new layer took.
async fn time_cases(
    hosts: &HomeExecutors,
    cases: &[HomeCase],
    rounds: usize,
) -> BenchResult<(Vec<LatencyFigures>, u64)> {
    let mut times = vec![Vec::new(); cases.len()];
    let mut stored = 0;
    // The first round is not counted, because it unpacks layers for the others.
    for round in 0..=rounds {
        for (case, times) in cases.iter().zip(&mut times) {
            tokio::time::sleep(PAUSE).await;
            let room = HomeQuota { bytes: ByteSize::gib(1), inodes: 1_000_000 };
            let home = case.home.clone().map(|layers| ThreadHome { layers, room });
            let limits = RunLimits::default();
            let spec = RunSpec { home, limits, ..RunSpec::new(Language::Python, case.code) };
            let executor = if case.home.is_some() { &hosts.threads } else { &hosts.plain };
            let began = Instant::now();
            let outcome = executor.run(spec, RunIo::default()).await?;
            let took = began.elapsed();
            if outcome.ending != RunEnding::Exited(0) || outcome.stdout.bytes != b"1\n" {
                return Err(format!("{}: {outcome:?}", case.name).into());
            }
            stored = outcome.written.layer.map_or(stored, |layer| layer.stored.bytes());
            if round > 0 {
                times.push(took);
            }
        }
    }
    let named = cases.iter().zip(times);
    Ok((
        named.map(|(case, times)| LatencyFigures::new(case.name.to_owned(), times)).collect(),
        stored,
    ))
}

fn print_home_promises(times: &[LatencyFigures]) {
    let at = |name: &str| {
        let found = times.iter().find(|figures| figures.name == name);
        found.map_or(f64::NAN, |figures| figures.percentile(50))
    };
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("unchanged home, ms more", 1.0, at("unchanged home") - at("no thread"));
    print_promise(
        "1 MB of new files, ms more",
        6.0,
        at("1 MB of new files") - at("1 MB, no thread"),
    );
    print_promise(
        "large home : small home, a line",
        1.1,
        at("large home, a line") / at("small home, a line"),
    );
    print_promise(
        "large home : small home",
        1.1,
        at("large home, unchanged") / at("unchanged home"),
    );
}

/// A home in which every layer has its own files.
async fn store_stack(layers: &Layers, dir: &Path, depth: usize) -> BenchResult<Vec<LayerDigest>> {
    let mut stack = Vec::new();
    for layer in 0..depth {
        let tree = dir.join(format!("layer{layer}"));
        fs::create_dir_all(tree.join("shared"))?;
        for file in 0..20 {
            fs::write(tree.join(format!("shared/{layer}-{file}")), "content")?;
        }
        stack.push(store_tree(layers, &tree).await?.layer.digest);
    }
    Ok(stack)
}

fn make_small_tree(dir: &Path) -> BenchResult<PathBuf> {
    let tree = dir.join("small");
    fs::create_dir(&tree)?;
    fs::write(tree.join("notes.txt"), "first\n")?;
    Ok(tree)
}

/// The files of `pip install pandas`, at their place in a home.
fn install_pandas_tree(dir: &Path) -> Option<PathBuf> {
    let tree = dir.join("large");
    let target = tree.join(".local/lib/python3/site-packages");
    fs::create_dir_all(&target).ok()?;
    let installed = Command::new("/usr/bin/python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
        .arg(&target)
        .arg("pandas")
        .status();
    installed.is_ok_and(|status| status.success()).then_some(tree)
}

async fn store_tree(layers: &Layers, tree: &Path) -> BenchResult<StoredLayer> {
    let request = PackOptions {
        skip: Vec::new(),
        markers: OverlayXattrs::Trusted,
        home_mode: None,
        most: None,
    };
    let mut archive = tempfile::tempfile()?;
    let tree = File::open(tree)?;
    pack_upper_dir(UpperDir { dir: tree.as_fd(), merged: None }, &request, &mut archive)?;
    archive.seek(SeekFrom::Start(0))?;
    let stored = layers.store_archive(tokio::fs::File::from_std(archive)).await?;
    stored.ok_or_else(|| "an empty home".into())
}
