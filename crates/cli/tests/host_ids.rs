//! Runs in: test. Two spawners on one host give their cells different host ids.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

#[path = "support/cloche.rs"]
mod support;

use support::{binary, skip};

/// A run that has told its host id and stays.
struct Staying {
    child: Child,
    host_id: u32,
}

impl Staying {
    fn start() -> Self {
        let code = "while read inside outside count; do echo $inside $outside; done \
            < /proc/self/uid_map; echo end; read";
        let mut child = Command::new(binary())
            .args(["run", "--language", "bash", "-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| line != "end").collect();
        let guest = lines.iter().find_map(|line| line.strip_prefix("1000 "));
        let host_id = guest.unwrap_or_else(|| panic!("{lines:?}")).parse().unwrap();
        Self { child, host_id }
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

#[test]
fn cells_of_two_spawners_have_different_host_ids() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can give each cell an id of its own");
        return;
    }
    let (one, other) = (Staying::start(), Staying::start());
    assert_ne!(one.host_id, other.host_id);
}
