//! One conformance suite for every store. Another implementation adds one line at the end of this
//! file.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

#[path = "conformance/credentials.rs"]
mod credentials;
#[path = "conformance/gates.rs"]
mod gates;
#[path = "conformance/images.rs"]
mod images;
#[path = "conformance/responses.rs"]
mod responses;
#[path = "conformance/revisions.rs"]
mod revisions;
#[path = "conformance/sources.rs"]
mod sources;
#[path = "conformance/storage.rs"]
mod storage;
#[path = "conformance/suite.rs"]
mod suite;
#[path = "conformance/threads.rs"]
mod threads;
#[path = "conformance/tool_calls.rs"]
mod tool_calls;
#[path = "conformance/usage.rs"]
mod usage;

use cloche_store::{SqliteStore, Store};
use tempfile::TempDir;

/// A store for one test, and everything that must live as long as the store.
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
                a_name_can_be_used_once,
                a_sandbox_is_read_as_it_was_written,
                a_key_opens_its_team_and_sandbox_until_it_is_revoked,
                teams_and_sandboxes_with_a_valid_key_cannot_be_deleted,
                an_execution_is_running_until_it_is_finished_once,
                an_execution_is_visible_only_to_its_team,
                a_thread_is_held_by_one_execution_at_a_time,
                an_expired_lease_holds_nothing,
                executions_are_filtered_by_their_fields,
                a_list_continues_after_its_cursor,
                recovery_ends_running_executions_and_releases_threads,
                a_refused_execution_is_in_the_ledger,
                a_webhook_is_due_until_it_is_delivered,
                due_webhooks_alternate_between_teams_and_urls,
                old_records_are_pruned_and_running_ones_are_kept,
                concurrent_writers_lose_nothing,
                settings_are_kept,
            },
            sources::{
                a_connection_is_read_as_it_was_written,
                bindings_stay_within_their_team,
                what_is_in_use_is_not_removed,
                a_revoked_key_uses_nothing,
                bytes_of_mounts_are_counted_with_the_outcome,
            },
            tool_calls::{
                calls_of_web_tools_are_summed_by_execution,
                calls_of_web_tools_are_usage_of_their_key_and_day,
                a_decision_allows_one_call_of_a_web_tool,
                old_calls_of_web_tools_are_pruned_with_decisions,
            },
            usage::{
                usage_is_summed_by_team_key_and_day,
                an_execution_is_counted_once_whatever_its_end,
                usage_outlives_its_executions,
                transferred_bytes_are_added_to_their_day,
                absurd_numbers_do_not_fail_a_sum,
            },
            threads::{
                a_run_moves_the_head_by_what_it_wrote,
                a_run_that_wrote_nothing_still_adds_a_snapshot,
                a_head_does_not_move_after_the_lease_was_lost,
                a_lease_is_renewed_only_by_its_holder,
                an_upload_fails_on_a_stale_head_or_a_held_thread,
                a_thread_can_be_rolled_back_and_forward,
                a_fork_is_independent_of_its_source,
                a_squash_keeps_later_layers_and_all_snapshots,
                a_thread_is_visible_only_to_its_team,
                a_change_allowed_before_a_deletion_does_not_undo_it,
                a_held_thread_is_not_deleted,
                every_referenced_layer_is_listed,
                counted_usage_is_kept_until_the_head_moves,
                threads_and_snapshots_are_listed_in_pages,
            },
            storage::{
                counters_equal_a_recount_after_random_operations,
                an_append_beyond_the_budget_writes_nothing,
                a_layer_counts_once_per_team,
                an_outcome_over_budget_is_recorded_without_its_layer,
                a_team_at_its_budget_starts_no_execution,
                pruned_snapshots_free_their_layers_and_the_head_is_kept,
                a_thread_in_use_is_not_pruned,
                a_fork_keeps_the_layers_of_pruned_snapshots,
                old_records_are_pruned_except_those_with_pending_webhooks,
            },
            revisions::{
                an_update_of_a_row_that_changed_since_it_was_read_writes_nothing,
                many_updates_at_once_lose_none,
                a_revoked_key_is_a_changed_key,
            },
            responses::{
                a_response_changes_until_it_ends,
                a_response_is_visible_only_to_its_team,
                old_responses_are_pruned_and_open_ones_are_kept,
            },
            images::{
                an_image_is_read_as_it_was_written,
                a_name_moves_to_the_newest_image,
                a_layer_is_found_by_its_source,
                layers_of_images_are_in_use,
                an_image_that_a_sandbox_uses_is_not_removed,
                a_sandbox_is_saved_only_with_an_image_that_exists,
            },
            credentials::{
                a_credential_is_read_as_it_was_written_without_its_value,
                a_key_has_the_credentials_of_its_sandbox_and_its_own,
                a_changed_value_is_what_the_next_execution_gets,
                bindings_end_with_their_credential_and_their_sandbox,
                a_credential_of_another_team_is_never_held,
            },
            gates::{
                an_approval_is_valid_for_one_state_of_a_home,
                an_approved_execution_begins_only_in_the_approved_home,
                gate_settings_are_stored_with_their_decision,
                a_question_is_asked_once_and_pending_questions_are_limited,
                an_approval_is_used_once,
                an_approval_is_for_one_call_only,
                only_the_first_answer_counts,
                late_answers_do_not_count,
                an_approval_is_either_answered_or_expired,
                decisions_are_listed_and_name_their_execution,
                old_decisions_are_pruned_and_open_approvals_are_kept,
                deleting_a_team_deletes_its_questions,
            },
        );
    };
}

conformance_of!(sqlite);

#[tokio::test]
async fn a_reopened_file_keeps_its_rows() {
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
