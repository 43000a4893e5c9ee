//! Bringing the home of a thread into a cell that waits for its job.

use cloche_layers::{LayerError, Layers, UnpackedStack};
use cloche_model::{ByteSize, HomeQuota, LayerDigest, RunSpec};

use super::{
    cell::Cell,
    commit::HomeBaseline,
    executor::RunError,
    spawner_client::{OverlayDirs, SpawnError, SpawnerClient},
    warm,
};
use crate::protocol::{HomeRequest, inodes_for_disk};

/// Why a home could not be brought in.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// A layer could not be had or unpacked.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] SpawnError),
}

/// The part of the disk limit that a home leaves to `/tmp` and `/dev/shm`: one in so many.
const TEMPORARY_SHARE: u64 = 4;
/// And no more than this, if it has that much room.
const MOST_TEMPORARY: u64 = 64 << 20;

/// How the disk limit of one run is shared out: what it may write to its home, and elsewhere. A
/// home is a file system of its own, so each has a limit of its own; together they are the limit.
fn share_disk(disk: ByteSize, room: HomeQuota) -> (HomeQuota, (u64, u64)) {
    let (bytes, inodes) = (disk.bytes(), inodes_for_disk(disk.bytes()));
    let temporary = (bytes / TEMPORARY_SHARE).min(MOST_TEMPORARY);
    let home_bytes = room.bytes.bytes().min(bytes - temporary);
    let home_inodes = room.inodes.min(inodes - inodes / TEMPORARY_SHARE);
    let home = HomeQuota { bytes: ByteSize(home_bytes), inodes: home_inodes };
    (home, (bytes - home_bytes, inodes - home_inodes))
}

/// A home that lies ready on this host, and stays as long as this is held.
pub(crate) struct HomeMount {
    stack: Vec<LayerDigest>,
    unpacked: UnpackedStack,
    room: HomeQuota,
    /// Bytes and files for the other places that the run can write to.
    elsewhere: (u64, u64),
    /// Bytes that are put in before the run, which is not the thread's own use.
    given: u64,
    /// The names of the files that are.
    placed: Vec<String>,
}

impl HomeMount {
    /// Has the layers of a run's home ready; nothing for a run of no thread.
    pub(crate) async fn prepare(
        layers: Option<&Layers>,
        spec: &RunSpec,
    ) -> Result<Option<Self>, RunError> {
        let Some(home) = &spec.home else { return Ok(None) };
        let layers = layers.ok_or(RunError::NoThreads)?;
        let mountable = layers.unpack_stack(&home.layers).await;
        let mountable = mountable.map_err(|error| RunError::Home(error.into()))?;
        let bytes = spec.files.iter().map(|file| file.content.len()).sum::<usize>();
        let given = (bytes + spec.code.len()) as u64;
        let inputs = spec.files.iter().map(|file| file.name.as_str());
        let placed = inputs.chain([spec.language.main_file()]).map(str::to_owned).collect();
        // A thread may have more room than one run: files are memory while it runs.
        let (room, elsewhere) = share_disk(spec.limits.disk, home.room);
        Ok(Some(Self {
            stack: home.layers.clone(),
            unpacked: mountable,
            room,
            elsewhere,
            given,
            placed,
        }))
    }

    /// Mounts it in a cell; gives what will hold what is written, and what there was before.
    pub(crate) async fn mount_into(
        &self,
        cell: &mut Cell,
        spawner: &SpawnerClient,
    ) -> Result<(OverlayDirs, HomeBaseline), RunError> {
        warm::wait_for_walls(cell).await?;
        let request = HomeRequest {
            layers: self.unpacked.layer_names().iter().map(ToString::to_string).collect(),
            bytes: self.room.bytes.bytes().saturating_add(self.given),
            inodes: self.room.inodes.saturating_add(self.placed.len() as u64),
            elsewhere: self.elsewhere,
            placed: self.placed.clone(),
        };
        match spawner.mount_home(cell.id, request).await {
            Ok(diff) => {
                let mode = self.unpacked.root_metadata().map(|(mode, _)| mode);
                let before = HomeBaseline::from_upper(self.stack.clone(), mode, &diff);
                Ok((diff, before.map_err(|error| RunError::Commit(error.into()))?))
            }
            Err(error) => {
                // Half moved in is no state to run anything in.
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
    fn the_home_and_the_other_places_share_one_disk_limit() {
        for (disk, room, home) in [(512, 1024, 448), (32, 1024, 24), (512, 1, 1), (512, 0, 0)] {
            let (disk, room) = (ByteSize::mib(disk), ByteSize::mib(room));
            let (shared, elsewhere) = share_disk(disk, HomeQuota { bytes: room, inodes: 1 << 40 });
            assert_eq!(shared.bytes, ByteSize::mib(home));
            assert_eq!(shared.bytes.bytes() + elsewhere.0, disk.bytes());
            assert_eq!(shared.inodes + elsewhere.1, inodes_for_disk(disk.bytes()));
        }
    }
}
