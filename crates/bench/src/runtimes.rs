//! The other sandboxes, set up for the same program with walls as similar to ours as possible.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
};

use serde_json::json;
use tempfile::TempDir;

use crate::contestants::BenchProgram;

/// bubblewrap with the namespaces and the read-only `/usr` of a cell. It has no cgroups, no
/// Landlock and, by default, no seccomp filter.
pub(crate) fn bubblewrap_argv(program: BenchProgram) -> Vec<String> {
    let walls = "bwrap --unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts \
        --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib \
        --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp";
    walls.split_whitespace().chain(program.argv()).map(str::to_owned).collect()
}

/// An OCI bundle: a root with the host's `/usr`, and the configuration.
pub(crate) struct OciBundle {
    dir: TempDir,
}

impl OciBundle {
    /// Writes the bundle to a directory of its own.
    pub(crate) fn new(program: BenchProgram) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        // The container's root is an ordinary user of the host, which must be able to enter.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let root = dir.path().join("rootfs");
        for directory in ["usr", "proc", "dev", "tmp", "etc"] {
            fs::create_dir_all(root.join(directory))?;
        }
        for name in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name))?;
        }
        fs::write(dir.path().join("config.json"), oci_config(program).to_string())?;
        Ok(Self { dir })
    }

    /// The command line of one run, as a container with this id.
    pub(crate) fn run_argv(&self, runtime: &str, flags: &[&str], id: String) -> Vec<String> {
        let mut argv = vec![runtime.to_owned()];
        argv.extend(flags.iter().map(|&flag| flag.to_owned()));
        let path = self.dir.path().display().to_string();
        argv.extend(["run".to_owned(), "--bundle".to_owned(), path, id]);
        argv
    }
}

/// The walls of a cell that the OCI specification can express, without a seccomp filter, because
/// theirs would differ from ours.
fn oci_config(program: BenchProgram) -> serde_json::Value {
    let namespaces = ["user", "pid", "network", "ipc", "uts", "mount", "cgroup"];
    let namespaces = namespaces.map(|kind| json!({ "type": kind }));
    let ids = json!([{ "containerID": 0, "hostID": 0x6000_0000, "size": 65536 }]);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 }, "cwd": "/", "args": program.argv(),
            "env": ["PATH=/usr/bin:/bin"], "noNewPrivileges": true, "capabilities": {},
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "bench",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"] },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
        ],
        "linux": {
            "namespaces": namespaces, "uidMappings": ids, "gidMappings": ids,
            "resources": {
                "memory": { "limit": 1 << 30 }, "pids": { "limit": 256 },
                "cpu": { "quota": 100_000, "period": 100_000 },
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi"],
            "readonlyPaths": ["/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq"],
        },
    })
}
