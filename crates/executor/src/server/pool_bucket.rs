//! Runs in: server (no capabilities). One bucket of the pool: the parked cells of one
//! configuration, and how many there should be.
//!
//! It only counts and never waits. The target doubles when a run finds the bucket empty, and falls
//! slowly when runs are few.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_model::Language;

use super::{
    cell::Cell,
    job_socket::CellJobSocket,
    metrics::BucketReading,
    pool::{PoolSettings, retry_time},
    run_error::RunError,
    warm::Template,
};
use crate::protocol::CellId;

/// The parked cells of one configuration.
pub(crate) struct PoolBucket {
    cells: Vec<Cell>,
    target: usize,
    templates: Vec<Arc<Template>>,
    /// The memory of one parked cell, as its cgroup counts it.
    cell_memory: u64,
    last_take: Instant,
    last_change: Instant,
    failures: u32,
    not_before: Option<Instant>,
    template_not_before: Option<Instant>,
    /// Whether its interpreters wait for their jobs. An interpreter of an image may not.
    interpreters_wait: bool,
    dead_count: u64,
    /// How many cells, and whether a template, are being started.
    starting: usize,
    template_starting: bool,
    /// Whether a run has ever asked for a cell.
    is_used: bool,
}

/// How long a target is kept before it falls.
const PATIENCE_SECONDS: u64 = 30;
/// How long nothing was asked for before cells are forked for a burst. Longer than many clients
/// pause: a fork would delay the request that ends the pause.
const QUIET: Duration = Duration::from_millis(700);
/// How long nothing was asked for before the cells that are taken next warm up. A client that does
/// not pause has its next program running by then, which would have to share the processors.
pub(super) const WARM_UP_PAUSE: Duration = Duration::from_millis(8);
/// The target falls by one part in this many.
const FALL: usize = 4;
/// Beyond the floor, a bucket uses at most one part in this many of the memory for parked cells.
const SHARE: u64 = 4;

impl PoolBucket {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            cells: Vec::new(),
            target: 0,
            templates: Vec::new(),
            cell_memory: 4 << 20,
            last_take: now,
            last_change: now,
            failures: 0,
            not_before: None,
            template_not_before: None,
            interpreters_wait: true,
            dead_count: 0,
            starting: 0,
            template_starting: false,
            is_used: false,
        }
    }

    /// Takes the cell that was parked last and is alive. Raises the target if there is none.
    pub(crate) fn take(&mut self, settings: &PoolSettings) -> Option<Cell> {
        self.last_take = Instant::now();
        self.is_used = true;
        while let Some(cell) = self.cells.pop() {
            if !cell.is_gone() {
                self.target = self.target.max(settings.floor);
                return Some(cell);
            }
            self.dead_count += 1;
        }
        let more = (self.target * 2).max(1);
        self.target = more.clamp(settings.floor, self.max_cells(settings));
        self.last_change = self.last_take;
        None
    }

    /// The most cells that the bucket may have.
    fn max_cells(&self, settings: &PoolSettings) -> usize {
        let share = settings.memory.bytes() / SHARE / self.cell_memory.max(1);
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        settings.ceiling.min(share).max(settings.floor)
    }

    /// The newest living template.
    pub(crate) fn living_template(&self) -> Option<Arc<Template>> {
        self.templates.iter().rev().find(|template| !template.is_gone()).cloned()
    }

    pub(crate) fn has_template(&self) -> bool {
        !self.templates.is_empty()
    }

    pub(super) const fn has_or_starts_template(&self) -> bool {
        self.template_starting || !self.templates.is_empty()
    }

    pub(crate) const fn is_template_starting(&self) -> bool {
        self.template_starting
    }

    /// The memory of its templates, as their cgroups count it.
    pub(crate) fn template_memory(&self) -> u64 {
        self.templates.iter().map(|template| template.memory()).sum()
    }

    pub(crate) fn raise_target(&mut self, least: usize) {
        self.target = self.target.max(least);
    }

    /// Whether its last attempt to make a cell or a template failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// How many cells were found dead since the last call.
    pub(crate) fn take_dead_count(&mut self) -> u64 {
        std::mem::take(&mut self.dead_count)
    }

    pub(crate) fn parked_count(&self) -> usize {
        self.cells.len()
    }

    pub(crate) fn parked_memory(&self) -> u64 {
        self.cell_memory.saturating_mul(self.cells.len() as u64)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.cells.len() >= self.target
    }

    pub(crate) fn wants_more(&self) -> bool {
        let may_try = self.not_before.is_none_or(|at| at <= Instant::now());
        may_try && self.cells.len() + self.starting < self.target
    }

    /// Whether another cell is worth its memory while nothing runs: a burst may come, and a cell
    /// that is forked then is late.
    pub(crate) fn wants_quiet_fork(&self, settings: &PoolSettings) -> bool {
        let may_try = self.not_before.is_none_or(|at| at <= Instant::now());
        let quiet_since = self.last_take.elapsed();
        let is_quiet = quiet_since >= QUIET && quiet_since < settings.idle;
        let parked = self.cells.len() + self.starting;
        self.is_used && may_try && is_quiet && parked < self.quiet_target(settings)
    }

    /// Has the cells that are taken next prepare for their programs, after a pause. Returns whether
    /// it is too early for that.
    pub(crate) fn warm_up_next(&mut self, most: usize) -> bool {
        let next = self.cells.iter_mut().rev().take(most);
        let mut cool = next.map(|cell| &mut cell.job).filter(|job| job.is_cool());
        if self.last_take.elapsed() < WARM_UP_PAUSE {
            return cool.next().is_some();
        }
        cool.for_each(CellJobSocket::warm_up);
        false
    }

    /// How many cells are parked while nothing runs.
    fn quiet_target(&self, settings: &PoolSettings) -> usize {
        settings.quiet_forks.min(self.max_cells(settings)).max(self.target)
    }

    /// A cell or a template is being started, until it is put here.
    pub(crate) const fn note_started(&mut self, is_template: bool) {
        if is_template {
            self.template_starting = true;
        } else {
            self.starting += 1;
        }
    }

    pub(crate) fn needs_template(&self, settings: &PoolSettings) -> bool {
        let may_try = self.template_not_before.is_none_or(|at| at <= Instant::now());
        let fresh = |template: &Arc<Template>| {
            !template.is_gone() && !template.is_worn(settings.template_forks, settings.template_age)
        };
        let is_wanted = self.last_take.elapsed() < settings.idle && !self.template_starting;
        may_try && is_wanted && !self.templates.iter().any(fresh)
    }

    pub(crate) fn put_cell(&mut self, parked: Result<Cell, RunError>, settings: &PoolSettings) {
        self.starting = self.starting.saturating_sub(1);
        match parked {
            Ok(cell) => {
                self.failures = 0;
                self.cell_memory = cell.meter.read().unwrap_or_default().peak.max(1 << 20);
                self.target = self.target.min(self.max_cells(settings));
                // The last one is taken first. Cells for a burst wait below those that are warm.
                let at = if self.is_full() { 0 } else { self.cells.len() };
                self.cells.insert(at, cell);
            }
            Err(error @ RunError::NotWaiting(_)) if self.interpreters_wait => {
                tracing::warn!(%error, "each program starts its own interpreter");
                self.interpreters_wait = false;
            }
            // Otherwise a host without this interpreter would never be ready. A run that asks for
            // it raises the target again.
            Err(RunError::NoInterpreter(language)) => {
                tracing::info!(%language, "not installed on this host, so no cell is parked");
                self.target = 0;
            }
            Err(error) => {
                tracing::warn!(%error, "a cell could not be parked");
                self.failures += 1;
                self.not_before = Some(retry_time(self.failures));
            }
        }
    }

    /// Adds a new template. Older ones stay while forked cells of theirs are alive.
    pub(crate) fn put_template(&mut self, started: Result<Template, RunError>) {
        self.template_starting = false;
        match started {
            Ok(template) => self.templates.push(Arc::new(template)),
            Err(_) => self.template_not_before = Some(retry_time(8)),
        }
    }

    /// Removes what has died. Returns what to kill: cells above the target, and templates without
    /// cells that are old or no longer used.
    pub(crate) fn prune_surplus(&mut self, settings: &PoolSettings) -> Vec<CellId> {
        let before = self.cells.len();
        self.cells.retain(|cell| !cell.is_gone());
        self.dead_count += (before - self.cells.len()) as u64;
        self.templates.retain(|template| !template.is_gone());
        let idle = self.last_take.elapsed();
        if idle > settings.idle {
            self.target = 0;
        } else if self.last_change.elapsed().as_secs() >= PATIENCE_SECONDS
            && self.target > settings.floor
            && idle.as_secs() >= PATIENCE_SECONDS
        {
            self.target -= self.target.div_ceil(FALL).min(self.target - settings.floor);
            self.last_change = Instant::now();
        }
        let has_template = self.templates.iter().any(|template| !template.is_gone());
        let is_kept = has_template && self.is_used && idle <= settings.idle;
        let most = if is_kept { self.quiet_target(settings) } else { self.target };
        let surplus: Vec<_> = self.cells.drain(..self.cells.len().saturating_sub(most)).collect();
        let newest = self.templates.len().saturating_sub(usize::from(idle <= settings.idle));
        let old = self.templates[..newest].iter().filter(|template| template.is_childless());
        surplus.iter().map(|cell| cell.id).chain(old.map(|template| template.id())).collect()
    }

    /// Everything that is parked here, to be killed.
    pub(crate) fn all_cells(&self) -> Vec<CellId> {
        let templates = self.templates.iter().map(|template| template.id());
        self.cells.iter().map(|cell| cell.id).chain(templates).collect()
    }

    pub(crate) const fn interpreters_wait(&self) -> bool {
        self.interpreters_wait
    }

    pub(crate) fn is_unused(&self, settings: &PoolSettings) -> bool {
        let idle = self.last_take.elapsed() > settings.idle * 2;
        idle && self.cells.is_empty() && self.templates.is_empty()
    }

    pub(crate) fn to_reading(&self, language: Language) -> BucketReading {
        BucketReading {
            language,
            parked: self.cells.len(),
            target: self.target,
            templates: self.templates.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cloche_model::Language;

    use super::{PoolBucket, PoolSettings, RunError};

    #[test]
    fn a_bucket_of_a_language_that_is_not_installed_is_full() {
        let mut bucket = PoolBucket::new();
        bucket.raise_target(2);
        assert!(!bucket.is_full());
        let missing = RunError::NoInterpreter(Language::Node);
        bucket.put_cell(Err(missing), &PoolSettings::default());
        assert!(bucket.is_full() && !bucket.wants_more());
    }
}
