//! Runs in: server (no capabilities).
//!
//! The credentials of a run: variables, files, and what is added to its requests.

use cloche_model::{
    BrokeredCredential, CredentialDelivery, EnvVars, HeldCredential, InjectionTarget, Invalid,
    NetworkPolicy, RunSpec, SecretFile,
};

/// The most brokered credentials of a run, and bytes of their values: the broker gets them in one
/// packet.
const MOST_BROKERED: usize = 32;
const MOST_BROKERED_BYTES: usize = 64 << 10;

/// Refuses more brokered credentials than a run can have.
pub(super) fn check_amount(held: &[HeldCredential]) -> Result<(), Invalid> {
    let is_brokered =
        |held: &&HeldCredential| matches!(held.delivery, CredentialDelivery::Brokered(_));
    let brokered = || held.iter().filter(is_brokered);
    let (count, bytes) =
        (brokered().count(), brokered().map(|held| held.value.reveal().len()).sum::<usize>());
    if count > MOST_BROKERED || bytes > MOST_BROKERED_BYTES {
        return Err(Invalid::new(format!(
            "the sandbox and the key have {count} brokered credentials of {bytes} bytes; at most \
             {MOST_BROKERED} of {MOST_BROKERED_BYTES} bytes can be used at once"
        )));
    }
    Ok(())
}

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
    let has_network = spec.sandbox.network != NetworkPolicy::Blocked;
    spec.sandbox.trusts_broker = has_network && !spec.brokered.is_empty();
    spec
}
