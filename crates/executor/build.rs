//! Runs in: the build.
//!
//! Makes what the executor places in cells: the library that a template loads, from the core of the
//! jail; the command `cloche-tool`, from the same files; the Python runtime, as an archive; and the
//! Node.js preload with its constants.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

#[path = "build/archive.rs"]
mod archive;
#[path = "../jail/src/protocol/constants.rs"]
#[allow(unreachable_pub, reason = "the table is a public module of the jail")]
mod protocol;

use protocol::{NUMBERS, TEXTS};

/// The modules of the Python runtime that are in the tree; `protocol` is written here.
const MODULES: [&str; 10] = [
    "usercustomize",
    "cloche/__init__",
    "cloche/start",
    "cloche/job",
    "cloche/template",
    "cloche/preload",
    "cloche/warm_pages",
    "cloche/usual_programs",
    "cloche/exit",
    "cloche/quiet_ends",
];
/// The line of the Node.js preload that the constants replace.
const NODE_CONSTANTS: &str = "const protocol = require('./protocol.cjs');\n";

fn main() -> io::Result<()> {
    // Cargo sets all three.
    let [rustc, out, target] =
        ["RUSTC", "OUT_DIR", "TARGET"].map(|name| env::var(name).unwrap_or_default());
    let out = PathBuf::from(out);
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=guest");
    build_library(&rustc, &target, &out);
    build_tool_client(&rustc, &target, &out);
    fs::write(out.join("cloche.zip"), python_archive()?)?;
    fs::write(out.join("cloche.cjs"), node_preload()?)
}

fn build_library(rustc: &str, target: &str, out: &Path) {
    let jail = Path::new("../jail/src");
    // All of it: the list of files that the library uses is in `template_lib.rs` and its modules.
    println!("cargo::rerun-if-changed={}", jail.display());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "cloche_template"])
        .args(["--cfg", "cloche_template", "--target", target, "-Awarnings"])
        // No unwinding and no start-up code: the library needs only memcpy and the like from a
        // libc.
        .args(["-Cpanic=abort", "-Copt-level=3", "-Clto=fat", "-Cstrip=symbols"])
        .arg("-Clink-arg=-nostartfiles")
        .arg("-o")
        .arg(out.join("template.so"))
        .arg(jail.join("template_lib.rs"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the template library did not build");
}

/// The command `cloche-tool`: a static program without a libc, so that it runs on every image.
fn build_tool_client(rustc: &str, target: &str, out: &Path) {
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "bin", "--crate-name", "cloche_tool"])
        .args(["--cfg", "cloche_template", "--target", target, "-Awarnings"])
        .args(["-Cpanic=abort", "-Copt-level=s", "-Cstrip=symbols", "-Crelocation-model=static"])
        .args(["-Ctarget-feature=+crt-static", "-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib"])
        .arg("-o")
        .arg(out.join("cloche-tool"))
        .arg("../jail/src/tool_client.rs")
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cloche-tool did not build");
}

fn python_archive() -> io::Result<Vec<u8>> {
    let mut files = vec![("cloche/protocol.py".to_owned(), python_constants().into_bytes())];
    for module in MODULES {
        let name = format!("{module}.py");
        let source = fs::read(Path::new("guest/python").join(&name))?;
        files.push((name, source));
    }
    Ok(archive::archive(&files))
}

/// The module `cloche.protocol`. Rust writes these texts as Python does.
fn python_constants() -> String {
    let about = "\"\"\"Constants from crates/jail/src/protocol/constants.rs.\"\"\"\n\n".to_owned();
    let numbers = NUMBERS.iter().map(|(name, value)| format!("{name} = {value}\n"));
    let texts = TEXTS.iter().map(|(name, value)| format!("{name} = {value:?}\n"));
    about + &numbers.chain(texts).collect::<String>()
}

/// The preload is one file in the cell: a second one would cost time, and leave a trace.
fn node_preload() -> io::Result<String> {
    let numbers = NUMBERS.iter().map(|(name, value)| format!("{name}: {value}"));
    let texts = TEXTS.iter().map(|(name, value)| format!("{name}: {value:?}"));
    let all: Vec<_> = numbers.chain(texts).collect();
    let source = fs::read_to_string("guest/node/preload.cjs")?;
    let (before, after) = source.split_once(NODE_CONSTANTS).ok_or(io::ErrorKind::InvalidData)?;
    Ok(format!("{before}const protocol = {{ {} }};\n{after}", all.join(", ")))
}
