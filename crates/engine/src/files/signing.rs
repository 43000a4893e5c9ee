//! Runs in: server (no capabilities).
//!
//! The claims of a signed URL, protected by an HMAC-SHA256 over all of them.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cloche_model::{HomePath, KeyId, Moment, Secret, StorageId, TeamId, ThreadId};
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Files;
use crate::{Refusal, secrets};

/// The name of the setting that holds the key.
const SETTING: &str = "url_signing_key";
/// The longest token that is looked at: the longest path in base64, and the rest.
const MAX_TOKEN: usize = 8 << 10;

/// What a URL may be used for: one method only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UrlPurpose {
    /// To read the file.
    Get,
    /// To write it, with exactly so many bytes.
    Put {
        /// How many.
        length: u64,
    },
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSource {
    /// In the home of a thread.
    Thread(ThreadId),
    /// In a volume.
    Volume(StorageId),
}

/// What a signed URL allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlGrant {
    /// The one thing it is for.
    pub purpose: UrlPurpose,
    /// Whose thread or volume it is.
    pub team: TeamId,
    /// The key that asked, if it was one.
    pub key: Option<KeyId>,
    /// The thread or volume.
    pub source: FileSource,
    /// The file.
    pub path: HomePath,
    /// Since when.
    pub signed_at: Moment,
    /// Until when.
    pub expires_at: Moment,
}

/// A grant as JSON. The first field separates it from other kinds of claims signed with the same key.
#[derive(Serialize, Deserialize)]
struct GrantClaims {
    v: String,
    purpose: UrlPurpose,
    team: TeamId,
    key: Option<KeyId>,
    source: FileSource,
    path: String,
    signed_at: Moment,
    expires_at: Moment,
}

const KIND: &str = "file-3";

impl UrlGrant {
    pub(crate) fn sign_token(&self, key: &[u8]) -> String {
        let text = GrantClaims {
            v: KIND.to_owned(),
            purpose: self.purpose,
            team: self.team.clone(),
            key: self.key.clone(),
            source: self.source.clone(),
            path: self.path.to_string(),
            signed_at: self.signed_at,
            expires_at: self.expires_at,
        };
        // Strings and numbers always have a JSON form.
        let text = serde_json::to_vec(&text).unwrap_or_default();
        let code = compute_mac(key, &text).finalize().into_bytes();
        format!("{}.{}", URL_SAFE_NO_PAD.encode(text), URL_SAFE_NO_PAD.encode(code))
    }

    /// The grant of a token, if it was signed with this key.
    pub(crate) fn verify_token(token: &str, key: &[u8]) -> Option<Self> {
        let (text, code) = token.split_once('.').filter(|_| token.len() <= MAX_TOKEN)?;
        let text = URL_SAFE_NO_PAD.decode(text).ok()?;
        let code = URL_SAFE_NO_PAD.decode(code).ok()?;
        // Compares in constant time.
        compute_mac(key, &text).verify_slice(&code).ok()?;
        let text: GrantClaims = serde_json::from_slice(&text).ok()?;
        let path = text.path.parse().ok().filter(|_| text.v == KIND)?;
        Some(Self {
            purpose: text.purpose,
            team: text.team,
            key: text.key,
            source: text.source,
            path,
            signed_at: text.signed_at,
            expires_at: text.expires_at,
        })
    }
}

fn compute_mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = mac_with_key(key);
    mac.update(text);
    mac
}

#[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
fn mac_with_key(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length")
}

impl Files {
    /// The key of this server, made when it is first needed.
    pub(super) async fn signing_key(&self) -> Result<&[u8], Refusal> {
        let key = self.signing_key.get_or_try_init(|| async {
            let store = &self.store;
            let kept = store.read_secret_setting(SETTING).await?;
            if let Some(key) = kept.and_then(|key| hex::decode(key.reveal()).ok()) {
                return Ok(key);
            }
            let key = secrets::random_bytes::<32>()?.to_vec();
            store.set_secret_setting(SETTING, &Secret::new(hex::encode(&key))).await?;
            Ok::<_, Refusal>(key)
        });
        key.await.map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> UrlGrant {
        UrlGrant {
            purpose: UrlPurpose::Put { length: 5 },
            team: "team_a".parse().unwrap(),
            key: None,
            source: FileSource::Thread("t".parse().unwrap()),
            path: "a/ü\n".parse().unwrap(),
            signed_at: Moment(6),
            expires_at: Moment(7),
        }
    }

    #[test]
    fn a_token_says_what_was_granted_and_nothing_else() {
        let token = grant().sign_token(b"key");
        assert_eq!(UrlGrant::verify_token(&token, b"key"), Some(grant()));
        assert_eq!(UrlGrant::verify_token(&token, b"other"), None);
        let (text, code) = token.split_once('.').unwrap();
        let changed = URL_SAFE_NO_PAD.decode(text).unwrap();
        let changed = String::from_utf8(changed).unwrap().replace("\"length\":5", "\"length\":6");
        let changed = URL_SAFE_NO_PAD.encode(changed);
        for forged in [format!("{changed}.{code}"), format!("{text}."), text.to_owned(), ".".into()]
        {
            assert_eq!(UrlGrant::verify_token(&forged, b"key"), None, "{forged}");
        }
        let get = UrlGrant { purpose: UrlPurpose::Get, ..grant() }.sign_token(b"key");
        let other = get.split_once('.').unwrap().1;
        assert_eq!(UrlGrant::verify_token(&format!("{text}.{other}"), b"key"), None);
    }

    #[test]
    fn the_longest_path_fits() {
        let path = vec!["x".repeat(204); 20].join("/");
        let path: HomePath = path[..4095].parse().unwrap();
        let token = UrlGrant { path, ..grant() }.sign_token(b"key");
        assert!(UrlGrant::verify_token(&token, b"key").is_some());
    }
}
