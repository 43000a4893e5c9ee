//! Runs in: `cloche doctor`.
//!
//! The confinement of a server on this host. Starts children that confine themselves like a server
//! and then try what it must not be able to do, and judges by the results.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::Command,
};

use clap::ValueEnum;
use cloche_jail::launch::GUEST_OOM_SCORE;
use serde::Serialize;

use super::{
    advice,
    walls::{Wall, WallState},
};
use crate::identity::trial::{ConfinedProcess, EscapeAttempt};

/// The signal of a system call that a filter forbids.
const SIGSYS: i32 = 31;

/// The state of a confined server, and the results of its attempts.
#[derive(Serialize)]
pub(super) struct ServerFindings {
    /// The confined process. `None` if it could not be confined.
    pub(super) process: Option<ConfinedProcess>,
    /// Why it could not be confined.
    pub(super) why: Option<String>,
    /// The score of every guest, whatever the spawner has.
    pub(super) guest_oom_score_adj: i32,
    pub(super) attempts: Vec<AttemptResult>,
}

/// The result of one attempt.
#[derive(Serialize)]
pub(super) struct AttemptResult {
    pub(super) attempt: EscapeAttempt,
    /// Whether the result was the required one.
    pub(super) held: bool,
    /// What happened.
    pub(super) how: String,
}

/// Runs all attempts.
pub(super) fn examine_server() -> ServerFindings {
    let mut findings = ServerFindings {
        process: None,
        why: None,
        guest_oom_score_adj: GUEST_OOM_SCORE,
        attempts: Vec::new(),
    };
    if let Err(error) = try_all(&mut findings) {
        findings.why = Some(error.to_string());
    }
    findings
}

fn try_all(findings: &mut ServerFindings) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    // By its mode, every user could read the decoy.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
    let decoy = dir.path().join("decoy");
    fs::write(&decoy, "read\n")?;
    fs::set_permissions(&decoy, Permissions::from_mode(0o644))?;
    for attempt in EscapeAttempt::value_variants() {
        let (text, killed) = run_confined(*attempt, dir.path(), &decoy)?;
        if *attempt == EscapeAttempt::Report {
            findings.process = Some(serde_json::from_str(&text)?);
            continue;
        }
        let done = text == "done" && !killed;
        let held = done == (*attempt == EscapeAttempt::WriteInside);
        let how = if killed { "killed (SIGSYS)".to_owned() } else { text };
        findings.attempts.push(AttemptResult { attempt: *attempt, held, how });
    }
    Ok(())
}

/// The output of a child, and whether the seccomp filter killed it.
fn run_confined(attempt: EscapeAttempt, dir: &Path, decoy: &Path) -> io::Result<(String, bool)> {
    let name = attempt.to_possible_value().map(|value| value.get_name().to_owned());
    let output = Command::new("/proc/self/exe")
        .args(["__confined", &name.unwrap_or_default(), "--data-dir"])
        .arg(dir.join(format!("data-{attempt:?}")))
        .arg("--decoy")
        .arg(decoy)
        .output()?;
    let killed = output.status.signal() == Some(SIGSYS);
    if !killed && !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(message));
    }
    Ok((String::from_utf8_lossy(&output.stdout).trim().to_owned(), killed))
}

/// The server's walls, in the form of the sandbox's walls.
pub(super) fn server_walls(findings: &ServerFindings) -> Vec<Wall> {
    const WALLS: [(&str, &str, &[EscapeAttempt]); 5] = [
        (
            "server:user",
            "root's powers in a compromised server",
            &[EscapeAttempt::BecomeRoot, EscapeAttempt::ReadShadow],
        ),
        (
            "server:root",
            "reading the host's files through the server",
            &[EscapeAttempt::ReadOutside],
        ),
        (
            "server:landlock",
            "writing outside the data directory",
            &[EscapeAttempt::WriteOutside, EscapeAttempt::WriteDevice, EscapeAttempt::WriteInside],
        ),
        (
            "server:seccomp",
            "programs, processes and mounts from the server",
            &[EscapeAttempt::Execute, EscapeAttempt::Fork, EscapeAttempt::Mount],
        ),
        (
            "packer:seccomp",
            "programs from a packer, which has capabilities",
            &[EscapeAttempt::PackerExecute],
        ),
    ];
    let missing = findings.process.as_ref().map(|process| process.missing.as_slice());
    let judge = |(name, stops, attempts): (&'static str, &'static str, &[EscapeAttempt])| {
        let reported = missing.unwrap_or_default().iter().find(|(wall, _)| wall == name);
        let failed =
            findings.attempts.iter().find(|tried| !tried.held && attempts.contains(&tried.attempt));
        let why = reported
            .map(|(_, why)| why.clone())
            .or_else(|| failed.map(|tried| format!("{:?}: {}", tried.attempt, tried.how)))
            .or_else(|| findings.why.clone());
        let state = if why.is_some() { WallState::Missing } else { WallState::Present };
        let how = why.is_some().then(|| advice::how_to_get(name));
        Wall { name, stops, state, why, how }
    };
    WALLS.into_iter().map(judge).collect()
}

/// The findings as lines of text.
pub(super) fn server_lines(findings: &ServerFindings) -> Vec<String> {
    let Some(process) = &findings.process else {
        let why = findings.why.as_deref().unwrap_or("no answer");
        return vec![format!("none     server             {why}")];
    };
    let name = process.user.as_deref().unwrap_or("no name");
    let change = if process.changed_user { "becomes" } else { "stays" };
    let yes = |is: bool| if is { "yes" } else { "no" };
    let line = |what: &str, text: String| format!("         {what:<18} {text}");
    vec![
        line("server user", format!("{change} {}:{} ({name})", process.uid, process.gid)),
        line(
            "server process",
            format!(
                "capabilities: {}, no new privileges: {}, system call filter: {}",
                if process.capabilities { "some" } else { "none" },
                yes(process.no_new_privs),
                yes(process.seccomp),
            ),
        ),
        line("data directory", format!("mode {:04o}", process.data_dir_mode)),
        line(
            "oom_score_adj",
            format!(
                "server and spawner {}, guests {}",
                process.oom_score_adj, findings.guest_oom_score_adj
            ),
        ),
    ]
}
