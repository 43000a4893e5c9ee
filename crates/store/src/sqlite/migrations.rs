//! The migrations of the database, which are part of the binary. `build.rs` lists them.

use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

/// Version, description and statements of each, the first one first.
const MIGRATIONS: &[(i64, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

/// Applies what a database lacks, and refuses one that a newer version has changed.
pub(super) fn list_migrations() -> Migrator {
    let migrations = MIGRATIONS.iter().map(|&(version, description, statements)| {
        let sql = statements.into_sql_str();
        let outside_transaction = statements.starts_with("-- no-transaction");
        let kind = MigrationType::Simple;
        Migration::new(version, description.into(), kind, sql, outside_transaction)
    });
    Migrator::with_migrations(migrations.collect())
}
