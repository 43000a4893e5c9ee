//! Runs in: driver (root), and its child that places the files, which is the guest's user.
//!
//! Takes the job of a cell whose guest an OCI runtime starts. A child without rights reads the job
//! and writes its files to the home, as the guest's process of another cell does. Of the job the
//! driver itself sees only the program, its arguments and its variables, as text.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::AsRawFd,
};

use cloche_jail::{
    guest::job_reader::{self, ExecRecord},
    protocol::job::EXEC_BYTES,
    seccomp,
    sys::{self, CloneRequest, CloneSide, PrctlOption},
};
use cloche_model::SECRETS_DIR;

use super::{
    DriverSetup,
    stage::{RUN, STAGE_HOME, STAGE_SECRETS, bind_dir},
};
use crate::protocol::HOME;

/// What the runtime is to start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GuestCommand {
    /// The program, and its arguments after its name.
    pub(super) args: Vec<String>,
    /// Its complete environment, as `NAME=value`.
    pub(super) env: Vec<String>,
}

/// Places the files of the job, and returns what to start; nothing if the job cannot be taken.
pub(super) fn place_job(setup: &DriverSetup) -> io::Result<Option<GuestCommand>> {
    let root = format!("{RUN}/place");
    for (source, at) in [(STAGE_HOME, HOME), (STAGE_SECRETS, SECRETS_DIR)] {
        let target = format!("{root}{at}");
        fs::create_dir_all(&target)?;
        bind_dir(source, &target)?;
    }
    let os = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
    let (read, write) = sys::pipe().map_err(os)?;
    let (read, write) = (sys::into_owned_fd(read), sys::into_owned_fd(write));
    match sys::clone(CloneRequest::default()).map_err(os)? {
        CloneSide::Child => {
            sys::close(read.as_raw_fd());
            let placed = place_as_guest(setup, &root, &mut File::from(write));
            sys::exit(i32::from(placed.is_err()))
        }
        CloneSide::Parent(_, pidfd) => {
            sys::close(pidfd);
            drop(write);
            let mut record = Vec::new();
            File::from(read).take(EXEC_BYTES as u64 + 4).read_to_end(&mut record)?;
            while sys::wait_any().is_ok() {}
            Ok(parse_command(&record))
        }
    }
}

/// Gives up every right, takes the job, and passes its last record on.
fn place_as_guest(setup: &DriverSetup, root: &str, out: &mut File) -> io::Result<()> {
    let os = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
    rustix::process::chroot(root)?;
    rustix::process::chdir(HOME)?;
    sys::become_user(setup.guest, setup.guest, true).map_err(os)?;
    sys::prctl(PrctlOption::NoNewPrivs, 1).map_err(os)?;
    sys::install_seccomp(seccomp::guest_filter(setup.syscalls)).map_err(os)?;
    let mut buffer = vec![0; EXEC_BYTES];
    let ExecRecord { args, strings } = job_reader::place_job(&mut buffer).map_err(os)?;
    out.write_all(&args.to_le_bytes())?;
    out.write_all(strings)
}

/// Reads the last record of a job, as the child has passed it on.
fn parse_command(record: &[u8]) -> Option<GuestCommand> {
    let (args, strings) = record.split_first_chunk::<4>()?;
    let args = u32::from_le_bytes(*args);
    let texts = ExecRecord { args, strings }.texts();
    let texts: Option<Vec<String>> =
        texts.map(|text| text.to_str().ok().map(str::to_owned)).collect();
    let mut texts = texts?.into_iter();
    // The runtime takes the path for the name of the program.
    let program = texts.next()?;
    texts.next().filter(|_| args > 0)?;
    let rest: Vec<String> = texts.by_ref().take(args as usize - 1).collect();
    let args = [program].into_iter().chain(rest).collect();
    Some(GuestCommand { args, env: texts.collect() })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use cloche_jail::job_writer::{self, ExecProgram};

    use super::*;

    fn record_of(args: &[&str], env: &[&str]) -> Vec<u8> {
        let list = |all: &[&str]| all.iter().map(|one| CString::new(*one).unwrap()).collect();
        let exec = ExecProgram {
            program: c"/usr/bin/python3".into(),
            args: list(args),
            env: list(env),
            keeps_job: false,
        };
        let mut job = Vec::new();
        job_writer::append_exec(&mut job, &exec).unwrap();
        // The kind and the flags, then the two counts and the length, of which the first is passed.
        [&job[8..12], &job[20..]].concat()
    }

    #[test]
    fn the_program_its_arguments_and_its_variables_are_read_from_a_record() {
        let record = record_of(&["python3", "-u", "main.py"], &["A=1", "B=\"\\\u{7}"]);
        let command = parse_command(&record).unwrap();
        assert_eq!(command.args, ["/usr/bin/python3", "-u", "main.py"]);
        assert_eq!(command.env, ["A=1", "B=\"\\\u{7}"]);
    }

    #[test]
    fn a_record_that_is_cut_or_has_no_program_is_refused() {
        let record = record_of(&["python3"], &[]);
        assert!(parse_command(&record).is_some());
        for len in 0..8 {
            assert_eq!(parse_command(&record[..len]), None, "{len}");
        }
        assert_eq!(parse_command(&record_of(&[], &[])), None);
    }
}
