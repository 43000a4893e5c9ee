//! Runs in: test. Running a command to its end: what it printed, and never a wait without an end.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Longer than any command of a test needs, also on a busy host; a test that hangs fails instead.
const LONGEST_COMMAND: Duration = Duration::from_secs(360);

/// What a command left behind.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output as text.
    pub stdout: String,
    /// Standard error as text.
    pub stderr: String,
    /// Standard output as it was written.
    pub bytes: Vec<u8>,
}

impl Ended {
    /// Demands success, and returns what was printed.
    #[track_caller]
    pub fn printed(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// The JSON object that was printed.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command with this standard input, and waits until it has ended.
pub fn ended(mut command: Command, stdin: &[u8]) -> Ended {
    let said = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{said}: {error}"));
    let mut pipe = child.stdin.take().unwrap();
    let stdin = stdin.to_owned();
    // A program that does not read its input closes the pipe: no failure of the test.
    thread::spawn(move || drop(pipe.write_all(&stdin)));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || drop(sender.send(child.wait_with_output())));
    let output = receiver.recv_timeout(LONGEST_COMMAND);
    let output: Output = output.unwrap_or_else(|_| panic!("{said} did not end")).unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        bytes: output.stdout,
    }
}
