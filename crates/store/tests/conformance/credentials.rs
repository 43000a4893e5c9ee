//! Requirements for every store: credentials and their bindings.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use cloche_model::{
    BrokerRule, Credential, CredentialBinding, CredentialDelivery, CredentialForm, CredentialId,
    HeldCredential, InjectionTarget, Moment, Secret, TeamId,
};
use cloche_store::{Store, StoreError};

use crate::suite::{key, sandbox, team, tenants};

fn credential(n: u8, bindings: Vec<CredentialBinding>) -> Credential {
    Credential {
        id: CredentialId::from_random([n; 20]),
        team: team(1).id,
        name: format!("credential-{n}"),
        delivery: CredentialDelivery::Brokered(BrokerRule {
            hosts: vec!["api.example.com:8443".parse().unwrap()],
            methods: vec!["GET".to_owned()],
            paths: vec!["/v1".to_owned()],
            form: CredentialForm::Header("x-api-key".to_owned()),
        }),
        bindings,
        created_at: Moment(1),
        updated_at: Moment(2),
        last_used_at: None,
    }
}

fn to_sandbox() -> CredentialBinding {
    CredentialBinding::Sandbox(sandbox(1).id)
}

fn to_key() -> CredentialBinding {
    CredentialBinding::Key(key(1).id)
}

async fn held(store: &dyn Store) -> Vec<HeldCredential> {
    store.find_key_access("digest-1").await.unwrap().unwrap().credentials
}

async fn held_names(store: &dyn Store) -> Vec<String> {
    held(store).await.into_iter().map(|credential| credential.name).collect()
}

pub(crate) async fn a_credential_is_read_as_it_was_written_without_its_value(store: &dyn Store) {
    tenants(store).await;
    let written = credential(1, vec![to_key(), to_sandbox()]);
    store.create_credential(&written, &Secret::new("hunter2")).await.unwrap();
    let read = store.find_credential(&written.id).await.unwrap().unwrap();
    assert_eq!(read, written);
    assert_eq!(
        store.list_credentials(Some(&team(1).id)).await.unwrap(),
        std::slice::from_ref(&written)
    );
    assert_eq!(store.list_credentials(None).await.unwrap().len(), 1);
    let other = TeamId::from_random([9; 20]);
    assert!(store.list_credentials(Some(&other)).await.unwrap().is_empty());
    let again = Credential { id: CredentialId::from_random([2; 20]), ..written.clone() };
    let taken = store.create_credential(&again, &Secret::new("other")).await;
    assert!(matches!(taken, Err(StoreError::Conflict(_))), "{taken:?}");
    store.note_credential_use(vec![written.id.clone()], Moment(7)).await.unwrap();
    let used = store.find_credential(&written.id).await.unwrap().unwrap();
    assert_eq!(used.last_used_at, Some(Moment(7)));
}

pub(crate) async fn a_key_has_the_credentials_of_its_sandbox_and_its_own(store: &dyn Store) {
    tenants(store).await;
    for (n, bindings) in [
        (1, vec![to_sandbox()]),
        (2, vec![to_key()]),
        (3, vec![]),
        (4, vec![to_key(), to_sandbox()]),
    ] {
        let value = Secret::new(format!("value-{n}"));
        store.create_credential(&credential(n, bindings), &value).await.unwrap();
    }
    assert_eq!(held_names(store).await, ["credential-1", "credential-2", "credential-4"]);
    let values: Vec<_> =
        held(store).await.iter().map(|held| held.value.reveal().to_owned()).collect();
    assert_eq!(values, ["value-1", "value-2", "value-4"]);
    store.bind_credential(&credential(3, vec![]).id, &to_key()).await.unwrap();
    store.bind_credential(&credential(3, vec![]).id, &to_key()).await.unwrap();
    assert!(store.unbind_credential(&credential(1, vec![]).id, &to_sandbox()).await.unwrap());
    assert!(!store.unbind_credential(&credential(1, vec![]).id, &to_sandbox()).await.unwrap());
    assert_eq!(held_names(store).await, ["credential-2", "credential-3", "credential-4"]);
}

pub(crate) async fn a_changed_value_is_what_the_next_execution_gets(store: &dyn Store) {
    tenants(store).await;
    let mut changed = credential(1, vec![to_sandbox()]);
    store.create_credential(&changed, &Secret::new("first")).await.unwrap();
    changed.updated_at = Moment(5);
    changed.delivery = CredentialDelivery::Injected(InjectionTarget::Env("TOKEN".to_owned()));
    assert!(store.update_credential(&changed, None).await.unwrap());
    let now = held(store).await.remove(0);
    assert_eq!((now.value.reveal(), &now.delivery), ("first", &changed.delivery));
    assert!(store.update_credential(&changed, Some(&Secret::new("second"))).await.unwrap());
    assert_eq!(held(store).await[0].value.reveal(), "second");
    assert_eq!(store.find_credential(&changed.id).await.unwrap().unwrap(), changed);
    let missing = credential(9, vec![]);
    assert!(!store.update_credential(&missing, None).await.unwrap());
}

pub(crate) async fn bindings_end_with_their_credential_and_their_sandbox(store: &dyn Store) {
    tenants(store).await;
    let (one, two) = (credential(1, vec![to_sandbox()]), credential(2, vec![to_sandbox()]));
    for credential in [&one, &two] {
        store.create_credential(credential, &Secret::new("hunter2")).await.unwrap();
    }
    assert!(store.delete_credential(&one.id).await.unwrap());
    assert!(!store.delete_credential(&one.id).await.unwrap());
    assert_eq!(held_names(store).await, ["credential-2"]);
    store.revoke_key(&key(1).id, Moment(9)).await.unwrap();
    assert!(store.delete_sandbox(&sandbox(1).id).await.unwrap());
    assert!(store.find_credential(&two.id).await.unwrap().unwrap().bindings.is_empty());
    assert!(store.delete_team(&team(1).id).await.unwrap());
    assert!(store.list_credentials(None).await.unwrap().is_empty());
}

pub(crate) async fn a_credential_of_another_team_is_never_held(store: &dyn Store) {
    tenants(store).await;
    store.create_team(&team(2)).await.unwrap();
    let foreign = Credential { team: team(2).id, ..credential(1, vec![to_sandbox(), to_key()]) };
    store.create_credential(&foreign, &Secret::new("hunter2")).await.unwrap();
    assert!(held(store).await.is_empty());
}
