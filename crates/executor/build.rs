//! Builds the library that a template interpreter loads, from the jail's core.

use std::{env, path::Path, process::Command};

fn main() {
    let jail = Path::new("../jail/src");
    // All of it: the library is a few files of many, and which ones changes.
    println!("cargo::rerun-if-changed={}", jail.display());
    // Cargo sets all three.
    let [rustc, out, target] =
        ["RUSTC", "OUT_DIR", "TARGET"].map(|name| env::var(name).unwrap_or_default());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "cloche_template"])
        .args(["--cfg", "cloche_template", "--target", &target, "-Awarnings"])
        // No unwinding and no start-up code: nothing is left to be found in a libc but memcpy.
        .args(["-Cpanic=abort", "-Copt-level=3", "-Clto=fat", "-Cstrip=symbols"])
        .arg("-Clink-arg=-nostartfiles")
        .arg("-o")
        .arg(Path::new(&out).join("template.so"))
        .arg(jail.join("template.rs"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the template's library did not build");
}
