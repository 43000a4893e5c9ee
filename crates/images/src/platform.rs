//! Runs in: server (no capabilities).
//!
//! Which image of an index is for this host.

use serde::Deserialize;

use crate::documents::Descriptor;

/// The platform of an image, as its documents name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ImagePlatform {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

impl ImagePlatform {
    /// The platform of this host.
    pub(crate) fn of_host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", Some("v8")),
            other => (other, None),
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Whether programs for `other` run here.
    pub(crate) fn runs(&self, other: &Self) -> bool {
        let variant = match (&self.architecture[..], other.variant.as_deref()) {
            (_, None | Some("")) => true,
            // Every amd64 processor is v1.
            ("amd64", Some(variant)) => variant == "v1",
            (_, variant) => variant == self.variant.as_deref(),
        };
        self.os == other.os && self.architecture == other.architecture && variant
    }

    /// As people write it: `linux/arm64`.
    pub(crate) fn to_text(&self) -> String {
        format!("{}/{}", self.os, self.architecture)
    }
}

/// The entries of an index that this host can run. Attestations have the platform `unknown`.
pub(crate) fn choose_for_host(entries: &[Descriptor]) -> Vec<&Descriptor> {
    let host = ImagePlatform::of_host();
    let fits = |entry: &&Descriptor| match &entry.platform {
        Some(platform) => host.runs(platform),
        // Layouts of one image often do not say; its configuration does.
        None => true,
    };
    entries.iter().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(architecture: &str, variant: Option<&str>) -> ImagePlatform {
        ImagePlatform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    #[test]
    fn a_variant_must_be_one_that_the_host_has() {
        let (amd64, arm64) = (platform("amd64", None), platform("arm64", Some("v8")));
        assert!(amd64.runs(&platform("amd64", None)) && amd64.runs(&platform("amd64", Some("v1"))));
        assert!(!amd64.runs(&platform("amd64", Some("v3"))));
        assert!(arm64.runs(&platform("arm64", Some("v8"))) && arm64.runs(&platform("arm64", None)));
        assert!(!arm64.runs(&platform("arm64", Some("v9"))) && !arm64.runs(&amd64));
        let windows = ImagePlatform { os: "windows".to_owned(), ..platform("amd64", None) };
        assert!(!amd64.runs(&windows) && !amd64.runs(&ImagePlatform::default()));
    }
}
