//! Why a wall may be missing on this host, and the commands that provide it.
//!
//! Reads the host's settings to choose among the common causes. It only gives advice; it does not
//! decide whether a wall is present.

use std::fs;

use cloche_jail::speculation::{KINDS, can_disable};

/// How to get a wall, judging by this host's settings.
pub(super) fn how_to_get(wall: &str) -> String {
    match wall {
        "namespace:user" => user_namespace_advice(),
        "ground" | "root" | "server:root" if is_restricted_by_apparmor() => APPARMOR_ADVICE.into(),
        "host-uid" => "run as root; as an ordinary user all sandboxes share your user id".into(),
        "landlock" | "server:landlock" => landlock_advice(),
        "server:root" => "run as root, or user namespaces in which mounts are allowed; see \
            namespace:user"
            .into(),
        "server:user" => "create a user named cloche, or give `--user`".into(),
        "seccomp" | "server:seccomp" | "packer:seccomp" => {
            "a kernel with CONFIG_SECCOMP_FILTER".into()
        }
        "root" => {
            "overlay mounts in user namespaces: Linux 5.11 or later, and `modprobe overlay`".into()
        }
        "proc" => "a /proc without mounts over parts of it; start the container with \
            `--security-opt systempaths=unconfined`"
            .into(),
        "ground" => "start the container with `--privileged`, or with \
            `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
            .into(),
        _ if wall.starts_with("namespace:") => other_namespace_advice(wall),
        _ if wall.starts_with("cgroup") => cgroup_advice(),
        _ => "Linux 5.15 or later; on such a kernel, please report a bug with this name and reason"
            .into(),
    }
}

fn read_setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn user_namespace_advice() -> String {
    let is = |path: &str, value: &str| read_setting(path).as_deref() == Some(value);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        return "`sysctl user.max_user_namespaces=28633`".into();
    }
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "`sysctl kernel.unprivileged_userns_clone=1`, or run as root".into();
    }
    if is(APPARMOR_SETTING, "1") {
        return APPARMOR_ADVICE.into();
    }
    "a kernel with CONFIG_USER_NS; start a container with \
        `--security-opt seccomp=unconfined`"
        .into()
}

/// Ubuntu's restriction. An ordinary user gets a user namespace, but no capability in it: the first
/// mount fails, not the namespace.
const APPARMOR_SETTING: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const APPARMOR_ADVICE: &str = "AppArmor restricts user namespaces of ordinary users: run as root, \
    or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or load an AppArmor profile for \
    cloche that says `userns,` (docs/OPERATIONS.md)";

fn is_restricted_by_apparmor() -> bool {
    restricts_user(read_setting(APPARMOR_SETTING).as_deref(), rustix::process::geteuid().is_root())
}

fn restricts_user(setting: Option<&str>, is_root: bool) -> bool {
    setting.is_some_and(|value| value != "0") && !is_root
}

fn other_namespace_advice(wall: &str) -> String {
    let kind = wall.trim_start_matches("namespace:");
    let file = if kind == "mount" { "mnt" } else { kind };
    if read_setting(&format!("/proc/sys/user/max_{file}_namespaces")).as_deref() == Some("0") {
        return format!("`sysctl user.max_{file}_namespaces=28633`");
    }
    format!("first namespace:user; then a kernel with CONFIG_{}_NS", kind.to_uppercase())
}

fn landlock_advice() -> String {
    match read_setting("/sys/kernel/security/lsm") {
        Some(active) if !active.split(',').any(|name| name == "landlock") => {
            format!("add landlock to the kernel parameter: `lsm=landlock,{active}`")
        }
        _ => "Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and landlock in `lsm=`".into(),
    }
}

fn cgroup_advice() -> String {
    let mounts = read_setting("/proc/self/mounts").unwrap_or_default();
    let has = |kind: &str| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    if !has("cgroup") && !has("cgroup2") {
        return "`mount -t cgroup2 cgroup2 /sys/fs/cgroup`".into();
    }
    if rustix::process::geteuid().is_root() {
        return "memory, pids and cpu controllers that are not disabled \
            (`cgroup_disable=`) and a writable /sys/fs/cgroup"
            .into();
    }
    if has("cgroup") {
        return "run as root: with v1 control groups an ordinary user has none".into();
    }
    "a delegated group: `systemd-run --user --scope -p Delegate=yes cloche …`, or run as root"
        .into()
}

/// The kernel's release.
pub(super) fn kernel_release() -> String {
    read_setting("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// Which kinds of speculation the strict profile can disable on this host.
fn speculation_note(controls: [bool; 2]) -> String {
    let names = ["store bypass (SSBD)", "indirect branches (STIBP)"].into_iter().zip(controls);
    let controllable: Vec<_> = names.filter_map(|(name, can)| can.then_some(name)).collect();
    if controllable.is_empty() {
        return "speculation cannot be disabled per process on this host, so the strict profile \
            does not disable it"
            .to_owned();
    }
    format!("the strict profile disables speculation on {}", controllable.join(" and "))
}

/// Remarks about this host that are not about walls.
pub(super) fn host_notes() -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(handler) =
        read_setting("/proc/sys/kernel/core_pattern").filter(|p| p.starts_with('|'))
    {
        notes.push(format!(
            "core dumps are piped to {handler} on the host; sandboxes are limited so that it never \
             runs for them"
        ));
    }
    if is_restricted_by_apparmor() {
        notes.push(APPARMOR_ADVICE.to_owned());
    }
    let version = if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        "control groups are v2"
    } else {
        "control groups are v1 or hybrid: they are slower to enter than v2"
    };
    notes.push(version.to_owned());
    notes.push(speculation_note(KINDS.map(|(kind, _)| can_disable(kind))));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ubuntu_restricts_ordinary_users_only() {
        assert!(restricts_user(Some("1"), false));
        for (setting, is_root) in [(Some("1"), true), (Some("0"), false), (None, false)] {
            assert!(!restricts_user(setting, is_root), "{setting:?} {is_root}");
        }
    }
}
