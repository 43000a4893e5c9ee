//! The spawner's loop: reads requests, starts and kills cells, notices ends, cleans up.
//!
//! Single-threaded and blocking only where it waits to be woken. It never reads what a guest wrote and
//! never holds a program.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    thread,
    time::Duration,
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupLimits, Entry},
    launch::{Launch, launch},
    plan::Plan,
    sys,
};
use rustix::{
    event::Timespec,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

use super::{
    bells::{Bell, Bells, Woken},
    ground,
    held::{Held, Life},
    homes::{Homes, Housing},
    host_ids::GUEST_IDS,
    packer::Packer,
    plans::{Plans, Shape},
    protocol::{
        self, CellConfig, CellId, Event, HomeRequest, Inbox, Kind, Packet, ProtocolError, Request,
        Used,
    },
    stock::Stock,
    templates::Template,
};

/// How long the dead may take before we look again whether their cgroups can go.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// How long nothing must happen before something is made ahead.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Serves one executor until it closes the socket; the exit code of the process.
pub(super) fn run(
    socket: &OwnedFd,
    layers: Option<&OwnedFd>,
    change: &dyn Fn(Plan) -> Plan,
) -> i32 {
    let ground = match ground::prepare(layers) {
        Ok(ground) => ground,
        Err(error) => {
            let reason = format!("cannot prepare the ground for cells: {error}");
            let missing = vec![("ground".to_owned(), reason)];
            let _ = protocol::send(socket.as_fd(), &Event::Hello { walls_missing: missing }, &[]);
            return 0;
        }
    };
    // A request that waits for a time slice behind guests is answered late. Refused to an
    // ordinary user, who is served all the same.
    let _ = sys::go_first();
    let bells = Bells::new().and_then(|bells| bells.add(Bell::Executor, socket).map(|()| bells));
    let Ok(bells) = bells else { return 1 };
    let packer = Packer { privileged: ground.privileged, first_guest: ground.ids.guest(0) };
    let mut worker = Worker {
        socket: socket.as_fd(),
        cells: BTreeMap::new(),
        templates: BTreeMap::new(),
        homes: Homes::new(ground.privileged.then_some(ground.ids)),
        plans: Plans::new(ground, change),
        stock: Stock::new(packer),
        bells,
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
    cells: BTreeMap<CellId, Held>,
    /// The sockets on which templates are asked for forks.
    templates: BTreeMap<CellId, Template>,
    homes: Homes,
    plans: Plans<'a>,
    stock: Stock,
    bells: Bells,
}

impl Worker<'_> {
    fn serve(&mut self) -> Result<(), ProtocolError> {
        let missing = self.plans.ground.missing.clone();
        protocol::send(self.socket, &Event::Hello { walls_missing: missing }, &[])?;
        let mut inbox = Inbox::new();
        loop {
            // What is made ahead is made when nobody has asked for a while: a cell that was just
            // started has more use for the time.
            let is_short = self.stock.is_short(self.plans.ground.cgroups.is_some());
            let mut woken = self.wait(is_short.then_some(&QUIET))?;
            if is_short && woken.is_nothing() {
                if self.stock.fill(self.plans.ground.cgroups.as_ref()) {
                    continue;
                }
                woken = self.wait(None)?;
            }
            for template in woken.answered {
                self.take_answer(template)?;
            }
            // Whoever asks waits; what has ended does not.
            if woken.request {
                match inbox.receive::<Packet>(self.socket) {
                    Ok((Packet { request, let_go }, fds)) => {
                        let_go.into_iter().for_each(|cell| self.let_go(cell));
                        self.answer(request, &fds)?;
                    }
                    Err(ProtocolError::Closed) => return Ok(()),
                    Err(ProtocolError::WouldBlock | ProtocolError::Malformed(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            self.collect(&woken.ended)?;
        }
    }

    /// Sleeps until something is to be done, at most this long; not for long while some are dying.
    fn wait(&mut self, most: Option<&Timespec>) -> Result<Woken, ProtocolError> {
        let dying = self.cells.values().any(|held| matches!(held.life, Life::Ended));
        let dying = dying || self.stock.is_leaving();
        let woken = self.bells.wait(most.or(dying.then_some(&SOON)));
        woken.map_err(|error| ProtocolError::System(error.raw_os_error().unwrap_or(0)))
    }

    fn answer(&mut self, request: Request, fds: &[OwnedFd]) -> Result<(), ProtocolError> {
        let (cell, started) = match request {
            Request::Spawn { cell, config, kind } => (cell, self.spawn(cell, config, kind, fds)),
            Request::Fork { cell, config, template } => {
                match self.fork(cell, config, template, fds) {
                    // The template will say when it is done.
                    Ok(()) => return Ok(()),
                    Err(error) => (cell, Err(error)),
                }
            }
            Request::Kill { cell } => {
                if let Some(held) = self.cells.get_mut(&cell) {
                    held.kill();
                }
                return Ok(());
            }
            Request::Home { cell, home } => return self.house(cell, &home),
            Request::Pack { request } => {
                self.stock.pack(&request, fds);
                return Ok(());
            }
        };
        match started {
            Ok(()) => self.tell_spawned(cell),
            Err(error) => self.refuse(cell, error.to_string()),
        }
    }

    /// Mounts a home in a cell that waits for its job.
    fn house(&mut self, cell: CellId, home: &HomeRequest) -> Result<(), ProtocolError> {
        let held = self.cells.get(&cell).and_then(|held| Some((held.slot, held.life.pidfd()?)));
        let mounted = match held {
            Some((slot, pidfd)) => self.homes.mount(slot, pidfd, home),
            None => Err(io::Error::other("the cell is gone")),
        };
        match mounted {
            Ok(Housing::Mounted(upper, merged)) => {
                let fds: Vec<_> = [Some(&upper), merged.as_ref()].into_iter().flatten().collect();
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                protocol::send(self.socket, &Event::Housed { cell }, &fds)
            }
            Ok(Housing::Blocked(name)) => {
                protocol::send(self.socket, &Event::Blocked { cell, name }, &[])
            }
            Err(error) => {
                let reason = error.to_string();
                protocol::send(self.socket, &Event::Homeless { cell, reason }, &[])
            }
        }
    }

    fn tell_spawned(&self, cell: CellId) -> Result<(), ProtocolError> {
        let gauges = self.cells.get(&cell).and_then(|held| Some(held.cgroup.as_ref()?.gauges()));
        let files = gauges.map_or([None; 4], |g| {
            [g.oom.as_ref(), g.cpu.as_ref(), g.peak.as_ref(), g.idle.as_ref()]
        });
        let event = Event::Spawned { cell, gauges: files.map(|file| file.is_some()) };
        let files: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
        protocol::send(self.socket, &event, &files)
    }

    /// Says no, and leaves whatever there is of the cell to be cleaned up.
    fn refuse(&mut self, cell: CellId, reason: String) -> Result<(), ProtocolError> {
        if let Some(held) = self.cells.get_mut(&cell) {
            held.life = Life::Ended;
        }
        protocol::send(self.socket, &Event::Refused { cell, reason }, &[])
    }

    /// Takes a cell into the books: a host id of its own and a cgroup.
    fn hold(&mut self, cell: CellId, limits: CgroupLimits) -> io::Result<&mut Held> {
        let slot = self.free_slot();
        let all = self.plans.ground.cgroups.as_ref();
        let cgroup = all.map(|all| self.stock.cgroup(all, limits)).transpose()?;
        let (life, used) = (Life::Pending, Used::default());
        let held = Held { slot, life, doomed: false, cgroup, limits, let_go: false, used };
        Ok(self.cells.entry(cell).or_insert(held))
    }

    fn spawn(
        &mut self,
        cell: CellId,
        config: CellConfig,
        kind: Kind,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let [stdin, stdout, stderr, job, control] = fds else {
            return Err(io::Error::other("a cell needs five descriptors"));
        };
        if kind == Kind::Template && ground::shows_memory() {
            return Err(io::Error::other("no templates where fs.suid_dumpable is 1"));
        }
        let shape = if kind == Kind::Template { Shape::Template } else { Shape::Cell };
        let at = self.plans.find(&config, shape)?;
        let limits = self.plans.at(at).plan.cgroup;
        self.hold(cell, limits)?;
        let fork = (kind == Kind::Template)
            .then(|| {
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            })
            .transpose()?;
        let network = if self.plans.at(at).wants_network { self.stock.network() } else { None };
        let held = &self.cells[&cell];
        let prepared = self.plans.at(at);
        let launched = launch(&Launch {
            namespaces: prepared.plan.namespaces,
            program: prepared.program(network.is_some()),
            network: network.as_ref().map(AsFd::as_fd),
            identity: self.plans.identity(shape, held.slot),
            guest: prepared.plan.guest,
            cgroup: held.cgroup.as_ref().map_or_else(Entry::default, Cgroup::entry),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            job: job.as_fd(),
            control: control.as_fd(),
            fork: fork.as_ref().map(|(_, theirs)| theirs.as_fd()),
        })?;
        if let Some((ours, _)) = fork {
            self.bells.add(Bell::Template(cell), &ours)?;
            self.templates.insert(cell, Template::new(ours));
        }
        self.runs(cell, launched.pidfd)
    }

    fn fork(
        &mut self,
        cell: CellId,
        config: CellConfig,
        template: CellId,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let at = self.plans.find(&config, Shape::Forked)?;
        let limits = self.plans.at(at).plan.cgroup;
        self.hold(cell, limits)?;
        let held = &self.cells[&cell];
        let template = self.templates.get_mut(&template);
        let template = template.ok_or_else(|| io::Error::other("the template is gone"))?;
        let doors = held.cgroup.as_ref().map(Cgroup::doors).unwrap_or_default();
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).chain(doors).collect();
        let ids = self.plans.ids_in_template(held.slot);
        template.ask(cell, ids, self.plans.at(at).program(false), &fds)
    }

    /// A cell has a pid 1, whose end will be heard.
    fn runs(&mut self, cell: CellId, pidfd: OwnedFd) -> io::Result<()> {
        let Some(held) = self.cells.get_mut(&cell) else { return Ok(()) };
        if let Err(error) = self.bells.add(Bell::Cell(cell), &pidfd) {
            // Nobody would hear of its end, so it ends now.
            let _ = sys::pidfd_kill(pidfd.as_raw_fd(), 9);
            return Err(error);
        }
        held.life = Life::Running(pidfd);
        if held.doomed {
            held.kill();
        }
        Ok(())
    }

    /// A template has forked, or could not, or is gone.
    fn take_answer(&mut self, template: CellId) -> Result<(), ProtocolError> {
        let Some(asked) = self.templates.get_mut(&template) else { return Ok(()) };
        match asked.take_answer() {
            Ok((cell, Ok(pidfd))) => match self.runs(cell, pidfd) {
                Ok(()) => self.tell_spawned(cell),
                Err(error) => self.refuse(cell, error.to_string()),
            },
            Ok((cell, Err(error))) => {
                self.refuse(cell, format!("the template could not fork: {error}"))
            }
            Err(lost) => {
                if let Some(gone) = self.templates.remove(&template) {
                    self.bells.remove(gone.socket.as_fd());
                }
                lost.into_iter().try_for_each(|cell| self.refuse(cell, "the template died".into()))
            }
        }
    }

    /// The lowest host id that no living cell has: the fewer there are, the fewer views of layers.
    fn free_slot(&self) -> u32 {
        let taken: BTreeSet<u32> = self.cells.values().map(|held| held.slot).collect();
        (0..GUEST_IDS).find(|slot| !taken.contains(slot)).unwrap_or(0)
    }

    /// Nobody reads the gauges of this cell any more.
    fn let_go(&mut self, cell: CellId) {
        match self.cells.get_mut(&cell) {
            Some(held) => held.let_go = true,
            None => self.stock.let_go(cell),
        }
    }

    /// Reaps what has ended and cleans up after it.
    fn collect(&mut self, ended: &[CellId]) -> Result<(), ProtocolError> {
        for cell in ended {
            if let Some(held) = self.cells.get_mut(cell) {
                if let Some(pidfd) = held.life.pidfd() {
                    self.bells.remove(pidfd);
                }
                held.life = Life::Ended;
                let used = held.cgroup.as_ref().and_then(Cgroup::read);
                held.used = used.map(Used::from).unwrap_or_default();
            }
        }
        while let Ok(true) = sys::reap() {}
        let mut gone = Vec::new();
        for (cell, held) in &mut self.cells {
            if matches!(held.life, Life::Ended) && self.stock.take_back(*cell, held) {
                gone.push((*cell, held.used));
            }
        }
        self.stock.remove_leaving();
        // All of them, although the first that cannot be told of means that nobody listens.
        let mut told = Ok(());
        for (cell, used) in gone {
            self.cells.remove(&cell);
            told = told.and(protocol::send(self.socket, &Event::Gone { cell, used }, &[]));
        }
        told
    }

    /// Kills every cell and waits until nothing of them is left.
    fn end(mut self) {
        self.templates.clear();
        for held in self.cells.values_mut() {
            held.kill();
            // What a template was asked for dies with the template, and nobody will say so.
            if matches!(held.life, Life::Pending) {
                held.life = Life::Ended;
            }
        }
        for _ in 0..2500 {
            let ended = self.wait(Some(&NOW)).map(|woken| woken.ended).unwrap_or_default();
            // The executor may be gone, and with it whoever would hear of it.
            let _ = self.collect(&ended);
            if self.cells.is_empty() && !self.stock.is_leaving() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        drop(self.stock);
        if let Some(cgroups) = &self.plans.ground.cgroups {
            cgroups.release();
        }
    }
}
