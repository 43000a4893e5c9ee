//! Bringing the home of a thread into a cell that waits for its job.

use cloche_layers::{LayerError, Layers, Mountable};
use cloche_model::{HomeRoom, LayerDigest, RunSpec};

use crate::{
    cell::Cell,
    executor::RunError,
    seal::Before,
    spawner::{
        client::{Diff, SpawnError, Spawner},
        protocol::HomeRequest,
    },
    warm,
};

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

/// A home that lies ready on this host, and stays as long as this is held.
pub(crate) struct House {
    stack: Vec<LayerDigest>,
    mountable: Mountable,
    room: HomeRoom,
    /// Bytes that are put in before the run, which is not the thread's own use.
    given: u64,
    /// The names of the files that are.
    placed: Vec<String>,
}

impl House {
    /// Has the layers of a run's home ready; nothing for a run of no thread.
    pub(crate) async fn prepare(
        layers: Option<&Layers>,
        spec: &RunSpec,
    ) -> Result<Option<Self>, RunError> {
        let Some(home) = &spec.home else { return Ok(None) };
        let layers = layers.ok_or(RunError::NoThreads)?;
        let mountable = layers.mountable(&home.layers).await;
        let mountable = mountable.map_err(|error| RunError::Home(error.into()))?;
        let bytes = spec.files.iter().map(|file| file.content.len()).sum::<usize>();
        let given = (bytes + spec.code.len()) as u64;
        let inputs = spec.files.iter().map(|file| file.name.as_str());
        let placed = inputs.chain([spec.language.main_file()]).map(str::to_owned).collect();
        // A thread may have more room than one run: files are memory while it runs.
        let room = HomeRoom { bytes: home.room.bytes.min(spec.limits.disk), ..home.room };
        Ok(Some(Self { stack: home.layers.clone(), mountable, room, given, placed }))
    }

    /// Mounts it in a cell; gives what will hold what is written, and what there was before.
    pub(crate) async fn move_in(
        &self,
        cell: &mut Cell,
        spawner: &Spawner,
    ) -> Result<(Diff, Before), RunError> {
        warm::wait_for_walls(cell).await?;
        let request = HomeRequest {
            layers: self.mountable.names().iter().map(ToString::to_string).collect(),
            bytes: self.room.bytes.bytes().saturating_add(self.given),
            inodes: self.room.inodes.saturating_add(self.placed.len() as u64),
            placed: self.placed.clone(),
        };
        match spawner.house(cell.id, request).await {
            Ok(diff) => {
                let mode = self.mountable.root().map(|(mode, _)| mode);
                let before = Before::of(self.stack.clone(), mode, &diff);
                Ok((diff, before.map_err(|error| RunError::Seal(error.into()))?))
            }
            Err(error) => {
                // Half moved in is no state to run anything in.
                spawner.kill(cell.id).await;
                Err(RunError::Home(error.into()))
            }
        }
    }
}
