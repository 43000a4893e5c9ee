//! Runs in: test.
//!
//! Requirements for every store: connections, volumes and bindings are read as they were written,
//! stay within their team, and are not removed while something uses them.

use cloche_model::{
    BindingUser, ByteSize, ExecutionEnd, KeyPrefix, Moment, MountUse, ObjectStoreKind, Secret,
    SecretVars, StorageBacking, StorageBinding, StorageConnection, StorageId, StorageSource,
    VolumeSettings,
};
use cloche_store::{ExecutionFinish, SourceRemoval, Store, StoreError, UsageFilter};

use crate::suite::{LATER, end, finish, key, sandbox, start, team, tenants};

fn prefix(text: &str) -> KeyPrefix {
    text.parse().unwrap()
}

fn id(n: u8) -> StorageId {
    format!("sto_{n}").parse().unwrap()
}

fn connection(n: u8, of_team: u8, name: &str) -> StorageSource {
    let secret = |text: &str| Secret::new(text);
    StorageSource {
        id: id(n),
        team: team(of_team).id,
        name: name.to_owned(),
        backing: StorageBacking::Connection(StorageConnection {
            kind: ObjectStoreKind::S3,
            endpoint: Some("https://s3.example".to_owned()),
            bucket: "bucket".to_owned(),
            region: Some("eu-1".to_owned()),
            account: None,
            prefix: prefix("tenants"),
            read_only: false,
            allows_private_endpoint: false,
            credentials: SecretVars::from([
                ("access_key_id".to_owned(), secret("AKIA")),
                ("secret_access_key".to_owned(), secret("hunter2")),
            ]),
        }),
        created_at: Moment(i64::from(n)),
    }
}

fn volume(n: u8, of_team: u8, name: &str) -> StorageSource {
    let settings = VolumeSettings { id: format!("vol_{n}").parse().unwrap(), quota: ByteSize(7) };
    StorageSource { backing: StorageBacking::Volume(settings), ..connection(n, of_team, name) }
}

fn binding(storage: u8, user: BindingUser, path: &str, read_only: bool) -> StorageBinding {
    StorageBinding { storage: id(storage), user, path: prefix(path), read_only }
}

pub(crate) async fn a_connection_is_read_as_it_was_written(store: &dyn Store) {
    tenants(store).await;
    let (one, two) = (connection(1, 1, "data"), volume(2, 1, "work"));
    store.create_source(&one).await.unwrap();
    store.create_source(&two).await.unwrap();
    store.create_source(&connection(3, 2, "data")).await.unwrap();
    assert_eq!(store.find_source(&id(1)).await.unwrap(), Some(one.clone()));
    assert_eq!(store.list_sources(Some(&team(1).id)).await.unwrap(), [one.clone(), two]);
    assert_eq!(store.list_sources(None).await.unwrap().len(), 3);
    let found = store.find_source_by_name(&team(1).id, "data").await.unwrap();
    assert_eq!(found, Some(one.clone()));
    // A connection and a volume of a team share their names.
    let taken = store.create_source(&volume(4, 1, "data")).await.unwrap_err();
    assert!(matches!(taken, StoreError::Conflict(_)), "{taken}");
    let StorageBacking::Connection(mut changed) = one.backing.clone() else { unreachable!() };
    changed.credentials = SecretVars::new();
    let changed = StorageSource { backing: StorageBacking::Connection(changed), ..one };
    assert!(store.update_source(&changed).await.unwrap());
    assert_eq!(store.find_source(&id(1)).await.unwrap(), Some(changed));
    assert!(!store.update_source(&connection(9, 1, "none")).await.unwrap());
}

pub(crate) async fn bindings_stay_within_their_team(store: &dyn Store) {
    tenants(store).await;
    store.create_source(&connection(1, 1, "data")).await.unwrap();
    store.create_source(&volume(2, 2, "other")).await.unwrap();
    let of_sandbox = BindingUser::Sandbox(sandbox(1).id);
    let of_key = BindingUser::Key(key(1).id);
    store.bind_source(&binding(1, of_sandbox.clone(), "tenants/a", false)).await.unwrap();
    store.bind_source(&binding(1, of_key.clone(), "tenants/a/b", true)).await.unwrap();
    for foreign in [of_sandbox.clone(), of_key.clone()] {
        let refused = store.bind_source(&binding(2, foreign, "", false)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict(_)), "{refused}");
    }
    let bound = store.bound_storage(&sandbox(1).id, &key(1).id).await.unwrap();
    assert_eq!(bound.len(), 1);
    assert_eq!(bound[0].scope, Some(prefix("tenants/a/b")));
    assert!(bound[0].read_only);
    let bound = store.bound_storage(&sandbox(1).id, &key(2).id).await.unwrap();
    assert_eq!((bound[0].scope.clone(), bound[0].read_only), (Some(prefix("tenants/a")), false));
    let names = store.sandbox_storage(&sandbox(1).id).await.unwrap();
    assert_eq!(names, [("data".to_owned(), false)]);
}

pub(crate) async fn what_is_in_use_is_not_removed(store: &dyn Store) {
    tenants(store).await;
    store.create_source(&connection(1, 1, "data")).await.unwrap();
    let of_key = BindingUser::Key(key(1).id);
    store.bind_source(&binding(1, of_key.clone(), "tenants", true)).await.unwrap();
    let SourceRemoval::InUse(users) = store.remove_source(&id(1)).await.unwrap() else {
        panic!("it was removed");
    };
    assert_eq!(users, [format!("key {}", key(1).name)]);
    assert!(store.unbind_source(&id(1), &of_key).await.unwrap());
    assert!(!store.unbind_source(&id(1), &of_key).await.unwrap());
    assert_eq!(store.remove_source(&id(1)).await.unwrap(), SourceRemoval::Done);
    assert_eq!(store.remove_source(&id(1)).await.unwrap(), SourceRemoval::Missing);
}

pub(crate) async fn a_revoked_key_uses_nothing(store: &dyn Store) {
    tenants(store).await;
    store.create_source(&volume(1, 1, "work")).await.unwrap();
    store.bind_source(&binding(1, BindingUser::Key(key(1).id), "", false)).await.unwrap();
    store.revoke_key(&key(1).id, Moment(9)).await.unwrap();
    assert_eq!(store.remove_source(&id(1)).await.unwrap(), SourceRemoval::Done);
    assert!(store.bound_storage(&sandbox(1).id, &key(1).id).await.unwrap().is_empty());
}

pub(crate) async fn bytes_of_mounts_are_counted_with_the_outcome(store: &dyn Store) {
    tenants(store).await;
    let mount = |name: &str, read, written| MountUse {
        name: name.to_owned(),
        read_only: false,
        sub_path: Some(prefix("a/b")),
        bytes_read: read,
        bytes_written: written,
    };
    for n in [1, 2] {
        let start = start(n);
        let trace_id = start.trace_id.clone();
        store.begin_execution(start, LATER, None).await.unwrap();
        let mounts = vec![mount("data", 10, 1), mount("work", 0, u64::MAX)];
        let end = ExecutionEnd { mounts, ..end() };
        store.finish_execution(ExecutionFinish { trace_id, end, ..finish(1) }).await.unwrap();
    }
    let all = UsageFilter { team: None, key: None, first_day: 0, last_day: i64::MAX };
    let traffic = store.storage_traffic(&all).await.unwrap();
    assert_eq!(traffic.len(), 2);
    assert_eq!((&*traffic[0].name, traffic[0].read_bytes), ("data", 20));
    assert_eq!(traffic[0].written_bytes, 2);
    // Absurd numbers are cut, and fail no sum.
    assert_eq!((&*traffic[1].name, traffic[1].written_bytes), ("work", 1_000_000_000_000_000));
    let none = UsageFilter { team: Some(team(2).id), ..all };
    assert!(store.storage_traffic(&none).await.unwrap().is_empty());
    let seen = store.find_execution(&team(1).id, &start(1).trace_id).await.unwrap().unwrap();
    assert_eq!(seen.end.unwrap().mounts[0], mount("data", 10, 1));
}
