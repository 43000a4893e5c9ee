//! Runs in: the build.
//!
//! Builds the template library, which a template interpreter loads, from the core of the jail.

use std::{env, path::Path, process::Command};

fn main() {
    let jail = Path::new("../jail/src");
    // All of it: the list of files that the library uses is in `template_lib.rs` and its modules.
    println!("cargo::rerun-if-changed={}", jail.display());
    // Cargo sets all three.
    let [rustc, out, target] =
        ["RUSTC", "OUT_DIR", "TARGET"].map(|name| env::var(name).unwrap_or_default());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "cloche_template"])
        .args(["--cfg", "cloche_template", "--target", &target, "-Awarnings"])
        // No unwinding and no start-up code: the library needs only memcpy and the like from a
        // libc.
        .args(["-Cpanic=abort", "-Copt-level=3", "-Clto=fat", "-Cstrip=symbols"])
        .arg("-Clink-arg=-nostartfiles")
        .arg("-o")
        .arg(Path::new(&out).join("template.so"))
        .arg(jail.join("template_lib.rs"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the template library did not build");
}
