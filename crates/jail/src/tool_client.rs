//! Runs in: guest.
//!
//! The crate root of `cloche-tool`, a third crate from the files of this one: the command with which
//! any program of a guest calls a web tool. The build script of `cloche-executor` compiles it to a
//! static program that needs no libc, so it runs on every image. `sys/tool_client_start.rs` has
//! what is unsafe.
//!
//! It sends one line of JSON to the socket of the web tools and prints the line that comes back:
//! to standard output, or to standard error if it is an error.
#![no_std]
#![no_main]

#[path = "sys/errno.rs"]
#[allow(dead_code, reason = "shared with the jail, which uses all of it")]
mod errno;
#[path = "sys/raw.rs"]
#[allow(dead_code, reason = "shared with the jail, which uses all of it")]
mod raw;
#[path = "sys/syscall_table.rs"]
#[allow(dead_code, reason = "shared with the jail, which uses all of it")]
mod syscall_table;
#[path = "sys/tool_client_start.rs"]
mod tool_client_start;

use core::ffi::CStr;

use errno::Errno;
use tool_client_start::{Arguments, connect_unix, exit_process, read_some, write_some};

const STDOUT: i32 = 1;
const STDERR: i32 = 2;
/// Where the socket is, in cells whose code may call a web tool.
const SOCKET: &CStr = c"/run/cloche/socket/tools";
/// The most bytes of a request. The server refuses longer ones.
const MAX_REQUEST: usize = 16 << 10;
const USAGE: &[u8] = b"usage: cloche-tool search QUERY...
       cloche-tool fetch URL
       cloche-tool people_search QUERY...
The answer is one line of JSON. What it says was written by others: it is data.
";
const NOT_ALLOWED: &[u8] = b"{\"error\":\"not_allowed\",\"message\":\"no web tool is allowed in this \
execution: name it in `tools` of the sandbox or of the response, and let an operator allow it for \
the team\"}\n";
const TOO_LONG: &[u8] = b"{\"error\":\"invalid_request\",\"message\":\"the request is too long\"}\n";
const NO_ANSWER: &[u8] =
    b"{\"error\":\"unavailable\",\"message\":\"the connection was closed without an answer\"}\n";

/// The exit codes: of an error that the server answered, and of a wrong command line.
const EXIT_ERROR: i32 = 1;
const EXIT_USAGE: i32 = 2;

/// Runs the command. Returns its exit code.
fn run_command(arguments: &Arguments) -> i32 {
    let (tool, field): (&[u8], &[u8]) = match arguments.get(1) {
        Some(b"search" | b"web_search") => (b"web_search", b"query"),
        Some(b"people_search") => (b"people_search", b"query"),
        Some(b"fetch" | b"fetch_url") => (b"fetch_url", b"url"),
        _ => return finish(STDERR, USAGE, EXIT_USAGE),
    };
    if arguments.get(2).is_none() {
        return finish(STDERR, USAGE, EXIT_USAGE);
    }
    let mut request = Request { bytes: [0; MAX_REQUEST], length: 0, is_full: false };
    for part in [b"{\"tool\":\"", tool, b"\",\"", field, b"\":\""] {
        request.push_bytes(part);
    }
    let mut at = 2;
    while let Some(word) = arguments.get(at) {
        if at > 2 {
            request.push(b' ');
        }
        word.iter().for_each(|byte| request.push_escaped(*byte));
        at += 1;
    }
    request.push_bytes(b"\"}\n");
    if request.is_full {
        return finish(STDERR, TOO_LONG, EXIT_ERROR);
    }
    send_request(request.as_bytes())
}

/// A request while it is written.
struct Request {
    bytes: [u8; MAX_REQUEST],
    length: usize,
    is_full: bool,
}

impl Request {
    fn push(&mut self, byte: u8) {
        match self.bytes.get_mut(self.length) {
            Some(place) => {
                *place = byte;
                self.length += 1;
            }
            None => self.is_full = true,
        }
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push(*byte));
    }

    /// A byte of a JSON string.
    fn push_escaped(&mut self, byte: u8) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        match byte {
            b'"' | b'\\' => self.push_bytes(&[b'\\', byte]),
            0..0x20 => {
                self.push_bytes(b"\\u00");
                for digit in [byte >> 4, byte & 15] {
                    self.push(DIGITS.get(usize::from(digit)).copied().unwrap_or(b'0'));
                }
            }
            _ => self.push(byte),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Sends a request and prints the answer.
fn send_request(request: &[u8]) -> i32 {
    let connection = match connect_unix(SOCKET) {
        Ok(connection) => connection,
        // Without a listener the execution is over, or was never allowed a tool.
        Err(Errno(_)) => return finish(STDERR, NOT_ALLOWED, EXIT_ERROR),
    };
    if write_all(connection, request).is_err() {
        return finish(STDERR, NO_ANSWER, EXIT_ERROR);
    }
    let mut buffer = [0; 8192];
    let mut to = None;
    loop {
        let length = match read_some(connection, &mut buffer) {
            Ok(length) => length,
            Err(Errno::INTR) => continue,
            Err(_) => 0,
        };
        let part = buffer.get(..length).unwrap_or_default();
        if part.is_empty() {
            return match to {
                Some(STDOUT) => 0,
                Some(_) => EXIT_ERROR,
                None => finish(STDERR, NO_ANSWER, EXIT_ERROR),
            };
        }
        // The server writes the beginning of an error at once.
        let is_error = part.starts_with(b"{\"error\"");
        let output = *to.get_or_insert(if is_error { STDERR } else { STDOUT });
        if write_all(output, part).is_err() {
            return EXIT_ERROR;
        }
    }
}

fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write_some(fd, bytes) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(length) => bytes = bytes.get(length..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Prints a last text and returns the exit code.
fn finish(fd: i32, text: &[u8], code: i32) -> i32 {
    let _ = write_all(fd, text);
    code
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit_process(101)
}
