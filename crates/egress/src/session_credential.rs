//! Runs in: server (no capabilities), broker (no capabilities).
//!
//! A brokered credential on its way from the server to the broker. It is the only form in which a
//! value is serialised, and it prints as stars.

use std::fmt;

use cloche_model::{BrokerRule, BrokeredCredential, Secret};
use serde::{Deserialize, Serialize};

/// A brokered credential of a session.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SessionCredential {
    name: String,
    rule: BrokerRule,
    value: String,
}

impl From<&BrokeredCredential> for SessionCredential {
    fn from(credential: &BrokeredCredential) -> Self {
        Self {
            name: credential.name.clone(),
            rule: credential.rule.clone(),
            value: credential.value.reveal().to_owned(),
        }
    }
}

impl From<SessionCredential> for BrokeredCredential {
    fn from(credential: SessionCredential) -> Self {
        let SessionCredential { name, rule, value } = credential;
        Self { name, rule, value: Secret::new(value) }
    }
}

impl fmt::Debug for SessionCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionCredential({}, ***)", self.name)
    }
}
