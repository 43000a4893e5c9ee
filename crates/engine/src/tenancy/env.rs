//! Runs in: server (no capabilities). Environment variables as they are saved: plain ones, and secret ones
//! that are never shown again.

use std::collections::BTreeMap;

use cloche_model::{
    EnvVars, Invalid, Secret, SecretVars,
    env::{SHOWN_SECRET, check_level, reveal_level},
};

/// All variables of a sandbox or a key, as an operator gives them.
#[derive(Clone, Debug, Default)]
pub struct EnvDraft {
    /// Those that are shown with the sandbox or the key.
    pub plain: EnvVars,
    /// Secret ones; without a value, the one that is there is kept.
    pub secret: BTreeMap<String, Option<Secret>>,
}

impl From<EnvVars> for EnvDraft {
    fn from(plain: EnvVars) -> Self {
        Self { plain, secret: BTreeMap::new() }
    }
}

impl EnvDraft {
    /// The variables to save, given the secret ones that there are now. A value that is only the stars
    /// in place of a secret one keeps it: so a client may send back what it was shown.
    pub(super) fn into_vars(self, now: &SecretVars) -> Result<(EnvVars, SecretVars), Invalid> {
        let (mut plain, mut secret) = (EnvVars::new(), SecretVars::new());
        let mut wanted = self.secret;
        for (name, value) in self.plain {
            if value == SHOWN_SECRET && now.contains_key(&name) {
                wanted.insert(name, None);
            } else {
                plain.insert(name, value);
            }
        }
        for (name, value) in wanted {
            let value = value.or_else(|| now.get(&name).cloned()).ok_or_else(|| {
                Invalid::new(format!("env_vars: {name} has no secret value to keep; give one"))
            })?;
            secret.insert(name, value);
        }
        check_level("env_vars", &reveal_level(&plain, &secret))?;
        Ok((plain, secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SecretVars {
        SecretVars::from([("TOKEN".to_owned(), Secret::new("hunter2"))])
    }

    fn plain(name: &str, value: &str) -> EnvDraft {
        EnvVars::from([(name.to_owned(), value.to_owned())]).into()
    }

    #[test]
    fn stars_and_absent_values_keep_a_secret_variable() {
        let stars = plain("TOKEN", SHOWN_SECRET).into_vars(&now()).unwrap();
        let secret = BTreeMap::from([("TOKEN".to_owned(), None)]);
        let absent = EnvDraft { secret, ..EnvDraft::default() };
        assert_eq!(stars, (EnvVars::new(), now()));
        assert_eq!(absent.clone().into_vars(&now()).unwrap(), stars);
        let error = absent.into_vars(&SecretVars::new()).unwrap_err().to_string();
        assert_eq!(error, "env_vars: TOKEN has no secret value to keep; give one");
    }

    #[test]
    fn a_plain_value_replaces_a_secret_one_and_rules_hold_for_both() {
        let (plain_vars, secret) = plain("TOKEN", "open").into_vars(&now()).unwrap();
        assert_eq!((plain_vars["TOKEN"].as_str(), secret.len()), ("open", 0));
        let secret = BTreeMap::from([("PATH".to_owned(), Some(Secret::new("hunter2")))]);
        let error = EnvDraft { secret, ..EnvDraft::default() }.into_vars(&now()).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
