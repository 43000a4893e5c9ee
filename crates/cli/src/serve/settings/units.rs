//! Runs in: server (no capabilities).
//!
//! Values with a unit.

use cloche_model::ByteSize;

use super::SettingsError;

/// A size such as `512M`; the error names the setting.
pub(super) fn parse_size(
    name: &'static str,
    text: &Option<String>,
) -> Result<Option<ByteSize>, SettingsError> {
    let parsed = text.as_ref().map(|text| text.parse()).transpose();
    parsed.map_err(|source| SettingsError::Unit { name, source })
}
