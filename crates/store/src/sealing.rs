//! Runs in: server (no capabilities). Seals the secrets in the database with a key kept elsewhere.
//!
//! Uses ChaCha20-Poly1305 of `ring`. The associated data names table, column and row, so a sealed
//! value that is copied to another row or column does not open. This module knows no table;
//! `sqlite` has the rows.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use cloche_model::Secret;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest,
    rand::{SecureRandom, SystemRandom},
};

/// The only version of the sealed format so far.
const VERSION: u8 = 1;
/// The length of a key.
const KEY_BYTES: usize = 32;
/// The length of a key's id.
const ID_BYTES: usize = 8;
/// The length of the header before the ciphertext.
const HEAD: usize = 1 + ID_BYTES + NONCE_LEN;

/// Where the sealing key comes from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// 32 bytes in hex or base64.
    Given(Secret),
    /// A file that contains 32 bytes in hex or base64. It is created if it is missing and nothing
    /// was sealed yet.
    File(PathBuf),
}

/// Why secrets cannot be sealed or opened. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not a key.
    #[error("the secret key from {0} is not 32 bytes in hex or base64")]
    Malformed(String),
    /// The file cannot be read or created.
    #[error("cannot use the secret key file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is missing, but values were sealed with its key.
    #[error(
        "the secret key file {path} is missing, and the database holds secrets that were sealed with \
         the key {known}; put the file back or set CLOCHE_SECRET_KEY"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The id of the key that sealed the values.
        known: String,
    },
    /// The values were sealed with another key.
    #[error(
        "the secrets in the database were sealed with the key {known}, but the key {given} was \
         given; set CLOCHE_SECRET_KEY or secret_key_file to the first one"
    )]
    Wrong {
        /// The id of the key that sealed the values.
        known: String,
        /// The id of the given key.
        given: String,
    },
    /// No random bytes, or a value that is too long.
    #[error("a secret could not be sealed")]
    Failed,
}

/// The table, column and row of a sealed value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedColumn<'a> {
    pub(crate) table: &'static str,
    pub(crate) column: &'static str,
    pub(crate) id: &'a str,
}

/// Seals and opens values with one key.
pub(crate) struct SecretSealer {
    key: LessSafeKey,
    id: [u8; ID_BYTES],
}

impl fmt::Debug for SecretSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretSealer({})", self.key_id())
    }
}

impl SecretSealer {
    fn new(key: &[u8; KEY_BYTES]) -> Result<Self, KeyError> {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(b"cloche sealing key");
        hash.update(key);
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&hash.finish().as_ref()[..ID_BYTES]);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| KeyError::Failed)?;
        Ok(Self { key: LessSafeKey::new(key), id })
    }

    /// The id of the key, which reveals nothing about it.
    pub(crate) fn key_id(&self) -> String {
        hex::encode(self.id)
    }

    /// Seals bytes for one column of one row.
    pub(crate) fn seal(&self, column: SealedColumn<'_>, plain: &[u8]) -> Result<Vec<u8>, KeyError> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| KeyError::Failed)?;
        let mut text = plain.to_vec();
        let sealing = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(sealing, self.associated_data(column), &mut text)
            .map_err(|_| KeyError::Failed)?;
        let mut sealed = vec![VERSION];
        sealed.extend_from_slice(&self.id);
        sealed.extend_from_slice(&nonce);
        sealed.append(&mut text);
        Ok(sealed)
    }

    /// Opens a value that was sealed for this column and row. `None` if it was sealed for another,
    /// or with another key.
    pub(crate) fn open(&self, column: SealedColumn<'_>, sealed: &[u8]) -> Option<Vec<u8>> {
        let (head, text) = sealed.split_at_checked(HEAD)?;
        let (version, id) = (head[0], &head[1..=ID_BYTES]);
        if version != VERSION || id != self.id {
            return None;
        }
        let nonce = Nonce::try_assume_unique_for_key(&head[1 + ID_BYTES..]).ok()?;
        let mut text = text.to_vec();
        let plain =
            self.key.open_in_place(nonce, self.associated_data(column), &mut text).ok()?.len();
        text.truncate(plain);
        Some(text)
    }

    fn associated_data(
        &self,
        SealedColumn { table, column, id }: SealedColumn<'_>,
    ) -> Aad<Vec<u8>> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.id);
        for part in [table, column, id] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        Aad::from(bytes)
    }
}

impl KeySource {
    /// Checks that this is the key with this id, which sealed the secrets of a database.
    ///
    /// # Errors
    /// If it is missing, unreadable or another key.
    pub fn check_key(&self, id: &str) -> Result<(), KeyError> {
        self.load_sealer(Some(id)).map(drop)
    }

    /// Loads the key. `known` is the id of the key that sealed the existing values, if there are
    /// any.
    pub(crate) fn load_sealer(&self, known: Option<&str>) -> Result<SecretSealer, KeyError> {
        let sealer = match (self, known) {
            (Self::Given(text), _) => parse_key("CLOCHE_SECRET_KEY", text.reveal())?,
            (Self::File(path), known) => match (read_key_file(path)?, known) {
                (Some(text), _) => parse_key(&path.display().to_string(), text.reveal())?,
                (None, Some(known)) => {
                    return Err(KeyError::Missing { path: path.clone(), known: known.to_owned() });
                }
                (None, None) => create_key_file(path)?,
            },
        };
        match known {
            Some(known) if known != sealer.key_id() => {
                Err(KeyError::Wrong { known: known.to_owned(), given: sealer.key_id() })
            }
            _ => Ok(sealer),
        }
    }
}

fn parse_key(from: &str, text: &str) -> Result<SecretSealer, KeyError> {
    let text = text.trim();
    let unpadded = text.trim_end_matches('=');
    let decoded = match text.len() {
        64 => hex::decode(text).ok(),
        _ => STANDARD_NO_PAD.decode(unpadded).or_else(|_| URL_SAFE_NO_PAD.decode(unpadded)).ok(),
    };
    let key = decoded.and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
    SecretSealer::new(&key.ok_or_else(|| KeyError::Malformed(from.to_owned()))?)
}

fn read_key_file(path: &Path) -> Result<Option<Secret>, KeyError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Secret::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeyError::File { path: path.to_owned(), source }),
    }
}

/// Creates a key file. It is never readable by others, and it is durable before anything is sealed
/// with it.
fn create_key_file(path: &Path) -> Result<SecretSealer, KeyError> {
    let mut key = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| KeyError::Failed)?;
    let write = || -> io::Result<()> {
        let draft = path.with_extension("key.new");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(format!("{}\n", hex::encode(key)).as_bytes())?;
        file.sync_all()?;
        // Unlike a rename, this fails if the file exists by now.
        fs::hard_link(&draft, path)?;
        fs::remove_file(&draft)?;
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|source| KeyError::File { path: path.to_owned(), source })?;
    SecretSealer::new(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMN: SealedColumn<'_> =
        SealedColumn { table: "keys", column: "sealed_env", id: "key_a" };

    fn sealer(byte: u8) -> SecretSealer {
        SecretSealer::new(&[byte; KEY_BYTES]).unwrap()
    }

    #[test]
    fn a_sealed_value_opens_only_in_its_own_row() {
        let sealed = sealer(1).seal(COLUMN, b"hunter2").unwrap();
        assert!(!sealed.windows(7).any(|bytes| bytes == b"hunter2"));
        assert_eq!(sealer(1).open(COLUMN, &sealed).as_deref(), Some(&b"hunter2"[..]));
        for moved in [
            SealedColumn { id: "key_b", ..COLUMN },
            SealedColumn { column: "sealed_webhook_secret", ..COLUMN },
            SealedColumn { table: "sandboxes", ..COLUMN },
            SealedColumn { table: "key", column: "ssealed_env", ..COLUMN },
        ] {
            assert_eq!(sealer(1).open(moved, &sealed), None, "{moved:?}");
        }
        assert_eq!(sealer(2).open(COLUMN, &sealed), None);
    }

    #[test]
    fn a_sealed_value_with_a_changed_byte_does_not_open() {
        let sealed = sealer(1).seal(COLUMN, b"x").unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(sealer(1).open(COLUMN, &changed), None, "byte {at}");
            assert_eq!(sealer(1).open(COLUMN, &sealed[..at]), None, "cut at {at}");
        }
        assert_ne!(sealer(1).seal(COLUMN, b"x").unwrap(), sealed);
    }

    #[test]
    fn a_key_is_read_from_hex_and_from_base64() {
        let ids = [
            "0101010101010101010101010101010101010101010101010101010101010101\n",
            "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
            "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE",
        ]
        .map(|text| parse_key("a test", text).unwrap().key_id());
        assert_eq!(ids, [sealer(1).key_id(), sealer(1).key_id(), sealer(1).key_id()]);
        for text in ["", "AQEB", "zz", &"0".repeat(62), &"g".repeat(64)] {
            let error = parse_key("a test", text).unwrap_err().to_string();
            assert_eq!(error, "the secret key from a test is not 32 bytes in hex or base64");
        }
    }

    #[test]
    fn a_key_file_is_created_once_and_never_replaces_a_lost_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret.key");
        let source = KeySource::File(path.clone());
        let made = source.load_sealer(None).unwrap().key_id();
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(source.load_sealer(Some(&made)).unwrap().key_id(), made);
        fs::remove_file(&path).unwrap();
        assert!(matches!(source.load_sealer(Some(&made)), Err(KeyError::Missing { .. })));
        assert!(!path.exists());
        source.load_sealer(None).unwrap();
        assert!(matches!(source.load_sealer(Some(&made)), Err(KeyError::Wrong { .. })));
    }
}
