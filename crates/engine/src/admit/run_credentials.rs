//! Runs in: server (no capabilities).
//!
//! The credentials of a run: variables, files, and what is added to its requests.

use cloche_model::{
    BrokeredCredential, CredentialDelivery, EnvVars, HeldCredential, InjectionTarget, RunSpec,
    SecretFile,
};

/// The injected variables. They are the lowest level: a variable of the sandbox, the key or the
/// request replaces them.
pub(super) fn injected_variables(held: &[HeldCredential]) -> EnvVars {
    let variable = |credential: &HeldCredential| match &credential.delivery {
        CredentialDelivery::Injected(InjectionTarget::Env(name)) => {
            Some((name.clone(), credential.value.reveal().to_owned()))
        }
        _ => None,
    };
    held.iter().filter_map(variable).collect()
}

/// The run with its files and its brokered credentials.
pub(super) fn with_credentials(mut spec: RunSpec, held: &[HeldCredential]) -> RunSpec {
    for HeldCredential { name, delivery, value, .. } in held {
        match delivery {
            CredentialDelivery::Injected(InjectionTarget::Env(_)) => {}
            CredentialDelivery::Injected(InjectionTarget::File(file)) => {
                let file = SecretFile { name: file.clone(), content: value.clone() };
                spec.secret_files.push(file);
            }
            CredentialDelivery::Brokered(rule) => {
                let (name, rule, value) = (name.clone(), rule.clone(), value.clone());
                spec.brokered.push(BrokeredCredential { name, rule, value });
            }
        }
    }
    spec
}
