//! The `host` image: this machine's `/usr`, and an `/etc` of our own making.
//!
//! Builds the small tree around `/usr` that makes it a root file system. It copies only what is
//! on its list; nothing else of the host's is there. It must not know how the tree is mounted.

use std::{
    fs::{self, FileType},
    io,
    os::unix::fs::{PermissionsExt, lchown, symlink},
    path::Path,
};

/// The name of the user that guest code runs as, and its home.
pub const USER: &str = "baponi";
/// The home and working directory of guest code.
pub const HOME: &str = "/home/baponi";
/// What has Node.js wait for its job; in every box, and without effect in a program.
pub(crate) const NODE_START: &str = "/etc/cloche.cjs";
/// The guest's user and group id, as it sees them.
pub(crate) const GUEST_ID: u32 = 1000;

/// Directories that are empty until something is mounted on them.
const MOUNT_POINTS: [&str; 8] = ["usr", "proc", "sys", "dev", "tmp", "home/baponi", "run", "data"];
/// Directories that stay empty, as programs expect them.
const EMPTY: [&str; 9] =
    ["etc", "var/lib", "var/cache", "var/log", "opt", "root", "mnt", "srv", "media"];
/// Files and trees taken from the host's `/etc` as they are: how libraries and certificates are
/// found, names of services, time zone, which alternative is chosen. Nothing secret.
const FROM_HOST_ETC: [&str; 15] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "timezone",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "services",
    "protocols",
    "mime.types",
    "os-release",
    "debian_version",
    "python3",
    "python3.11",
];

/// `/etc` of our own making.
fn generated_etc() -> [(&'static str, String); 8] {
    [
        (
            "passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{GUEST_ID}:{GUEST_ID}::{HOME}:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("group", format!("root:x:0:\ntty:x:5:\n{USER}:x:{GUEST_ID}:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost cloche\n::1 localhost ip6-localhost\n".into()),
        ("hostname", "cloche\n".into()),
        ("resolv.conf", "# no network, no resolver\n".into()),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n".into(),
        ),
        ("shells", "/bin/sh\n/bin/bash\n".into()),
        ("cloche.cjs", include_str!(concat!(env!("OUT_DIR"), "/cloche.cjs")).into()),
    ]
}

/// Builds the tree in `root`, which is empty, owned by `owner`.
pub(crate) fn build_image(root: &Path, host: &Path, owner: Option<u32>) -> io::Result<()> {
    for directory in MOUNT_POINTS.iter().chain(&EMPTY) {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::create_dir_all(root.join("etc/ssl"))?;
    symlink("/tmp", root.join("var/tmp"))?;
    symlink("/run", root.join("var/run"))?;
    link_merged_usr(root, host)?;
    for path in FROM_HOST_ETC {
        let from = host.join("etc").join(path);
        if let Ok(metadata) = fs::symlink_metadata(&from) {
            copy_tree(&from, metadata.file_type(), &root.join("etc").join(path))?;
        }
    }
    for (name, content) in generated_etc() {
        fs::write(root.join("etc").join(name), content)?;
    }
    symlink("/proc/self/mounts", root.join("etc/mtab"))?;
    owner.map_or(Ok(()), |owner| chown_tree(root, owner))
}

/// `/bin`, `/lib` and the like: links into `/usr`, as the host has them.
fn link_merged_usr(root: &Path, host: &Path) -> io::Result<()> {
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        match fs::read_link(host.join(name)) {
            Ok(target) => symlink(target, root.join(name))?,
            Err(_) if host.join("usr").join(name).is_dir() => {
                symlink(Path::new("usr").join(name), root.join(name))?;
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Copies a file, a link or a tree. Hosts have hundreds of links there, so each costs no more
/// than reading and making it.
fn copy_tree(from: &Path, kind: FileType, to: &Path) -> io::Result<()> {
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), entry.file_type()?, &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if kind.is_file() {
        // What only root may read on the host is not for guests: left out.
        if fs::metadata(from)?.permissions().mode() & 0o004 == 0 {
            return Ok(());
        }
        fs::copy(from, to)?;
    }
    Ok(())
}

/// Gives the tree to the image's owner, so that it is root's inside the box. Links are left as
/// they are: nobody asks who owns one.
pub(crate) fn chown_tree(path: &Path, owner: u32) -> io::Result<()> {
    lchown(path, Some(owner), Some(owner))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            chown_tree(&entry.path(), owner)?;
        } else if !kind.is_symlink() {
            lchown(entry.path(), Some(owner), Some(owner))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        for dir in ["usr/bin", "usr/lib", "etc/ssl/certs", "root"] {
            fs::create_dir_all(host.path().join(dir)).unwrap();
        }
        symlink("usr/bin", host.path().join("bin")).unwrap();
        for file in ["etc/shadow", "etc/services", "root/secret", "etc/ssl/certs/a.pem"] {
            fs::write(host.path().join(file), file).unwrap();
        }
        host
    }

    #[test]
    fn only_what_is_on_the_list_is_taken() {
        let (host, root) = (host(), tempfile::tempdir().unwrap());
        build_image(root.path(), host.path(), None).unwrap();
        let there = |path: &str| fs::symlink_metadata(root.path().join(path)).is_ok();
        assert!(there("etc/services") && there("etc/ssl/certs/a.pem") && there("bin"));
        assert!(there("etc/passwd") && there("lib") && there("home/baponi"));
        assert!(!there("etc/shadow") && !there("root/secret"));
    }

    #[test]
    fn a_file_that_others_may_not_read_stays_on_the_host() {
        let (host, root) = (host(), tempfile::tempdir().unwrap());
        let private = host.path().join("etc/ssl/certs/a.pem");
        fs::set_permissions(&private, fs::Permissions::from_mode(0o640)).unwrap();
        build_image(root.path(), host.path(), None).unwrap();
        assert!(!root.path().join("etc/ssl/certs/a.pem").exists());
    }
}
