//! Runs in: server (no capabilities).
//!
//! The mounts of an execution: what is bound to its key and sandbox, narrowed by the request.

use cloche_model::{
    BoundStorage, CheckedRequest, Invalid, MountLimits, MountSource, MountSpec, MountUse,
    StorageBacking, SubPath,
};

use crate::{Caller, sources::check_mount_substrate};

/// The mounts of one execution, and the record of each.
#[derive(Debug, Default)]
pub(crate) struct AdmittedMounts {
    pub(super) specs: Vec<MountSpec>,
    pub(super) uses: Vec<MountUse>,
}

/// Narrows what the caller is bound to by the paths of the request.
pub(super) fn admit_mounts(
    caller: &Caller,
    request: &CheckedRequest,
) -> Result<AdmittedMounts, Invalid> {
    let is_mounted = |path: &SubPath| caller.storage.iter().any(|one| is_named(one, path));
    if let Some(path) = request.sub_paths.iter().find(|path| !is_mounted(path)) {
        let slug = path.slug();
        return Err(Invalid::new(format!("sub_paths: no storage is mounted at /data/{slug}")));
    }
    if !caller.storage.is_empty() {
        check_mount_substrate(caller.sandbox.shape.substrate)?;
    }
    let mut admitted = AdmittedMounts::default();
    for bound in &caller.storage {
        let sub_path = request.sub_paths.iter().find(|path| is_named(bound, path));
        admitted.specs.push(mount_spec(bound, sub_path)?);
        admitted.uses.push(MountUse {
            name: bound.source.name.clone(),
            read_only: bound.read_only,
            sub_path: sub_path.map(|path| path.scope().clone()),
            bytes_read: 0,
            bytes_written: 0,
        });
    }
    Ok(admitted)
}

fn is_named(bound: &BoundStorage, path: &SubPath) -> bool {
    bound.source.name == path.slug()
}

fn mount_spec(bound: &BoundStorage, sub_path: Option<&SubPath>) -> Result<MountSpec, Invalid> {
    let prefix = bound.narrow_for_request(sub_path)?;
    let source = match &bound.source.backing {
        StorageBacking::Connection(connection) => {
            let connection = connection.to_object_connection()?;
            MountSource::Objects { connection, prefix }
        }
        StorageBacking::Volume(volume) => {
            MountSource::Volume { id: volume.id.clone(), quota: volume.quota, sub_path: prefix }
        }
    };
    Ok(MountSpec {
        slug: bound.source.name.parse()?,
        source,
        read_only: bound.read_only,
        limits: MountLimits::default(),
    })
}
