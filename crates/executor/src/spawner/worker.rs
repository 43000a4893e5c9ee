//! The spawner's loop: reads requests, starts and kills cells, notices ends, cleans up.
//!
//! Single-threaded and blocking only in `poll`. It never reads what a guest wrote and never
//! holds a program.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupLimits, Entry},
    launch::{Launch, Launched, launch},
    plan::{Identity, JailSpec, Plan, plan},
    sys,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    ground::{self, Ground},
    protocol::{self, CellConfig, CellId, Event, ProtocolError, Request, Used},
};
use crate::image::{GUEST_ID, HOME};

/// Inodes a guest gets for each MiB of disk, and the least it gets.
const INODES_PER_MIB: u64 = 256;

/// Serves one executor until it closes the socket; the exit code of the process.
pub(super) fn run(socket: &OwnedFd, change: &dyn Fn(Plan) -> Plan) -> i32 {
    let ground = match ground::prepare() {
        Ok(ground) => ground,
        Err(error) => {
            let reason = format!("cannot prepare the ground for cells: {error}");
            let missing = vec![("ground".to_owned(), reason)];
            let _ = protocol::send(socket.as_fd(), &Event::Hello { walls_missing: missing }, &[]);
            return 0;
        }
    };
    let mut worker = Worker {
        socket: socket.as_fd(),
        change,
        ground,
        cells: BTreeMap::new(),
        plans: Vec::new(),
        next_slot: 0,
    };
    let code = match worker.serve() {
        // Closed is also how a send notices that the executor has ended: no reason to start again.
        Ok(()) | Err(ProtocolError::Closed) => 0,
        Err(_) => 1,
    };
    worker.end();
    code
}

struct Worker<'a> {
    socket: BorrowedFd<'a>,
    /// What is done to a plan before it is used; nothing, but in the escape suite.
    change: &'a dyn Fn(Plan) -> Plan,
    ground: Ground,
    cells: BTreeMap<CellId, Held>,
    /// Plans by configuration: building one costs more than starting a cell should.
    plans: Vec<(CellConfig, Prepared)>,
    next_slot: u32,
}

struct Prepared {
    plan: Plan,
    program: Vec<u8>,
}

/// A cell that is running or being cleaned up.
struct Held {
    slot: u32,
    /// Gone once its pid 1 has ended.
    running: Option<Launched>,
    cgroup: Option<Cgroup>,
    /// Read when pid 1 has ended, and with it everything in the cell.
    used: Used,
}

impl Worker<'_> {
    fn serve(&mut self) -> Result<(), ProtocolError> {
        let missing = self.ground.missing.clone();
        protocol::send(self.socket, &Event::Hello { walls_missing: missing }, &[])?;
        loop {
            let readable = self.wait()?;
            self.collect()?;
            if readable {
                match protocol::receive::<Request>(self.socket) {
                    Ok((request, fds)) => self.answer(request, fds)?,
                    Err(ProtocolError::Closed) => return Ok(()),
                    Err(ProtocolError::WouldBlock | ProtocolError::Malformed(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Sleeps until a request or the end of a cell; true for a request.
    fn wait(&self) -> Result<bool, ProtocolError> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.socket, PollFlags::IN)];
        let running = self.cells.values().filter_map(|held| held.running.as_ref());
        fds.extend(running.map(|cell| PollFd::new(&cell.pidfd, PollFlags::IN)));
        let dying = self.cells.values().any(|held| held.running.is_none());
        let soon = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        match poll(&mut fds, dying.then_some(&soon)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(errno) => Err(ProtocolError::System(errno.raw_os_error())),
        }
    }

    fn answer(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<(), ProtocolError> {
        match request {
            Request::Spawn { cell, config } => match self.spawn(cell, config, &fds) {
                Ok(event) => {
                    let gauges = self.cells[&cell].cgroup.as_ref().map(Cgroup::gauges);
                    let files = gauges.map(|g| [&g.oom, &g.cpu, &g.peak]).into_iter().flatten();
                    let files: Vec<_> = files.flatten().map(AsFd::as_fd).collect();
                    protocol::send(self.socket, &event, &files)
                }
                Err(error) => {
                    let event = Event::Refused { cell, reason: error.to_string() };
                    protocol::send(self.socket, &event, &[])
                }
            },
            Request::Kill { cell } => {
                if let Some(held) = self.cells.get(&cell) {
                    held.kill();
                }
                Ok(())
            }
        }
    }

    fn spawn(&mut self, cell: CellId, config: CellConfig, fds: &[OwnedFd]) -> io::Result<Event> {
        let [stdin, stdout, stderr, job, control] = fds else {
            return Err(io::Error::other("a cell needs five descriptors"));
        };
        if config.image != "host" {
            return Err(io::Error::other(format!("there is no image {:?} here", config.image)));
        }
        let limits = self.limits(&config);
        let slot = self.free_slot();
        let identity = self.identity(slot);
        let at = self.prepared(config, limits);
        let prepared = &self.plans[at].1;
        let cgroup = self.ground.cgroups.as_ref();
        let name = format!("cell{}", cell.0);
        let cgroup =
            cgroup.map(|all| Cgroup::create(all, &name, prepared.plan.cgroup)).transpose()?;
        let started = launch(&Launch {
            namespaces: prepared.plan.namespaces,
            program: &prepared.program,
            identity,
            guest: prepared.plan.guest,
            cgroup: cgroup.as_ref().map_or_else(Entry::default, Cgroup::entry),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            job: job.as_fd(),
            control: control.as_fd(),
        });
        let gauges = cgroup.as_ref().map(Cgroup::gauges);
        let gauges = gauges
            .map_or([false; 3], |g| [g.oom.is_some(), g.cpu.is_some(), g.peak.is_some()]);
        let (running, refusal) = match started {
            Ok(launched) => (Some(launched), None),
            Err(error) => (None, Some(error)),
        };
        // Also when it was refused: its cgroup is then cleaned up like any other.
        self.cells.insert(cell, Held { slot, running, cgroup, used: Used::default() });
        refusal.map_or(Ok(Event::Spawned { cell, gauges }), Err)
    }

    fn limits(&self, config: &CellConfig) -> CgroupLimits {
        let can = self.ground.cgroups.as_ref().map_or([false; 3], |all| all.can_limit());
        CgroupLimits {
            memory: can[0].then_some(config.memory),
            pids: can[1].then_some(config.pids),
            cpu: can[2].then_some(config.cpu_milli),
        }
    }

    /// A host id that no living cell has.
    fn free_slot(&mut self) -> u32 {
        loop {
            self.next_slot = (self.next_slot + 1) % 60_000;
            if !self.cells.values().any(|held| held.slot == self.next_slot) {
                return self.next_slot;
            }
        }
    }

    fn identity(&self, slot: u32) -> Identity {
        if self.ground.privileged {
            let guest = ground::guest_id(slot);
            return Identity::Own { image_owner: ground::IMAGE_OWNER, guest };
        }
        // Ids of the spawner's own namespace, where it is the only user.
        Identity::Shared { uid: 0, gid: 0 }
    }

    /// Where the plan for a configuration is, made on its first use.
    fn prepared(&mut self, config: CellConfig, limits: CgroupLimits) -> usize {
        let at = self.plans.iter().position(|(known, _)| *known == config);
        at.unwrap_or_else(|| {
            let plan = (self.change)(plan(&self.spec(&config, limits)));
            let program = plan.encode();
            self.plans.push((config, Prepared { plan, program }));
            self.plans.len() - 1
        })
    }

    fn spec(&self, config: &CellConfig, limits: CgroupLimits) -> JailSpec {
        let inodes = (config.disk >> 20).max(16) * INODES_PER_MIB;
        JailSpec {
            image: self.ground.image.clone(),
            stage: self.ground.stage.clone(),
            guest: (GUEST_ID, GUEST_ID),
            identity: self.identity(0),
            hostname: "cloche".to_owned(),
            home: HOME.into(),
            disk: (config.disk, inodes),
            cgroup: limits,
            host: self.ground.facts.clone(),
        }
    }

    /// Reaps what has ended and cleans up after it.
    fn collect(&mut self) -> Result<(), ProtocolError> {
        while let Ok(Some(reaped)) = sys::reap() {
            let ended = |held: &&mut Held| held.running.as_ref().is_some_and(|r| r.pid == reaped.pid);
            if let Some(held) = self.cells.values_mut().find(ended) {
                held.running = None;
                let used = held.cgroup.as_mut().and_then(Cgroup::read);
                held.used = used.map(Used::from).unwrap_or_default();
            }
        }
        let mut gone = Vec::new();
        for (cell, held) in &mut self.cells {
            if held.running.is_none() && held.cgroup.as_mut().is_none_or(Cgroup::remove) {
                gone.push((*cell, held.used));
            }
        }
        for (cell, used) in gone {
            self.cells.remove(&cell);
            protocol::send(self.socket, &Event::Gone { cell, used }, &[])?;
        }
        Ok(())
    }

    /// Kills every cell and waits until nothing of them is left.
    fn end(mut self) {
        self.cells.values().for_each(Held::kill);
        for _ in 0..2500 {
            // The executor may be gone, and with it whoever would hear of it.
            let _ = self.collect();
            if self.cells.is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if let Some(cgroups) = &self.ground.cgroups {
            cgroups.release();
        }
    }
}

impl Held {
    /// Pid 1 first: the kernel then kills the whole namespace, and no fork in it succeeds any more.
    fn kill(&self) {
        if let Some(running) = &self.running {
            let _ = sys::pidfd_kill(running.pidfd.as_raw_fd(), 9);
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }
}
