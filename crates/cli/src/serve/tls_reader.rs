//! Runs in: certificate reader (`DAC_READ_SEARCH` if the server was started as root).
//!
//! A process that reads the certificate and its key whenever the server asks. The server itself has
//! become another user and sees only its private root, so it could not follow a link that was
//! replaced or read a key that only root may read. Its request is one byte; the paths were fixed
//! before the server was confined. See `docs/decisions/0027-tls-in-the-server.md`.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use rustix::fs::OFlags;

use crate::identity;

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// The byte before a certificate and a key.
pub(super) const BOTH_FILES: u8 = 0;
/// The byte before the reason why a file cannot be read.
pub(super) const UNREADABLE: u8 = 1;

/// The arguments of the hidden command.
#[derive(Args)]
pub(crate) struct TlsReaderArguments {
    /// The file of the certificate.
    cert: PathBuf,
    /// The file of the key.
    key: PathBuf,
}

/// Answers requests on standard input, which is a socket, until the server closes it.
pub(crate) fn main(arguments: &TlsReaderArguments) -> ExitCode {
    let served = identity::confine_reader().and_then(|()| answer_requests(arguments));
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn answer_requests(arguments: &TlsReaderArguments) -> io::Result<()> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let mut socket = UnixStream::from(socket);
    let mut request = [0];
    while socket.read(&mut request)? == 1 {
        let read = read_file(&arguments.cert).and_then(|cert| {
            let key = read_file(&arguments.key)?;
            Ok((cert, key))
        });
        match read {
            Ok((cert, key)) => {
                socket.write_all(&[BOTH_FILES])?;
                write_text(&mut socket, &cert)?;
                write_text(&mut socket, &key)?;
            }
            Err(reason) => {
                socket.write_all(&[UNREADABLE])?;
                write_text(&mut socket, reason.as_bytes())?;
            }
        }
    }
    Ok(())
}

fn write_text(socket: &mut UnixStream, text: &[u8]) -> io::Result<()> {
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    socket.write_all(&length.to_be_bytes())?;
    socket.write_all(text)
}

/// Reads what the path leads to now. A pipe or a device could block, so only files are read.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let not_a_file = || format!("{} is not a file", path.display());
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(not_a_file());
    }
    // The path may lead to something else by now, so what is open is looked at again.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(nonblocking).open(path);
    let file = opened.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(not_a_file());
    }
    let mut text = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("{} is larger than 1 MiB", path.display()));
    }
    Ok(text)
}
