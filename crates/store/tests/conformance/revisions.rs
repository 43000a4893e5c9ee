//! Updates of teams, sandboxes, keys and gates are compare-and-set: none is lost.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use cloche_model::{ApiKey, ByteSize, GateSettings, Moment, Sandbox, SandboxResources, Team};
use cloche_store::{Revisioned, Store, UpdateOutcome};
use futures::future::join_all;

use crate::suite::{key, sandbox, team, tenants};

pub(crate) async fn an_update_of_a_row_that_changed_since_it_was_read_writes_nothing(
    store: &dyn Store,
) {
    tenants(store).await;
    let read = store.team_for_update("team-1").await.unwrap().unwrap();
    let first = Revisioned { row: Team { max_timeout: None, ..team(1) }, ..read.clone() };
    let second = Revisioned { row: Team { storage: None, ..team(1) }, ..read };
    assert_eq!(store.update_team(&first, None).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.update_team(&second, None).await.unwrap(), UpdateOutcome::Stale);
    assert_eq!(store.find_team("team-1").await.unwrap(), Some(first.row));

    let read = store.sandbox_for_update(&sandbox(1).id).await.unwrap().unwrap();
    let first = Revisioned { row: Sandbox { name: "a".to_owned(), ..sandbox(1) }, ..read.clone() };
    let second = Revisioned { row: Sandbox { name: "b".to_owned(), ..sandbox(1) }, ..read };
    assert_eq!(store.update_sandbox(&first).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.update_sandbox(&second).await.unwrap(), UpdateOutcome::Stale);
    assert_eq!(store.find_sandbox(&sandbox(1).id).await.unwrap(), Some(first.row));

    let read = store.key_for_update(&key(1).id).await.unwrap().unwrap();
    let first = Revisioned { row: ApiKey { may_approve: false, ..key(1) }, ..read.clone() };
    let second = Revisioned { row: ApiKey { webhook_url: None, ..key(1) }, ..read };
    assert_eq!(store.update_key(&first).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.update_key(&second).await.unwrap(), UpdateOutcome::Stale);
    assert_eq!(store.find_key(&key(1).id).await.unwrap(), Some(first.row));
}

pub(crate) async fn a_revoked_key_is_a_changed_key(store: &dyn Store) {
    tenants(store).await;
    let read = store.key_for_update(&key(1).id).await.unwrap().unwrap();
    store.revoke_key(&key(1).id, Moment(9)).await.unwrap();
    assert_eq!(store.update_key(&read).await.unwrap(), UpdateOutcome::Stale);
    assert_eq!(store.find_key(&key(1).id).await.unwrap().unwrap().revoked_at, Some(Moment(9)));
}

pub(crate) async fn many_updates_at_once_lose_none(store: &dyn Store) {
    tenants(store).await;
    count_up_in_every_row(&[store], 50).await;
}

/// Counts up a number in a team, a sandbox and a key, `count` times on each store at once.
pub(crate) async fn count_up_in_every_row(stores: &[&dyn Store], count: u32) {
    let before = stores[0].find_team("team-1").await.unwrap().unwrap().max_concurrency.unwrap();
    let writers = stores.iter().flat_map(|store| (0..count).map(|_| count_up(*store)));
    join_all(writers).await;
    let total = count * u32::try_from(stores.len()).unwrap();
    for store in stores {
        let team = store.find_team("team-1").await.unwrap().unwrap();
        assert_eq!(team.max_concurrency, Some(before + total));
        let sandbox = store.find_sandbox(&sandbox(1).id).await.unwrap().unwrap();
        assert_eq!(sandbox.resources.pids, SandboxResources::default().pids + total);
        let key = store.find_key(&key(1).id).await.unwrap().unwrap();
        assert_eq!(key.env["N"].len(), total as usize);
    }
}

async fn count_up(store: &dyn Store) {
    loop {
        let mut team = store.team_for_update("team-1").await.unwrap().unwrap();
        team.row.max_concurrency = team.row.max_concurrency.map(|count| count + 1);
        team.row.storage = Some(ByteSize::gib(1));
        team.row.gates = GateSettings::default();
        if store.update_team(&team, None).await.unwrap() == UpdateOutcome::Done {
            break;
        }
    }
    loop {
        let mut read = store.sandbox_for_update(&sandbox(1).id).await.unwrap().unwrap();
        read.row.resources.pids += 1;
        if store.update_sandbox(&read).await.unwrap() == UpdateOutcome::Done {
            break;
        }
    }
    loop {
        let mut read = store.key_for_update(&key(1).id).await.unwrap().unwrap();
        read.row.env.entry("N".to_owned()).or_default().push('1');
        if store.update_key(&read).await.unwrap() == UpdateOutcome::Done {
            break;
        }
    }
}
