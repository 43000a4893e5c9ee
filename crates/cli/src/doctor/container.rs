//! Runs in: `cloche doctor`.
//!
//! Whether an executor with the profile `container` would start on this host, how it would make its
//! cells, and what it would lack. Tried only where a wall is missing.

use std::path::Path;

use cloche_executor::{Executor, ExecutorConfig, ExecutorStartError};
use cloche_model::error_chain;
use serde::Serialize;

use crate::container_profile::{self, ContainerCells};

/// What `cloche executor --profile container` would do.
#[derive(Serialize)]
pub(super) struct ContainerFinding {
    /// Whether it would start.
    starts: bool,
    /// Why cells have no namespaces; `None` where they have.
    without_namespaces: Option<String>,
    /// The walls that it would go without.
    missing: Vec<MissingInContainer>,
    /// Why it would not start.
    refusal: Option<String>,
}

/// A wall that is missing and may be.
#[derive(Serialize)]
struct MissingInContainer {
    wall: String,
    why: String,
    acceptable: &'static str,
}

/// Makes a cell as an executor in a container would.
pub(super) async fn examine_container() -> ContainerFinding {
    let mut finding = ContainerFinding {
        starts: false,
        without_namespaces: None,
        missing: Vec::new(),
        refusal: None,
    };
    match try_container(&mut finding).await {
        Ok(()) => finding.starts = true,
        Err(why) => finding.refusal = Some(why),
    }
    finding
}

async fn try_container(finding: &mut ContainerFinding) -> Result<(), String> {
    let mut config = ExecutorConfig::with_program("/proc/self/exe");
    let scratch = std::env::var_os("TMPDIR").unwrap_or_else(|| "/tmp".into());
    let cells = ContainerCells::try_cells(&config, Path::new(&scratch)).await;
    let cells = cells.map_err(|error| error_chain(&error))?;
    finding.without_namespaces.clone_from(&cells.why);
    cells.apply_to(&mut config);
    let executor = match Executor::start(config).await {
        Ok(executor) => executor,
        Err(error @ ExecutorStartError::Missing(_)) => return Err(error.to_string()),
        Err(error) => return Err(error_chain(&error)),
    };
    for (wall, why) in executor.missing_walls() {
        let acceptable = container_profile::reason_for(wall);
        finding.missing.push(MissingInContainer {
            wall: wall.clone(),
            why: why.clone(),
            acceptable,
        });
    }
    let tried = executor.try_cell().await.map_err(|error| error_chain(&error));
    executor.stop().await;
    tried
}

/// The lines of the text report.
pub(super) fn container_lines(finding: &ContainerFinding) -> Vec<String> {
    if let Some(refusal) = &finding.refusal {
        return vec![format!("An executor with --profile container would not start: {refusal}")];
    }
    let cells = match &finding.without_namespaces {
        Some(why) => format!("without namespaces ({why})"),
        None => "with namespaces".to_owned(),
    };
    let mut lines =
        vec![format!("An executor with --profile container would start and make cells {cells}:")];
    lines.extend(
        finding
            .missing
            .iter()
            .map(|missing| format!("         without {:<16} {}", missing.wall, missing.acceptable)),
    );
    lines
}
