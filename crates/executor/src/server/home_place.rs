//! Runs in: server (no capabilities). Where the home of a run is: at its usual path in a cell with a
//! root of its own, or in a directory of the container.

use std::path::Path;

use crate::protocol::{HOME, contained_cell_dir};

/// Where a run has its home.
#[derive(Clone, Debug)]
pub(crate) enum HomePlace {
    /// At its usual path, in a cell with a root of its own.
    Usual,
    /// In a directory of the container.
    Contained {
        /// The name of the cell's directory.
        directory: String,
        /// The path of that directory.
        path: String,
        /// Whether the packages of the container are hidden from Python.
        hides_packages: bool,
    },
}

impl HomePlace {
    /// The place of a new run; contained cells have theirs beside `scratch`.
    pub(crate) fn choose(scratch: Option<&Path>, hides_packages: bool) -> Self {
        let Some(scratch) = scratch else { return Self::Usual };
        let directory = Self::choose_directory();
        let path = contained_cell_dir(scratch, &directory).display().to_string();
        Self::Contained { directory, path, hides_packages }
    }

    /// A name that no other cell can guess: contained cells have the same user.
    pub(crate) fn choose_directory() -> String {
        let mut bytes = [0; 16];
        if getrandom::fill(&mut bytes).is_err() {
            // The spawner refuses a name that exists, so two runs never share a directory.
            bytes.copy_from_slice(&std::process::id().to_le_bytes().repeat(4));
        }
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The path of the home.
    pub(crate) fn home(&self) -> String {
        match self {
            Self::Usual => HOME.to_owned(),
            Self::Contained { path, .. } => format!("{path}/home"),
        }
    }
}
