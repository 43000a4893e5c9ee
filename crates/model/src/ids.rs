//! Identifiers. A value of an id type is well-formed. Whether the entity exists is known to the
//! store only.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Spells random bytes with 32 letters and digits that are hard to confuse, one per byte.
fn spell(random: &[u8]) -> String {
    random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $label:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The prefix of every such id.
            pub const PREFIX: &str = $prefix;

            /// Creates an id from random bytes, which must come from the system's generator.
            #[must_use]
            pub fn from_random(random: [u8; 20]) -> Self {
                Self(format!("{}{}", $prefix, spell(&random)))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                let rest = text.strip_prefix($prefix).unwrap_or("");
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if rest.is_empty() || rest.len() > 20 || !rest.chars().all(plain) {
                    return Err(Invalid::new(concat!(
                        $label, " must be ", $prefix,
                        " followed by 1 to 20 letters, digits, hyphens or underscores"
                    )));
                }
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Names one execution.
    TraceId, "trc_", "trace_id"
);
id!(
    /// Names a team: the tenant that owns keys, sandboxes and executions.
    TeamId, "team_", "team id"
);
id!(
    /// Names an API key; not its secret.
    KeyId, "key_", "key id"
);
id!(
    /// Names a sandbox configuration.
    SandboxId, "sbx_", "sandbox id"
);
id!(
    /// Names a connection or a volume of a team.
    StorageId, "sto_", "storage id"
);
id!(
    /// Names a managed volume of a team.
    VolumeId, "vol_", "volume id"
);
id!(
    /// Names a credential; not its value.
    CredentialId, "cred_", "credential id"
);
id!(
    /// Names a response of the Agent API.
    ResponseId, "resp_", "response id"
);

id!(
    /// Names a tool call that waits for a person's answer.
    ApprovalId, "apr_", "approval id"
);
id!(
    /// Names a decision about a tool or its gates.
    DecisionId, "dec_", "decision id"
);

id!(
    /// Names a person who can sign in to the console.
    MemberId, "mbr_", "member id"
);
id!(
    /// Names a sign-in to the console; not its token.
    ConsoleSessionId, "ses_", "session id"
);

/// The name that a caller gives to a home that outlives executions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ThreadId(String);

impl ThreadId {
    /// The limit on characters of a thread id.
    pub const MAX_CHARS: usize = 128;

    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ThreadId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let chars = text.chars().count();
        if chars == 0 || chars > Self::MAX_CHARS {
            return Err(Invalid::new(format!(
                "thread_id must be 1 to {} characters, got {chars}",
                Self::MAX_CHARS
            )));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) || !text.chars().all(plain) {
            return Err(Invalid::new(
                "thread_id must start with a letter or digit and contain only letters, digits, \
                 hyphens and underscores",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ThreadId {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<ThreadId> for String {
    fn from(id: ThreadId) -> Self {
        id.0
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks the short name that people give to a team, a sandbox or a key.
///
/// # Errors
/// When it is not 1 to 63 lower-case letters, digits and hyphens, beginning with a letter or digit.
pub fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let long = name.is_empty() || name.len() > 63;
    if long || name.starts_with('-') || !name.chars().all(plain) {
        return Err(Invalid::new(format!(
            "{field} must be 1 to 63 lower-case letters, digits and hyphens, starting with a \
             letter or digit"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn a_thread_id_with_separators_or_other_characters_is_refused() {
        for text in ["", "-a", "_a", "a/b", "..", "a b", "a\n", "ä", "a.b", &"x".repeat(129)] {
            assert!(text.parse::<ThreadId>().is_err(), "{text:?}");
        }
        for text in ["a", "0", "A-b_c", &"x".repeat(128)] {
            assert!(text.parse::<ThreadId>().is_ok(), "{text:?}");
        }
    }

    #[test]
    fn the_error_for_a_long_thread_id_names_its_size_and_the_limit() {
        let error = "x".repeat(300).parse::<ThreadId>().unwrap_err();
        assert_eq!(error.to_string(), "thread_id must be 1 to 128 characters, got 300");
    }

    proptest! {
        #[test]
        fn a_random_trace_id_has_the_form_that_clients_check(random in any::<[u8; 20]>()) {
            let id = TraceId::from_random(random);
            prop_assert_eq!(id.as_str().parse::<TraceId>(), Ok(id.clone()));
            prop_assert_eq!(id.as_str().len(), 24);
        }

        #[test]
        fn a_parsed_id_has_no_separator(text in ".*") {
            if let Ok(id) = text.parse::<TraceId>() {
                prop_assert!(!id.as_str().contains(['/', '.', '%', '\\', '\0', '\n']));
            }
        }
    }
}
