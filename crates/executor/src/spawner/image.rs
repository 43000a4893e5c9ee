//! Runs in: spawner (root). The trees that the spawner makes itself: the `host` image, which is
//! `/usr` of this host and a generated `/etc`; and what lies over every other image.
//!
//! Builds the small tree around `/usr` that makes it a root file system. It copies only what is on
//! its list, and nothing else of the host. It must not know how the tree is mounted.

use std::{
    fs::{self, FileType},
    io,
    os::unix::fs::{PermissionsExt, lchown, symlink},
    path::{Path, PathBuf},
};

use cloche_egress::addresses;
use cloche_jail::plan::RESOLVER_FILE;

use crate::protocol::{GUEST_ID, HOME, TOOL_CLIENT_DIR, TOOL_SOCKET_DIR, USER};

/// Directories that are empty until something is mounted on them.
const MOUNT_POINTS: [&str; 9] =
    ["usr", "proc", "sys", "dev", "tmp", "home/baponi", "run/secrets", "run/trust", "data"];
/// Directories that stay empty, as programs expect them.
const EMPTY: [&str; 9] =
    ["etc", "var/lib", "var/cache", "var/log", "opt", "root", "mnt", "srv", "media"];
/// Files and trees that are copied from the host's `/etc`: where libraries and certificates are,
/// names of services, the time zone, the chosen alternatives. None of them is secret.
pub(super) const FROM_HOST_ETC: [&str; 15] = [
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

/// The directories of every other image that a cell mounts on, or that a template does.
const OVER_IMAGES: [&str; 12] = [
    "proc",
    "sys",
    "dev",
    "tmp",
    "home/baponi",
    "run/secrets",
    "run/trust",
    "data",
    "etc",
    "var",
    "srv",
    "media",
];

/// The files of `/etc` that every cell has, whatever its image is.
fn cell_etc(shell: &str) -> [(&'static str, String); 7] {
    [
        (
            "passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{GUEST_ID}:{GUEST_ID}::{HOME}:{shell}\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("group", format!("root:x:0:\ntty:x:5:\n{USER}:x:{GUEST_ID}:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost cloche\n::1 localhost ip6-localhost\n".into()),
        ("hostname", "cloche\n".into()),
        ("resolv.conf", "# no network, no resolver\n".into()),
        (RESOLVER_FILE.trim_start_matches("/etc/"), addresses::RESOLV_CONF.into()),
        ("cloche.cjs", include_str!(concat!(env!("OUT_DIR"), "/cloche.cjs")).into()),
    ]
}

/// The other generated files of the host image's `/etc`.
const HOST_ETC: [(&str, &str); 2] = [
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n"),
    ("shells", "/bin/sh\n/bin/bash\n"),
];

/// Builds the tree in `root`, which is empty, and gives it to `owner`.
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
    for (name, content) in HOST_ETC {
        fs::write(root.join("etc").join(name), content)?;
    }
    finish_tree(root, "/bin/bash", owner)
}

/// Builds the tree that lies over the layers of an image, in `root`, which is empty. What a cell
/// mounts on is a directory of this tree, so no link of an image leads a mount elsewhere.
pub(crate) fn build_skeleton(root: &Path, owner: Option<u32>) -> io::Result<()> {
    for directory in OVER_IMAGES {
        fs::create_dir_all(root.join(directory))?;
    }
    symlink("/tmp", root.join("var/tmp"))?;
    finish_tree(root, "/bin/sh", owner)
}

/// The clients of the web tools, by their path in `/run/cloche`: a command for any program, and a
/// module for Python.
const TOOL_CLIENTS: [(&str, &[u8], u32); 2] = [
    ("bin/cloche-tool", include_bytes!(concat!(env!("OUT_DIR"), "/cloche-tool")), 0o755),
    ("python/cloche_tools.py", include_bytes!("../../guest/python/cloche_tools.py"), 0o644),
];

/// Adds the clients of the web tools, and the directory that their socket is mounted on.
fn add_tool_clients(root: &Path) -> io::Result<()> {
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    fs::create_dir_all(inside(TOOL_SOCKET_DIR))?;
    for (name, content, mode) in TOOL_CLIENTS {
        let path = inside(TOOL_CLIENT_DIR).join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn finish_tree(root: &Path, shell: &str, owner: Option<u32>) -> io::Result<()> {
    add_tool_clients(root)?;
    for (name, content) in cell_etc(shell) {
        fs::write(root.join("etc").join(name), content)?;
    }
    symlink("/proc/self/mounts", root.join("etc/mtab"))?;
    owner.map_or(Ok(()), |owner| chown_tree(root, owner))
}

/// The directories of Python packages that are not part of the standard library, below a root and
/// without it. Distributions and images of Python have them at different places.
pub(crate) fn list_package_dirs(root: &Path) -> Vec<PathBuf> {
    const PARENTS: [&str; 4] = ["usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64"];
    const NAMES: [&str; 2] = ["dist-packages", "site-packages"];
    let mut found = Vec::new();
    for parent in PARENTS {
        for entry in fs::read_dir(root.join(parent)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with("python") {
                continue;
            }
            for packages in NAMES {
                let below = Path::new(parent).join(&name).join(packages);
                let is_directory = |found: fs::Metadata| found.is_dir();
                if fs::symlink_metadata(root.join(&below)).is_ok_and(is_directory) {
                    found.push(Path::new("/").join(below));
                }
            }
        }
    }
    found.sort();
    found
}

/// Directories that OCI runtimes expect. Each driver mounts on those that it needs.
const FOR_RUNTIMES: [&str; 4] = ["run", "tmp", "etc", "sys/fs/cgroup"];

/// Makes in the spawner's own root what an OCI runtime of the host needs to be loaded.
pub(crate) fn prepare_for_runtimes(root: &Path, host: &Path) -> io::Result<()> {
    for directory in FOR_RUNTIMES {
        fs::create_dir_all(root.join(directory))?;
    }
    link_merged_usr(root, host)?;
    match fs::read(host.join("etc/ld.so.cache")) {
        Ok(cache) => fs::write(root.join("etc/ld.so.cache"), cache),
        Err(_) => Ok(()),
    }
}

/// Makes `/bin`, `/lib` and the others links into `/usr`, as on the host.
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

/// Copies a file, a link or a tree. Hosts have hundreds of links there, so a link costs only
/// reading and making it.
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
        // A file that not every user of the host may read is left out.
        if fs::metadata(from)?.permissions().mode() & 0o004 == 0 {
            return Ok(());
        }
        fs::copy(from, to)?;
    }
    Ok(())
}

/// Gives the tree to the image's owner, who is root inside a cell. Links are left as they are,
/// because no program depends on the owner of a link.
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
    fn the_image_has_only_files_of_the_list() {
        let (host, root) = (host(), tempfile::tempdir().unwrap());
        build_image(root.path(), host.path(), None).unwrap();
        let has = |path: &str| fs::symlink_metadata(root.path().join(path)).is_ok();
        assert!(has("etc/services") && has("etc/ssl/certs/a.pem") && has("bin"));
        assert!(has("etc/passwd") && has("lib") && has("home/baponi"));
        assert!(!has("etc/shadow") && !has("root/secret"));
    }

    #[test]
    fn packages_are_found_where_distributions_and_images_have_them() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "usr/lib/python3/dist-packages",
            "usr/lib/python3.11/lib-dynload",
            "usr/local/lib/python3.11/dist-packages",
            "usr/local/lib/python3.13/site-packages",
            "usr/lib/node/site-packages",
        ] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let found = list_package_dirs(root.path());
        let expected = [
            "/usr/lib/python3/dist-packages",
            "/usr/local/lib/python3.11/dist-packages",
            "/usr/local/lib/python3.13/site-packages",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn a_file_that_other_users_may_not_read_is_not_copied() {
        let (host, root) = (host(), tempfile::tempdir().unwrap());
        let private = host.path().join("etc/ssl/certs/a.pem");
        fs::set_permissions(&private, fs::Permissions::from_mode(0o640)).unwrap();
        build_image(root.path(), host.path(), None).unwrap();
        assert!(!root.path().join("etc/ssl/certs/a.pem").exists());
    }
}
