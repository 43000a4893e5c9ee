//! Requirements for every store: responses of the Agent API.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use cloche_model::{Moment, ResponseId, ResponseStatus};
use cloche_store::{ResponseRow, Store};

use crate::suite::{id, key, sandbox, team};

fn response(n: u8) -> ResponseRow {
    ResponseRow {
        id: ResponseId::from_random(id(n)),
        team: team(1).id,
        key: key(1).id,
        sandbox: sandbox(1).id,
        status: ResponseStatus::Queued,
        visible: true,
        created_at: Moment(i64::from(n)),
        completed_at: None,
        record: "{}".to_owned(),
        conversation: "[]".to_owned(),
        events: String::new(),
    }
}

pub(crate) async fn a_response_changes_until_it_ends(store: &dyn Store) {
    let queued = response(1);
    store.create_response(queued.clone()).await.unwrap();
    assert_eq!(store.open_responses().await.unwrap(), std::slice::from_ref(&queued));
    let record = "{\"a\":1}".to_owned();
    let going =
        ResponseRow { status: ResponseStatus::InProgress, record, visible: false, ..queued };
    assert!(store.update_response(going.clone()).await.unwrap());
    let over = ResponseRow {
        status: ResponseStatus::Cancelled,
        completed_at: Some(Moment(9)),
        events: "[1]".to_owned(),
        ..going.clone()
    };
    assert!(store.update_response(over.clone()).await.unwrap());
    // A second end is refused.
    assert!(!store.update_response(going).await.unwrap());
    assert!(!store.update_response(response(2)).await.unwrap());
    assert_eq!(store.open_responses().await.unwrap(), []);
    // Visibility is fixed when the response is created.
    let over = ResponseRow { visible: true, ..over };
    assert_eq!(store.find_response(&over.team, &over.id).await.unwrap(), Some(over));
}

pub(crate) async fn a_response_is_visible_only_to_its_team(store: &dyn Store) {
    let row = response(1);
    store.create_response(row.clone()).await.unwrap();
    assert_eq!(store.find_response(&team(2).id, &row.id).await.unwrap(), None);
    assert!(store.find_response(&row.team, &row.id).await.unwrap().is_some());
}

pub(crate) async fn old_responses_are_pruned_and_open_ones_are_kept(store: &dyn Store) {
    store.create_sandbox(&sandbox(1)).await.unwrap();
    let day = 86_400_000_000;
    let over = ResponseRow { completed_at: Some(Moment(2)), ..response(1) };
    let young = ResponseRow { created_at: Moment(9 * day), ..response(3) };
    let young = ResponseRow { completed_at: Some(Moment(9 * day)), ..young };
    for row in [over.clone(), response(2), young.clone()] {
        store.create_response(row).await.unwrap();
    }
    // The sandbox keeps records for three days.
    assert_eq!(store.prune_responses(Moment(10 * day)).await.unwrap(), 1);
    assert_eq!(store.find_response(&over.team, &over.id).await.unwrap(), None);
    assert!(store.find_response(&over.team, &response(2).id).await.unwrap().is_some());
    assert!(store.find_response(&over.team, &young.id).await.unwrap().is_some());
}
