//! Runs in: server (no capabilities). Prepares the home of a thread, and lets the spawner mount it
//! in a cell that waits for its job.

use cloche_layers::{LayerError, Layers, UnpackedStack};
use cloche_model::{ByteSize, HomeQuota, LayerDigest, RunSpec};

use super::{
    cell::Cell,
    cell_waiters::OverlayDirs,
    commit::HomeBaseline,
    run_error::RunError,
    spawner_client::{SpawnError, SpawnerClient},
    warm,
};
use crate::protocol::{HomeRequest, inodes_for_disk};

/// Why a home could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// A layer could not be fetched or unpacked.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The spawner could not mount it.
    #[error(transparent)]
    Mount(#[from] SpawnError),
}

/// A home leaves one part in this many of the disk limit to `/tmp` and `/dev/shm`.
const TEMPORARY_SHARE: u64 = 4;
/// It leaves no more than this many bytes, unless it may not use the rest itself.
const MOST_TEMPORARY: u64 = 64 << 20;

/// Divides the disk limit of one run between its home and its other writable directories. A home is
/// a file system of its own, so each has its own limit; together they are the disk limit.
fn share_disk(disk: ByteSize, room: HomeQuota) -> (HomeQuota, (u64, u64)) {
    let (bytes, inodes) = (disk.bytes(), inodes_for_disk(disk.bytes()));
    let temporary = (bytes / TEMPORARY_SHARE).min(MOST_TEMPORARY);
    let home_bytes = room.bytes.bytes().min(bytes - temporary);
    let home_inodes = room.inodes.min(inodes - inodes / TEMPORARY_SHARE);
    let home = HomeQuota { bytes: ByteSize(home_bytes), inodes: home_inodes };
    (home, (bytes - home_bytes, inodes - home_inodes))
}

/// A home whose layers are unpacked on this host, and stay unpacked while this exists.
pub(crate) struct HomeMount {
    stack: Vec<LayerDigest>,
    unpacked: UnpackedStack,
    room: HomeQuota,
    /// Bytes and files for the other directories that the run can write to.
    elsewhere: (u64, u64),
    /// Bytes of files that the server places before the run. They do not count as the thread's use.
    placed_bytes: u64,
    /// The names of those files.
    placed: Vec<String>,
}

/// A thread's home that is mounted in a cell.
pub(crate) struct MountedHome {
    pub(crate) dirs: OverlayDirs,
    pub(crate) baseline: HomeBaseline,
}

impl HomeMount {
    /// Unpacks the layers of a run's home; `None` for a run without a thread.
    pub(crate) async fn prepare(
        layers: Option<&Layers>,
        spec: &RunSpec,
    ) -> Result<Option<Self>, RunError> {
        let Some(home) = &spec.home else { return Ok(None) };
        let layers = layers.ok_or(RunError::NoThreads)?;
        let mountable = layers.unpack_stack(&home.layers).await;
        let mountable = mountable.map_err(|error| RunError::Home(error.into()))?;
        let bytes = spec.files.iter().map(|file| file.content.len()).sum::<usize>();
        let placed_bytes = (bytes + spec.code.len()) as u64;
        let inputs = spec.files.iter().map(|file| file.name.as_str());
        let placed = inputs.chain([spec.language.main_file()]).map(str::to_owned).collect();
        // One run may write less than the thread has left: its files are in memory while it runs.
        let (room, elsewhere) = share_disk(spec.limits.disk, home.room);
        Ok(Some(Self {
            stack: home.layers.clone(),
            unpacked: mountable,
            room,
            elsewhere,
            placed_bytes,
            placed,
        }))
    }

    /// Mounts the home in a cell. If that fails the cell is killed.
    pub(crate) async fn mount_into(
        &self,
        cell: &mut Cell,
        spawner: &SpawnerClient,
    ) -> Result<MountedHome, RunError> {
        warm::wait_for_walls(cell).await?;
        let request = HomeRequest {
            layers: self.unpacked.layer_names().iter().map(ToString::to_string).collect(),
            bytes: self.room.bytes.bytes().saturating_add(self.placed_bytes),
            inodes: self.room.inodes.saturating_add(self.placed.len() as u64),
            elsewhere: self.elsewhere,
            placed: self.placed.clone(),
        };
        match spawner.mount_home(cell.id, request).await {
            Ok(dirs) => {
                let mode = self.unpacked.root_metadata().map(|(mode, _)| mode);
                let baseline = HomeBaseline::from_upper(self.stack.clone(), mode, &dirs);
                let baseline = baseline.map_err(|error| RunError::Commit(error.into()))?;
                Ok(MountedHome { dirs, baseline })
            }
            Err(error) => {
                // The home may be mounted in part, so nothing may run in this cell.
                spawner.kill_cell(cell.id).await;
                Err(RunError::Home(error.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_and_the_other_writable_directories_share_one_disk_limit() {
        for (disk, room, home) in [(512, 1024, 448), (32, 1024, 24), (512, 1, 1), (512, 0, 0)] {
            let (disk, room) = (ByteSize::mib(disk), ByteSize::mib(room));
            let (shared, elsewhere) = share_disk(disk, HomeQuota { bytes: room, inodes: 1 << 40 });
            assert_eq!(shared.bytes, ByteSize::mib(home));
            assert_eq!(shared.bytes.bytes() + elsewhere.0, disk.bytes());
            assert_eq!(shared.inodes + elsewhere.1, inodes_for_disk(disk.bytes()));
        }
    }
}
