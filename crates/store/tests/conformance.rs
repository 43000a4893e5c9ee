//! One suite for every store. A second implementation adds one line at the end of this file.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

#[path = "conformance/gates.rs"]
mod gates;
#[path = "conformance/responses.rs"]
mod responses;
#[path = "conformance/revisions.rs"]
mod revisions;
#[path = "conformance/storage.rs"]
mod storage;
#[path = "conformance/suite.rs"]
mod suite;
#[path = "conformance/threads.rs"]
mod threads;

use cloche_store::{SqliteStore, Store};
use tempfile::TempDir;

/// A store for one test, and whatever has to live as long as it.
struct Fixture<S> {
    store: S,
    _directory: TempDir,
}

async fn sqlite() -> Fixture<SqliteStore> {
    let directory = TempDir::new().unwrap();
    let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
    Fixture { store, _directory: directory }
}

macro_rules! conformance {
    ($open:ident: $($suite:ident::{$($test:ident),* $(,)?}),* $(,)?) => {
        mod $open {
            $($(
                #[tokio::test]
                async fn $test() {
                    let fixture = super::$open().await;
                    super::$suite::$test(&fixture.store).await;
                    super::Store::close(&fixture.store).await;
                }
            )*)*
        }
    };
}

macro_rules! conformance_of {
    ($open:ident) => {
        conformance!($open:
            suite::{
                a_team_is_found_by_id_and_by_name,
                a_name_can_be_taken_once,
                a_sandbox_comes_back_as_it_went_in,
                a_key_opens_its_team_and_sandbox_until_it_is_revoked,
                what_is_used_by_a_good_key_stays,
                an_execution_is_running_until_it_is_finished_once,
                an_execution_is_seen_by_its_team_only,
                a_thread_is_held_by_one_execution_at_a_time,
                a_lease_that_ran_out_holds_nothing,
                executions_are_listed_by_what_they_carry,
                a_list_goes_on_where_it_stopped,
                recovery_leaves_nothing_running_and_no_thread_held,
                a_refused_execution_is_in_the_ledger,
                a_webhook_is_due_until_it_is_delivered,
                due_webhooks_of_teams_take_turns_and_one_url_does_not_hide_another,
                old_records_go_and_running_ones_stay,
                many_writers_lose_nothing,
                settings_are_kept,
            },
            threads::{
                a_run_moves_the_head_by_what_it_wrote,
                a_run_that_wrote_nothing_is_a_point_all_the_same,
                a_head_does_not_move_for_whoever_lost_the_thread,
                a_lease_is_renewed_by_its_holder_only,
                an_upload_waits_for_nobody_and_replaces_nothing,
                a_thread_goes_back_and_forth,
                a_fork_has_a_life_of_its_own,
                a_squash_keeps_what_came_after_and_every_point,
                a_thread_is_seen_by_its_team_only,
                a_deletion_outlives_what_was_allowed_before,
                a_thread_that_is_held_is_not_deleted,
                every_layer_that_is_needed_is_listed,
                what_was_counted_is_kept_until_the_head_moves,
                threads_and_points_are_listed_in_pages,
            },
            storage::{
                counters_equal_a_recount_after_random_operations,
                an_append_beyond_the_budget_writes_nothing,
                a_layer_counts_once_per_team,
                an_outcome_is_recorded_without_the_layer_that_did_not_fit,
                a_team_at_its_budget_begins_nothing,
                pruned_points_free_their_layers_and_the_head_stays,
                a_thread_in_use_is_not_pruned,
                a_fork_keeps_the_layers_of_pruned_points,
                old_records_are_pruned_but_for_pending_webhooks,
            },
            revisions::{
                an_update_of_a_row_that_changed_since_it_was_read_writes_nothing,
                many_updates_at_once_lose_none,
                a_revoked_key_is_a_changed_key,
            },
            responses::{
                a_response_changes_until_it_is_over,
                a_response_is_seen_by_its_team_only,
                old_responses_go_and_open_ones_stay,
            },
            gates::{
                an_approval_is_good_for_one_state_of_a_home,
                an_approved_execution_begins_only_in_the_home_that_was_approved,
                settings_come_back_and_say_who_set_them,
                a_question_is_asked_once_and_so_many_at_a_time,
                an_approval_is_used_once,
                an_approval_is_for_one_call_only,
                only_one_of_many_answers_counts,
                what_is_late_does_not_count,
                time_and_an_answer_do_not_both_win,
                decisions_are_listed_and_name_their_execution,
                old_decisions_go_and_open_approvals_stay,
                a_removed_team_leaves_no_question,
            },
        );
    };
}

conformance_of!(sqlite);

#[tokio::test]
async fn a_reopened_file_still_has_its_rows() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    suite::settings_are_kept(&store).await;
    store.close().await;
    let store = SqliteStore::open(&path).await.unwrap();
    suite::settings_were_kept(&store).await;
}

#[tokio::test]
async fn two_handles_on_one_file_lose_no_update() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let one = SqliteStore::open(&path).await.unwrap();
    let two = SqliteStore::open(&path).await.unwrap();
    suite::tenants(&one).await;
    revisions::count_up_in_every_row(&[&one, &two], 20).await;
    one.close().await;
    two.close().await;
}
