//! Runs in: benchmark. Images: warm runs on the default image beside `host`, a module that was
//! imported ahead, and imports beside `skopeo copy` and `umoci unpack`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures, print_promise},
    print_line,
    server::{BenchClient, BenchServer, find_binary},
};

/// The default image, as `make image` and `scripts/setup-tests` leave it.
const DEFAULT_IMAGE: &str = "target/images/default";
/// The sizes of the layers of the imported images: the one that they share, and their own.
const BASE_BYTES: u64 = 450 << 20;
const OWN_BYTES: u64 = 50 << 20;
const IMPORTS: usize = 3;
/// Starts an interpreter in the same root, and prints the milliseconds that it took.
const BARE_PANDAS: &str = "\
import subprocess, sys, time
began = time.perf_counter()
subprocess.run([sys.executable, '-c', 'import pandas; print(1)'], check=True, capture_output=True)
print('took', (time.perf_counter() - began) * 1000)";

/// Measures this, if requested.
pub(crate) fn measure_images(arguments: &BenchArguments) -> BenchResult<()> {
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()))
    };
    let Some(binary) = find_binary(arguments) else {
        print_line("\nskipped: images: no cloche binary beside this one; give --server PATH");
        return Ok(());
    };
    if wanted("image-warm") {
        measure_default_image(&binary, arguments.rounds)?;
    }
    if wanted("image-import") {
        measure_imports(&binary)?;
    }
    Ok(())
}

/// Warm Python on the default image and on `host` in turns; then pandas, imported ahead and bare.
fn measure_default_image(binary: &Path, rounds: usize) -> BenchResult<()> {
    if !Path::new(DEFAULT_IMAGE).join("index.json").exists() {
        print_line(&format!("\nskipped: image-warm: there is no {DEFAULT_IMAGE}: make image"));
        return Ok(());
    }
    let server = BenchServer::start(binary)?;
    let took = import(binary, &server, Path::new(DEFAULT_IMAGE), "cloche/default", None)?;
    print_line(&format!("\nimport of the default image: {:.1} s", took.as_secs_f64()));
    let connect = |name: &str, sandbox| -> BenchResult<BenchClient> {
        let mut client = BenchClient::connect(&server.address, &server.make_key(name, sandbox)?)?;
        // The first runs start the template and fill the pool.
        (0..20).try_for_each(|_| client.time_print_one().map(drop))?;
        Ok(client)
    };
    let mut host = connect("host", json!({"image": "host"}))?;
    let mut image = connect("image", json!({"image": "cloche/default"}))?;
    let preload = json!({"image": "cloche/default", "preload": ["pandas"]});
    let mut ahead = connect("preload", preload)?;
    let (mut on_host, mut on_image) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        on_host.push(host.time_print_one()?);
        on_image.push(image.time_print_one()?);
    }
    let (mut bare, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..rounds.min(40) {
        let (_, printed) = image.time_program(BARE_PANDAS, "took ")?;
        let took: f64 = printed.trim_start_matches("took ").trim().parse()?;
        bare.push(Duration::from_secs_f64(took / 1000.0));
        warm.push(ahead.time_program("import pandas; print(1)", "1\n")?.0);
    }
    let all = [
        LatencyFigures::new("print(1) on host".to_owned(), on_host),
        LatencyFigures::new("print(1) on the default image".to_owned(), on_image),
        LatencyFigures::new("bare import pandas in the image".to_owned(), bare),
        LatencyFigures::new("warm import pandas on the image".to_owned(), warm),
    ];
    figures::print_table(&all);
    let [host, image, bare, warm] = all.each_ref().map(|figures| figures.percentile(50));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("print(1) on the default image : on host, p50", 1.15, image / host);
    print_promise("import pandas, imported ahead : bare in the image, p50", 0.05, warm / bare);
    Ok(())
}

/// Imports of an image in turns with what other tools need to have it unpacked; then a second image
/// that shares a layer with the first.
fn measure_imports(binary: &Path) -> BenchResult<()> {
    if [("skopeo", "--version"), ("umoci", "--version"), ("busybox", "--help")]
        .iter()
        .any(|(tool, argument)| run_tool(tool, &[argument]).is_err())
    {
        print_line("\nskipped: image-import: skopeo, umoci or busybox is not installed");
        return Ok(());
    }
    let images = SampleImages::make()?;
    let server = BenchServer::start(binary)?;
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for round in 0..IMPORTS {
        others.push(images.unpack_with_tools("one", round)?);
        ours.push(import(binary, &server, &images.layout(), "bench:one", Some("one"))?);
        if round + 1 < IMPORTS {
            run_cloche(binary, &server, &["image", "rm", "bench:one"])?;
        }
    }
    let layers = server.data().join("layers");
    let sizes = || (bytes_below(&layers.join("blobs")), bytes_below(&layers.join("cache")));
    let before = sizes();
    let second = import(binary, &server, &images.layout(), "bench:two", Some("two"))?;
    let after = sizes();
    let all = [
        LatencyFigures::new("skopeo copy and umoci unpack".to_owned(), others),
        LatencyFigures::new("cloche image import".to_owned(), ours),
        LatencyFigures::new("second image with the same base".to_owned(), vec![second]),
    ];
    figures::print_table(&all);
    let [others, ours, _] = all.each_ref().map(|figures| figures.percentile(50));
    let mib = |bytes: u64| bytes >> 20;
    print_line(&format!(
        "\nthe first image: {} MiB stored; the second added {} MiB, and {} MiB unpacked",
        mib(before.0),
        mib(after.0.saturating_sub(before.0)),
        mib(after.1.saturating_sub(before.1)),
    ));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("import of 500 MB : skopeo copy and umoci unpack, p50", 1.5, ours / others);
    let share = after.0.saturating_sub(before.0) as f64 / before.0.max(1) as f64;
    print_promise("stored for a second image with the same base : the first", 0.2, share);
    Ok(())
}

/// Imports a layout. Returns the time until the command has ended.
fn import(
    binary: &Path,
    server: &BenchServer,
    layout: &Path,
    name: &str,
    reference: Option<&str>,
) -> BenchResult<Duration> {
    let layout = layout.display().to_string();
    let mut words = vec!["image", "import", &layout, "--name", name];
    words.extend(reference.iter().flat_map(|reference| ["--ref", reference]));
    let began = Instant::now();
    run_cloche(binary, server, &words)?;
    Ok(began.elapsed())
}

fn run_cloche(binary: &Path, server: &BenchServer, words: &[&str]) -> BenchResult<()> {
    let data = server.data().display().to_string();
    run_tool(&binary.display().to_string(), &[words, &["--data-dir", &data]].concat())
}

fn run_tool(tool: &str, arguments: &[&str]) -> BenchResult<()> {
    let output = Command::new(tool).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Two images with a shared base, made of files of this host.
struct SampleImages(TempDir);

impl SampleImages {
    fn make() -> BenchResult<Self> {
        let made = Self(TempDir::new()?);
        let layout = made.layout().display().to_string();
        run_tool("umoci", &["init", "--layout", &layout])?;
        run_tool("umoci", &["new", "--image", &format!("{layout}:empty")])?;
        let mut files = files_below(Path::new("/usr/lib"));
        files.extend(files_below(Path::new("/usr/share")));
        let mut files = files.into_iter();
        made.add_layer("empty", "base", |root| {
            fs::create_dir_all(root.join("bin"))?;
            fs::copy("/bin/busybox", root.join("bin/busybox"))?;
            symlink("busybox", root.join("bin/sh"))?;
            copy_files(&mut files, root, BASE_BYTES)
        })?;
        for tag in ["one", "two"] {
            made.add_layer("base", tag, |root| copy_files(&mut files, root, OWN_BYTES))?;
        }
        Ok(made)
    }

    fn layout(&self) -> PathBuf {
        self.0.path().join("layout")
    }

    fn add_layer(
        &self,
        from: &str,
        to: &str,
        change: impl FnOnce(&Path) -> BenchResult<()>,
    ) -> BenchResult<()> {
        let layout = self.layout().display().to_string();
        let bundle = self.0.path().join("bundle");
        let path = bundle.display().to_string();
        run_tool("umoci", &["unpack", "--image", &format!("{layout}:{from}"), &path])?;
        change(&bundle.join("rootfs"))?;
        run_tool("umoci", &["repack", "--image", &format!("{layout}:{to}"), &path])?;
        Ok(fs::remove_dir_all(bundle)?)
    }

    /// Copies an image to another layout and unpacks it there, with other tools.
    fn unpack_with_tools(&self, tag: &str, round: usize) -> BenchResult<Duration> {
        let place = self.0.path().join(format!("other-{round}"));
        fs::create_dir(&place)?;
        let copy = place.join("layout").display().to_string();
        let source = format!("oci:{}:{tag}", self.layout().display());
        let bundle = place.join("bundle").display().to_string();
        let began = Instant::now();
        run_tool("skopeo", &["copy", "--quiet", &source, &format!("oci:{copy}:{tag}")])?;
        run_tool("umoci", &["unpack", "--image", &format!("{copy}:{tag}"), &bundle])?;
        let took = began.elapsed();
        fs::remove_dir_all(place)?;
        Ok(took)
    }
}

/// The regular files below a directory, in the order of their names.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(files_below(&path)),
            Ok(metadata) if metadata.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}

/// Copies files until they have this many bytes.
fn copy_files(
    files: &mut impl Iterator<Item = PathBuf>,
    root: &Path,
    bytes: u64,
) -> BenchResult<()> {
    let mut copied = 0;
    while copied < bytes {
        let Some(from) = files.next() else { break };
        let to = root.join(from.strip_prefix("/")?);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        copied += fs::copy(&from, &to)?;
    }
    Ok(())
}

fn bytes_below(directory: &Path) -> u64 {
    let files = files_below(directory).into_iter();
    files.filter_map(|path| path.symlink_metadata().ok()).map(|metadata| metadata.len()).sum()
}
