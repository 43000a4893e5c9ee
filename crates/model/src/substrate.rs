//! What builds the cell of a sandbox: this project itself, or an OCI runtime.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// What builds the cell of a sandbox.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(into = "String", try_from = "String")]
pub enum Substrate {
    /// The walls of this project. Only these cells are kept warm.
    #[default]
    Native,
    /// An OCI runtime that is installed on the host.
    Oci(OciRuntime),
}

/// An OCI runtime, driven by its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OciRuntime {
    /// crun.
    Crun,
    /// runc.
    Runc,
    /// gVisor, whose kernel runs in user space.
    Runsc,
}

impl OciRuntime {
    /// The name of its program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Crun => "crun",
            Self::Runc => "runc",
            Self::Runsc => "runsc",
        }
    }
}

impl Substrate {
    /// Every substrate.
    pub const ALL: [Self; 4] = [
        Self::Native,
        Self::Oci(OciRuntime::Crun),
        Self::Oci(OciRuntime::Runc),
        Self::Oci(OciRuntime::Runsc),
    ];

    /// The name on the wire and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Oci(OciRuntime::Crun) => "oci:crun",
            Self::Oci(OciRuntime::Runc) => "oci:runc",
            Self::Oci(OciRuntime::Runsc) => "oci:runsc",
        }
    }
}

impl fmt::Display for Substrate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Substrate {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.into_iter().find(|substrate| substrate.name() == name);
        found.ok_or_else(|| {
            Invalid::new("substrate must be one of: native, oci:crun, oci:runc, oci:runsc")
        })
    }
}

impl From<Substrate> for String {
    fn from(substrate: Substrate) -> Self {
        substrate.name().to_owned()
    }
}

impl TryFrom<String> for Substrate {
    type Error = Invalid;

    fn try_from(name: String) -> Result<Self, Invalid> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_substrate_is_read_back_from_its_name_and_no_other_name_is_one() {
        for substrate in Substrate::ALL {
            assert_eq!(substrate.name().parse(), Ok(substrate));
            let json = serde_json::to_string(&substrate).unwrap();
            assert_eq!(json, format!("{:?}", substrate.name()));
            assert_eq!(serde_json::from_str::<Substrate>(&json).unwrap(), substrate);
        }
        for name in ["", "oci", "oci:", "oci:youki", "crun", "Native", "oci:crun "] {
            let refused = name.parse::<Substrate>().unwrap_err().to_string();
            assert!(refused.contains("native, oci:crun, oci:runc, oci:runsc"), "{name:?}");
        }
    }
}
