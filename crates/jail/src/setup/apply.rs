//! Runs in: pid 1 of a cell or of a template, guest of a forked cell.
//!
//! Applies the steps of a plan: one match. Core only.

use core::{ffi::CStr, mem::size_of};

use crate::{
    pid_one::socket_watch,
    protocol::step::{ProgramReader, Step, StepRef},
    sys::{self, Errno, LandlockRuleset, PrctlOption, Result},
};

/// The step that failed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepFailure<'a> {
    /// The name of the wall.
    pub(crate) wall: &'a CStr,
    /// The error of the system call.
    pub(crate) errno: Errno,
}

/// Which steps of a plan a process applies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepScope {
    /// All of them.
    All,
    /// Those that build the cell, for all its processes.
    Cell,
    /// Those that change only the process that applies them.
    Process,
}

impl StepScope {
    fn includes(self, step: &StepRef<'_>) -> bool {
        let builds_cell = matches!(
            step,
            Step::Hostname { .. }
                | Step::Loopback
                | Step::Mount { .. }
                | Step::Directory { .. }
                | Step::Pivot { .. }
                | Step::Write { .. }
                | Step::BuildIn { .. }
                | Step::ContainSignals
        );
        match self {
            Self::All => true,
            // Each process has its own working directory, and none may keep one outside of the
            // cell.
            Self::Cell => builds_cell || matches!(step, Step::Enter { .. }),
            // Pid 1 has installed the socket filter before it forked this process.
            Self::Process => !builds_cell && !matches!(step, Step::WatchSockets { .. }),
        }
    }
}

/// Applies the steps of an encoded plan in order, up to the first that fails.
pub(crate) fn apply_plan(
    program: &[u8],
    scope: StepScope,
) -> core::result::Result<(), StepFailure<'_>> {
    let mut reader = ProgramReader::new(program);
    while !reader.is_empty() {
        let malformed = StepFailure { wall: c"malformed plan", errno: Errno::INVAL };
        let wall = reader.read_text().ok_or(malformed)?;
        let step = reader.read_step().ok_or(malformed)?;
        if scope.includes(&step) {
            apply_step(step).map_err(|errno| StepFailure { wall, errno })?;
        }
    }
    Ok(())
}

/// Whether the processes of the cell can signal only each other.
pub(crate) fn contains_signals(program: &[u8]) -> bool {
    let mut reader = ProgramReader::new(program);
    while reader.read_text().is_some() {
        match reader.read_step() {
            Some(Step::ContainSignals) => return true,
            Some(_) => {}
            None => return false,
        }
    }
    false
}

/// The most sockets of the cell; `None` if the plan does not limit them.
pub(crate) fn find_socket_limit(program: &[u8]) -> Option<u32> {
    let mut reader = ProgramReader::new(program);
    while !reader.is_empty() {
        reader.read_text()?;
        if let Step::WatchSockets { most } = reader.read_step()? {
            return Some(most);
        }
    }
    None
}

fn apply_step(step: StepRef<'_>) -> Result<()> {
    match step {
        Step::Become { uid, gid, clear_groups } => sys::become_user(uid, gid, clear_groups),
        Step::Hostname { name } => sys::sethostname(name),
        Step::Loopback => sys::loopback_up(),
        Step::Mount { source, target, kind, flags, data } => {
            sys::mount(source, target, kind, flags, data)
        }
        Step::Directory { path, mode, uid, gid } => make_directory(path, mode, uid, gid),
        Step::Pivot { root } => sys::chdir(root).and_then(|()| sys::pivot_to_current_dir()),
        Step::Enter { path } | Step::BuildIn { path } => sys::chdir(path),
        Step::Limit { which, soft, hard } => sys::setrlimit(which, soft, hard),
        Step::CloseFrom { first } => sys::close_range(first, u32::MAX),
        Step::NoNewPrivs => sys::prctl(PrctlOption::NoNewPrivs, 1),
        Step::Landlock { files, scoped, size, rules } => {
            enforce_landlock(files, scoped, size, rules)
        }
        Step::DropBounding { last } => drop_bounding_set(last),
        Step::DropCapabilities => sys::capset_none(),
        Step::Seccomp { program } => sys::install_seccomp(program),
        Step::DieWithParent => sys::prctl(PrctlOption::ParentDeathSignal, 9),
        Step::Unshare { kinds } => sys::unshare(kinds),
        Step::NoSpeculation { kind } => sys::force_disable_speculation(kind),
        Step::Write { path, content } => write_existing_file(path, content),
        Step::WatchSockets { .. } => socket_watch::install_pid_one_listener(),
        Step::ContainSignals => contain_signals(),
    }
}

/// A Landlock domain that restricts nothing but signals and abstract sockets. Fails unless the
/// parent is out of reach afterwards: pid 1 of a contained cell signals -1.
fn contain_signals() -> Result<()> {
    const SCOPED: LandlockRuleset = LandlockRuleset { files: 0, network: 0, scoped: 0b11 };
    sys::prctl(PrctlOption::NoNewPrivs, 1)?;
    let ruleset = sys::landlock_create(&SCOPED, size_of::<LandlockRuleset>())?;
    let restricted = sys::landlock_restrict(ruleset);
    sys::close(ruleset);
    restricted?;
    match sys::kill(sys::getppid(), 0) {
        Err(Errno::PERM) => Ok(()),
        _ => Err(Errno::NOSYS),
    }
}

fn make_directory(path: &CStr, mode: u32, uid: u32, gid: u32) -> Result<()> {
    match sys::mkdir(path, mode) {
        Err(Errno::EXIST) => return Ok(()),
        made => made?,
    }
    sys::chmod(path, mode)?;
    sys::chown(path, uid, gid)
}

fn write_existing_file(path: &CStr, content: &[u8]) -> Result<()> {
    const WRITE_ONLY: i32 = 1;
    let file = sys::open(path, WRITE_ONLY, 0)?;
    let written = sys::write(file, content);
    sys::close(file);
    written.map(drop)
}

fn enforce_landlock(files: u64, scoped: u64, size: u32, rules: &[u8]) -> Result<()> {
    const O_PATH: i32 = 0o10_000_000;
    let ruleset = LandlockRuleset { files, network: 0, scoped };
    let ruleset = sys::landlock_create(&ruleset, size as usize)?;
    let mut rules = ProgramReader::new(rules);
    while !rules.is_empty() {
        let (path, access) =
            (rules.read_text().ok_or(Errno::INVAL)?, rules.read_number().ok_or(Errno::INVAL)?);
        match sys::open(path, O_PATH, 0) {
            // This image has no such path, so there is nothing to allow.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
            Ok(path) => {
                let allowed = sys::landlock_allow(ruleset, path, access & files);
                sys::close(path);
                allowed?;
            }
        }
    }
    let restricted = sys::landlock_restrict(ruleset);
    sys::close(ruleset);
    restricted
}

fn drop_bounding_set(last: u32) -> Result<()> {
    const CLEAR_ALL: usize = 4;
    sys::prctl(PrctlOption::Ambient, CLEAR_ALL)?;
    (0..=last).try_for_each(|capability| sys::prctl(PrctlOption::DropBounding, capability as usize))
}
