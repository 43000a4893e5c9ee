//! Runs in: spawner (root).
//!
//! Reclaims the page cache that is charged to a cgroup before the cgroup is removed.
//!
//! Pages of the host's files that a cell was the first to read stay cached after its end, charged
//! to its cgroup. A cgroup that is removed with such pages stays in the kernel as a dying cgroup
//! until memory runs short. On a long-lived host that is one for each cell that read a new file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Cgroup, CgroupGauges, parse_field};

/// Per version: the field of `memory.stat` with the cached bytes, and the file that reclaims them.
const V1: (&str, &str) = ("cache", "memory.force_empty");
const V2: (&str, &str) = ("file", "memory.reclaim");

impl Cgroup {
    /// Whether it has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let members = |dir: &PathBuf| fs::read_to_string(dir.join("cgroup.procs"));
        self.dirs.iter().all(|dir| members(dir).is_ok_and(|members| members.is_empty()))
    }

    /// Closes its files, when no process enters it or reads its usage any more.
    pub fn close_files(&mut self) {
        self.entry_files.clear();
        self.gauges = CgroupGauges::default();
        self.renewal = None;
    }

    /// Bytes of the host's files in the page cache that are charged to it. Files of a tmpfs do not
    /// count: they are freed with the tmpfs.
    #[must_use]
    pub fn page_cache_bytes(&self) -> u64 {
        self.memory_directory().map_or(0, |(_, stat)| self.cached_bytes(&stat))
    }

    /// Reclaims its page cache; for a cgroup without members. It takes up to some milliseconds.
    pub fn drop_page_cache(&self) {
        let Some((directory, stat)) = self.memory_directory() else { return };
        let bytes = self.cached_bytes(&stat).to_string();
        // An error is ignored: the cgroup can be removed with pages that could not be reclaimed.
        drop(fs::write(directory.join(self.cache_file_names().1), bytes));
    }

    const fn cache_file_names(&self) -> (&'static str, &'static str) {
        if self.start_in.is_some() { V2 } else { V1 }
    }

    fn cached_bytes(&self, stat: &str) -> u64 {
        let cached = parse_field(stat, self.cache_file_names().0).unwrap_or(0);
        cached.saturating_sub(parse_field(stat, "shmem").unwrap_or(0))
    }

    /// The directory of the memory controller, and the text of its `memory.stat`.
    fn memory_directory(&self) -> Option<(&Path, String)> {
        let read = |dir: &PathBuf| fs::read_to_string(dir.join("memory.stat")).ok();
        self.dirs.iter().find_map(|dir| Some((dir.as_path(), read(dir)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _, process::Command};

    use super::{
        super::{CgroupHierarchy, CgroupLimits},
        *,
    };

    #[test]
    fn the_page_cache_of_a_cgroup_is_reclaimed_before_it_is_removed() {
        let Ok((hierarchy, _locks)) = CgroupHierarchy::claim_on_host() else { return };
        let limits = CgroupLimits { memory: Some(64 << 20), ..CgroupLimits::default() };
        let Ok(mut cgroup) = Cgroup::create(&hierarchy, "page-cache-test", limits) else { return };
        // On the disk of the build: files of a tmpfs do not count as page cache.
        let path = Path::new(env!("OUT_DIR")).join("page-cache-test");
        let content = vec![7; 4 << 20];
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&content)?;
            file.sync_all()
        });
        written.unwrap();
        let enter: String = cgroup
            .dirs
            .iter()
            .map(|dir| format!("echo 0 > {}/cgroup.procs; ", dir.display()))
            .collect();
        let read =
            format!("dd if={0} iflag=nocache count=0 && cat {0} > /dev/null", path.display());
        let status = Command::new("sh").args(["-c", &format!("{enter}{read}")]).status().unwrap();
        assert!(status.success());
        let before = cgroup.page_cache_bytes();
        cgroup.drop_page_cache();
        let after = cgroup.page_cache_bytes();
        fs::remove_file(&path).unwrap();
        assert!(before >= 4 << 20, "{before} bytes: the file was cached before the test");
        assert!(after < 256 << 10, "{after} of {before} bytes left");
        assert!(cgroup.remove());
        hierarchy.release();
    }
}
