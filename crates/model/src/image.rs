//! Runs in: all. The names of images, and what a run needs to know about one.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{EnvVars, Invalid, LayerDigest};

/// The name of the image that is a read-only view of the host's own `/usr`.
pub const HOST_IMAGE: &str = "host";

/// The name of the image that new sandboxes get if it is present.
pub const DEFAULT_IMAGE: &str = "cloche/default";

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Another name of that registry.
const DEFAULT_REGISTRY_ALIAS: &str = "index.docker.io";
/// The namespace of names with a single part in that registry.
const DEFAULT_NAMESPACE: &str = "library";
/// The tag of names without one.
const DEFAULT_TAG: &str = "latest";
/// The limit on bytes of a name without its digest.
const MAX_NAME_BYTES: usize = 255;
/// The limit on bytes of a tag.
const MAX_TAG_BYTES: usize = 128;

/// The digest of an image's manifest: `sha256:` and 64 hex digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageDigest(String);

impl ImageDigest {
    const PREFIX: &str = "sha256:";

    /// Creates a digest from the bytes of a SHA-256 hash.
    #[must_use]
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{}{hex}", Self::PREFIX))
    }

    /// The digest with its prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn hex_digits(&self) -> &str {
        &self.0[Self::PREFIX.len()..]
    }

    /// The first twelve hex digits, for lists.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.hex_digits()[..12]
    }
}

impl FromStr for ImageDigest {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let hex = text.strip_prefix(Self::PREFIX).unwrap_or("");
        let plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if hex.len() != 64 || !hex.chars().all(plain) {
            return Err(Invalid::new("an image digest must be sha256: and 64 hex digits"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The name of an image: a registry, a repository and a tag.
///
/// The text form leaves out the registry and the namespace that names without one have, and always
/// has the tag: `python:3.14`, `example.org:5000/team/tool:latest`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName {
    registry: String,
    repository: String,
    tag: String,
}

impl ImageName {
    /// The registry's host name, with its port if it has one.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in the registry, with its namespace.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Whether this is a name of the default image, with any tag.
    #[must_use]
    pub fn is_default_image(&self) -> bool {
        self.registry == DEFAULT_REGISTRY && self.repository == DEFAULT_IMAGE
    }
}

impl FromStr for ImageName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let malformed = |why: &str| {
            let shown: String = text.chars().take(64).collect();
            Invalid::new(format!("the image name {shown:?} {why}"))
        };
        if text.is_empty() || text.len() > MAX_NAME_BYTES {
            return Err(malformed("must have 1 to 255 characters"));
        }
        if text == HOST_IMAGE {
            return Err(malformed("belongs to the host's own programs"));
        }
        let (registry, rest) = split_registry(text);
        let (repository, tag) = match rest.split_once(':') {
            Some((repository, tag)) => (repository, tag),
            None => (rest, DEFAULT_TAG),
        };
        if !is_tag(tag) {
            return Err(malformed("has a tag that is not letters, digits, '_', '.' and '-'"));
        }
        if !is_registry(registry) {
            return Err(malformed("has a registry that is not a host name with an optional port"));
        }
        if !repository.split('/').all(is_repository_part) {
            return Err(malformed("must be lower-case letters and digits with '.', '_', '-', '/'"));
        }
        let default = matches!(registry, DEFAULT_REGISTRY | DEFAULT_REGISTRY_ALIAS);
        let registry = if default { DEFAULT_REGISTRY } else { registry };
        let repository = if default && !repository.contains('/') {
            format!("{DEFAULT_NAMESPACE}/{repository}")
        } else {
            repository.to_owned()
        };
        Ok(Self { registry: registry.to_owned(), repository, tag: tag.to_owned() })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repository = &self.repository;
        if self.registry == DEFAULT_REGISTRY {
            let short = repository.strip_prefix("library/").unwrap_or(repository);
            write!(f, "{short}:{}", self.tag)
        } else {
            write!(f, "{}/{repository}:{}", self.registry, self.tag)
        }
    }
}

/// An image as a person names it: by name, by digest, or by both (`NAME@sha256:…`). A sandbox that
/// was saved has the digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageReference {
    /// The name, if the text has one.
    pub name: Option<ImageName>,
    /// The digest, if the text has one. It takes precedence over the tag.
    pub digest: Option<ImageDigest>,
}

impl FromStr for ImageReference {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if let Some((name, digest)) = text.split_once('@') {
            return Ok(Self { name: Some(name.parse()?), digest: Some(digest.parse()?) });
        }
        // `sha256:…` is never the tag of an image named `sha256`.
        if text.starts_with(ImageDigest::PREFIX) {
            return Ok(Self { name: None, digest: Some(text.parse()?) });
        }
        Ok(Self { name: Some(text.parse()?), digest: None })
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.digest) {
            (Some(name), Some(digest)) => write!(f, "{name}@{}", digest.as_str()),
            (Some(name), None) => name.fmt(f),
            (None, Some(digest)) => f.write_str(digest.as_str()),
            (None, None) => Ok(()),
        }
    }
}

/// An interpreter that was found in an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interpreter {
    /// The language, as requests name it: `python`, `node`, `ruby`.
    pub language: String,
    /// Its absolute path in the image. Links in it are not resolved, because an interpreter of a
    /// virtual environment must be started by the name it has there.
    pub path: String,
    /// Its version, if a name or a file of the image says it: `3.14`, `3.14.2`.
    pub version: Option<String>,
    /// The arguments before the program's file: `run` for `go run main.go`.
    pub arguments: Vec<String>,
    /// The file in the guest's home that the code is written to: `main.py`.
    pub main_file: String,
}

/// A language that an image has no usable interpreter for, although something looked like one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RefusedInterpreter {
    /// The language.
    pub language: String,
    /// The path that was looked at.
    pub path: String,
    /// Why it cannot be used.
    pub reason: String,
}

/// The interpreters of an image, at most one for a language.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InterpreterTable {
    /// Those that can be used, sorted by language.
    pub found: Vec<Interpreter>,
    /// What was looked at and cannot be used.
    pub refused: Vec<RefusedInterpreter>,
}

impl InterpreterTable {
    /// The interpreter of a language.
    #[must_use]
    pub fn get(&self, language: &str) -> Option<&Interpreter> {
        self.found.iter().find(|interpreter| interpreter.language == language)
    }

    /// The names of all languages that can be used.
    pub fn languages(&self) -> impl Iterator<Item = &str> {
        self.found.iter().map(|interpreter| &interpreter.language[..])
    }
}

/// An image as the root of a cell: what a run needs of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageRoot {
    /// The manifest's digest, which identifies the image.
    pub digest: ImageDigest,
    /// Its layers in the layer store, lowest first.
    pub layers: Vec<LayerDigest>,
    /// Its variables, `PATH` included. They apply below those of the sandbox.
    pub env: EnvVars,
    /// Its working directory, as the image says it. This is data: a reader must resolve it inside
    /// the root.
    pub workdir: Option<String>,
    /// Its interpreters.
    pub interpreters: InterpreterTable,
}

macro_rules! text_form {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )*};
}

text_form!(ImageDigest, ImageName, ImageReference);

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits off the registry. The part before the first `/` is one if it looks like a host name.
fn split_registry(text: &str) -> (&str, &str) {
    match text.split_once('/') {
        Some((first, rest))
            if first == "localhost" || first.contains('.') || first.contains(':') =>
        {
            (first, rest)
        }
        _ => (DEFAULT_REGISTRY, text),
    }
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let label = |label: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && label.chars().all(plain) && !label.starts_with('-')
    };
    let number = |port: &str| {
        port.len() <= 5 && port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok()
    };
    host.split('.').all(label) && port.is_none_or(number)
}

fn is_tag(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= MAX_TAG_BYTES
        && text.starts_with(word)
        && text.chars().all(|c| word(c) || c == '.' || c == '-')
}

/// Letters and digits, with one `.`, one or two `_`, or any number of `-` between them.
fn is_repository_part(part: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.starts_with(letter)
        && part.ends_with(letter)
        && part.split(letter).all(|between| {
            matches!(between, "" | "." | "_" | "__") || between.chars().all(|c| c == '-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_text_form() {
        for (text, form) in [
            ("python", "python:latest"),
            ("python:3.14", "python:3.14"),
            ("docker.io/library/python:3.14", "python:3.14"),
            ("index.docker.io/python:3.14", "python:3.14"),
            ("bitnami/node", "bitnami/node:latest"),
            ("docker.io/bitnami/node", "bitnami/node:latest"),
            ("localhost/a/b", "localhost/a/b:latest"),
            ("localhost:5000/a__b/c--d:V_1.2-x", "localhost:5000/a__b/c--d:V_1.2-x"),
            ("example.org/library/tool", "example.org/library/tool:latest"),
        ] {
            let name: ImageName = text.parse().unwrap();
            assert_eq!(name.to_string(), form);
            assert_eq!(form.parse(), Ok(name));
        }
    }

    #[test]
    fn a_malformed_name_is_refused() {
        let long = "a".repeat(256);
        for text in [
            "",
            "host",
            "Python",
            "a//b",
            "a/",
            "/a",
            "a:",
            "a:b:c",
            "a:-x",
            "../a",
            "a/../b",
            "a..b",
            "a___b",
            "-a",
            "a b",
            "a\n",
            "a\0",
            "é",
            "ex_ample.org/a",
            "example.org:99999/a",
            "example.org:/a",
            ":5000/a",
            "a@b",
            &long,
        ] {
            assert!(text.parse::<ImageName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_reference_has_a_name_or_a_digest_or_both() {
        let digest = ImageDigest::from_sha256([7; 32]);
        for (text, name, has_digest) in [
            ("python:3.14".to_owned(), Some("python:3.14"), false),
            (digest.to_string(), None, true),
            (format!("python:3.14@{digest}"), Some("python:3.14"), true),
        ] {
            let reference: ImageReference = text.parse().unwrap();
            assert_eq!(reference.name.as_ref().map(ToString::to_string).as_deref(), name);
            assert_eq!(reference.digest.is_some(), has_digest);
            assert_eq!(reference.to_string(), text);
        }
        for wrong in ["@", "python@", "python@sha256:00", "sha256:zz", "python@sha512:00"] {
            assert!(wrong.parse::<ImageReference>().is_err(), "{wrong:?}");
        }
    }
}
