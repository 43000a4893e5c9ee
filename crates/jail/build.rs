//! Runs in: the build.
//!
//! Compiles the policies in `policy/` into the filters that the crate embeds. An invalid policy is
//! a build error, and no process parses a policy at run time.

use std::{env, error::Error, fmt::Write as _, fs, path::Path, process::ExitCode};

#[path = "src/seccomp/bpf.rs"]
mod bpf;
#[path = "src/seccomp/oci.rs"]
mod oci;
#[path = "src/seccomp/policy.rs"]
mod policy;
#[path = "src/seccomp/strict.rs"]
mod strict;
#[path = "src/seccomp/table.rs"]
mod table;
#[path = "src/seccomp/wider.rs"]
mod wider;

use policy::{ArgCondition, FilterPolicy, SyscallVerdict};
use strict::StrictPolicy;
use table::{Arch, RuleTable};
use wider::WiderPolicy;

/// `seccomp` is the guest's filter; the others are those of our own processes.
const POLICIES: [&str; 4] = ["seccomp", "server", "packer", "stack"];
/// What the strict profile removes from `seccomp`.
const STRICT: &str = "policy/strict.json";
/// What a contained cell, which has no namespaces, removes from that.
const CONTAINED: &str = "policy/contained.json";
/// What a mount server may do besides `server` until it has its mounts.
const MOUNT_SERVER: &str = "policy/mount_server.json";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=policy");
    println!("cargo::rerun-if-changed=src/seccomp");
    match compile_policies() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error={error}");
            ExitCode::FAILURE
        }
    }
}

fn compile_policies() -> Result<(), Box<dyn Error>> {
    let target = env::var("CARGO_CFG_TARGET_ARCH")?;
    let arch = Arch::from_cargo(&target).ok_or_else(|| {
        format!("no syscall filter for {target}; only x86_64 and aarch64 are supported")
    })?;
    let out = env::var("OUT_DIR")?;
    for name in POLICIES {
        let text = fs::read_to_string(format!("policy/{name}.json"))?;
        let policy = FilterPolicy::parse(&text).map_err(|error| format!("{name}.json: {error}"))?;
        write_filter(&policy, arch, &Path::new(&out).join(format!("{name}.bpf")))?;
        let rows = format_denials(&policy)?;
        fs::write(Path::new(&out).join(format!("{name}_denials.rs")), rows)?;
    }
    let out = Path::new(&out);
    let parse = |name: &str| -> Result<FilterPolicy, Box<dyn Error>> {
        Ok(FilterPolicy::parse(&fs::read_to_string(format!("policy/{name}.json"))?)?)
    };
    let waiting = WiderPolicy::derive_policy(&fs::read_to_string(MOUNT_SERVER)?, parse("server")?)?;
    write_filter(&waiting, arch, &out.join("mount_server.bpf"))?;
    write_bundle_filter(&parse("seccomp")?, arch, out, "seccomp")?;
    let strict = StrictPolicy::derive_policy(&fs::read_to_string(STRICT)?, parse("seccomp")?)?;
    write_filter(&strict, arch, &out.join("seccomp_strict.bpf"))?;
    write_bundle_filter(&strict, arch, out, "seccomp_strict")?;
    let contained = StrictPolicy::derive_policy(&fs::read_to_string(CONTAINED)?, strict)?;
    write_filter(&contained, arch, &out.join("seccomp_contained.bpf"))
}

/// Writes a policy in the format of OCI bundles, and in the order that gVisor needs.
fn write_bundle_filter(
    policy: &FilterPolicy,
    arch: Arch,
    out: &Path,
    name: &str,
) -> Result<(), Box<dyn Error>> {
    let filter = oci::bundle_filter(policy, arch).to_string();
    fs::write(out.join(format!("{name}.oci.json")), filter)?;
    let filter = oci::ordered_bundle_filter(policy, arch).to_string();
    Ok(fs::write(out.join(format!("{name}.gvisor.json")), filter)?)
}

fn write_filter(policy: &FilterPolicy, arch: Arch, file: &Path) -> Result<(), Box<dyn Error>> {
    // For every architecture, so that a mistake fails the build on each of them.
    for other in Arch::ALL {
        bpf::compile_filter(&RuleTable::new(policy, other)?)?;
    }
    let program = bpf::compile_filter(&RuleTable::new(policy, arch)?)?;
    fs::write(file, bpf::program_bytes(&program))?;
    Ok(())
}

/// The refused calls as a Rust array of `Denial`s.
fn format_denials(policy: &FilterPolicy) -> Result<String, std::fmt::Error> {
    let mut rows = Vec::new();
    for rule in &policy.deny {
        rows.extend(rule.calls.iter().map(|call| (call, rule.errno, None, &rule.why)));
    }
    for rule in &policy.conditional {
        for clause in &rule.clauses {
            rows.push((
                &rule.call,
                clause.then,
                Some(describe_conditions(&clause.when)),
                &clause.why,
            ));
        }
        let rest = Some("anything else".to_owned());
        rows.push((&rule.call, rule.otherwise.then, rest, &rule.otherwise.why));
    }
    let mut source = String::from("[\n");
    for (call, verdict, when, why) in rows.iter().filter(|row| row.1 != SyscallVerdict::Allow) {
        let errno = verdict.name();
        writeln!(
            source,
            "Denial {{ call: {call:?}, when: {when:?}, errno: {errno:?}, why: {why:?} }},"
        )?;
    }
    source.push(']');
    Ok(source)
}

fn describe_conditions(when: &[ArgCondition]) -> String {
    let one = |condition: &ArgCondition| {
        let names = |all: Vec<&str>| all.join(" or ");
        if condition.any_bit.is_empty() {
            let values = condition.one_of.keys().map(String::as_str).collect();
            format!("argument {} is {}", condition.arg, names(values))
        } else {
            let bits = condition.any_bit.keys().map(String::as_str).collect();
            format!("argument {} has {}", condition.arg, names(bits))
        }
    };
    when.iter().map(one).collect::<Vec<_>>().join(", ")
}
