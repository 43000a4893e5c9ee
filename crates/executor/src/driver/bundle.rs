//! Runs in: driver (root).
//!
//! Writes the bundle: the walls of a cell as an OCI runtime builds them.
//!
//! Memory, processors and processes are limited by the cgroup that the cell is in already. The
//! bundle has no hooks, no annotations and no cgroup, and it names no path of the host.

use std::{fs, io};

use cloche_jail::{proc_masks, rlimits, seccomp};
use cloche_model::{MOUNTS_ROOT, OciRuntime, SECRETS_DIR};
use serde_json::{Value, json};

use super::{
    DriverSetup,
    placement::GuestCommand,
    stage::{RUN, STAGE, STAGE_ROOT},
};
use crate::protocol::{GUEST_ID, HOME};

/// The namespaces that the runtime always makes. That of the network is this cell's already.
const NEW_NAMESPACES: [&str; 3] = ["mount", "ipc", "uts"];
/// Those in which a pid 1 of ours may be.
const INIT_NAMESPACES: [&str; 2] = ["user", "pid"];
/// The sets of capabilities, all empty.
const CAPABILITY_SETS: [&str; 5] = ["bounding", "effective", "inheritable", "permitted", "ambient"];

/// Writes the bundle for this command. `init` is pid 1 of the guest's namespaces, if it is a process
/// of ours.
pub(super) fn write_bundle(
    setup: &DriverSetup,
    command: &GuestCommand,
    init: Option<i32>,
) -> io::Result<()> {
    let config = bundle_config(setup, command, init)?;
    fs::create_dir(format!("{RUN}/bundle"))?;
    fs::write(format!("{RUN}/bundle/config.json"), serde_json::to_vec(&config)?)
}

fn bundle_config(
    setup: &DriverSetup,
    command: &GuestCommand,
    init: Option<i32>,
) -> io::Result<Value> {
    let limits = rlimits::bundle_limits(&setup.rlimits, setup.facts.open_files);
    let limits: Vec<Value> = limits
        .into_iter()
        .map(|(name, soft, hard)| json!({"type": name, "soft": soft, "hard": hard}))
        .collect();
    let capabilities: serde_json::Map<String, Value> =
        CAPABILITY_SETS.iter().map(|set| ((*set).to_owned(), json!([]))).collect();
    let filter = match setup.runtime {
        OciRuntime::Crun | OciRuntime::Runc => seccomp::guest_bundle_filter(setup.syscalls),
        OciRuntime::Runsc => seccomp::guest_gvisor_filter(setup.syscalls),
    };
    let filter = filter.ok_or_else(|| io::Error::other("a contained cell has no bundle"))?;
    let filter: Value = serde_json::from_str(filter)?;
    Ok(json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": GUEST_ID, "gid": GUEST_ID, "additionalGids": []},
            "args": command.args,
            "env": command.env,
            "cwd": HOME,
            "noNewPrivileges": true,
            "capabilities": capabilities,
            "rlimits": limits,
        },
        "root": {"path": STAGE_ROOT, "readonly": true},
        "hostname": "cloche",
        "mounts": mounts(setup),
        "linux": {
            "namespaces": namespaces(init),
            "uidMappings": id_mappings(setup),
            "gidMappings": id_mappings(setup),
            "maskedPaths": masked_paths(setup),
            "readonlyPaths": read_only_paths(setup),
            "rootfsPropagation": "private",
            "seccomp": filter,
        },
    }))
}

fn namespaces(init: Option<i32>) -> Vec<Value> {
    let of_init = INIT_NAMESPACES.iter().map(|kind| match init {
        Some(pid) => json!({"type": kind, "path": format!("/proc/{pid}/ns/{kind}")}),
        None => json!({"type": kind}),
    });
    let new = NEW_NAMESPACES.iter().map(|kind| json!({"type": kind}));
    // The runtime is a process of this namespace, and its guest is too if the bundle names none.
    // runc would enter it after the user namespace, where it may not. runsc has to be told.
    let network = init.is_none().then(|| json!({"type": "network", "path": "/proc/self/ns/net"}));
    of_init.chain(new).chain(network).collect()
}

fn id_mappings(setup: &DriverSetup) -> Value {
    json!([
        {"containerID": 0, "hostID": setup.image_owner, "size": 1},
        {"containerID": GUEST_ID, "hostID": setup.guest, "size": 1},
    ])
}

/// What must not be seen under `/proc`. The others are for the host's root, which no guest is.
fn masked_paths(setup: &DriverSetup) -> Vec<String> {
    setup.facts.proc_masks.iter().map(|(path, _)| format!("/proc/{path}")).collect()
}

/// What stays visible and is read-only. For crun also the masks below it, each after it: crun masks
/// first, and then mounts all of this once more, without their flags.
fn read_only_paths(setup: &DriverSetup) -> Vec<String> {
    let mut paths: Vec<String> = proc_masks::READ_ONLY.map(|path| format!("/proc/{path}")).into();
    let is_below = |path: &String| paths.iter().any(|above| path.starts_with(&format!("{above}/")));
    let masks = masked_paths(setup).into_iter().filter(|_| setup.runtime == OciRuntime::Crun);
    let below: Vec<String> = masks.filter(is_below).collect();
    paths.extend(below);
    paths
}

fn mounts(setup: &DriverSetup) -> Value {
    let is_gvisor = setup.runtime == OciRuntime::Runsc;
    // In gVisor the nodes are files of this tmpfs, and could not be opened for writing.
    let dev_access = if is_gvisor { "rw" } else { "ro" };
    let writable = |name: &str, at: &str| {
        json!({
            "destination": at, "type": "bind", "source": format!("{STAGE}/{name}"),
            "options": ["rbind", "nosuid", "nodev", "rw", "rprivate"],
        })
    };
    let mut mounts = vec![
        json!({
            "destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "nodev", "noexec"],
        }),
        json!({
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", dev_access, "mode=755", "size=64k"],
        }),
        json!({
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"],
        }),
        if is_gvisor { own_shared_memory(setup) } else { writable("shm", "/dev/shm") },
        writable("tmp", "/tmp"),
        writable("home", HOME),
        writable("secrets", SECRETS_DIR),
        // What was mounted there for the cell.
        writable("data", MOUNTS_ROOT),
    ];
    if is_gvisor {
        // Without a mount there runsc shows a tree of its own.
        mounts.push(json!({
            "destination": "/sys", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", "noexec", "ro", "mode=755", "size=4k"],
        }));
    }
    mounts.into()
}

/// The `/dev/shm` of gVisor's own memory. In a directory of the host, two names of one file are two
/// files to its futexes, and so a process waits for ever for a named semaphore of another one.
fn own_shared_memory(setup: &DriverSetup) -> Value {
    let size = format!("size={}", setup.shared_memory_bytes());
    json!({
        "destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs",
        "options": ["nosuid", "nodev", "rw", "mode=1777", size],
    })
}
