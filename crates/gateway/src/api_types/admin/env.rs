//! Runs in: server (no capabilities).
//!
//! The wire format of environment variables of sandboxes and keys: a string, or an object that
//! marks the value as secret.

use std::collections::BTreeMap;

use cloche_engine::EnvDraft;
use cloche_model::Secret;
use serde::Deserialize;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};

/// The variables of a sandbox or a key.
pub(super) type EnvBody = BTreeMap<String, EnvEntry>;

/// One variable. Every value is parsed as a `Secret`, because bodies can appear in debug output.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a variable is a string or {\"value\": string, \"secret\": true}")]
pub(crate) enum EnvEntry {
    /// A plain value.
    Plain(Secret),
    /// A value with a secret flag.
    Marked(MarkedValue),
}

/// A value with a secret flag.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MarkedValue {
    /// If absent, the stored secret value is kept.
    value: Option<Secret>,
    secret: bool,
}

/// Converts the variables for the engine.
pub(super) fn draft(body: EnvBody) -> EnvDraft {
    let mut draft = EnvDraft::default();
    for (name, entry) in body {
        let (value, is_secret) = match entry {
            EnvEntry::Plain(value) => (Some(value), false),
            EnvEntry::Marked(MarkedValue { value, secret }) => (value, secret),
        };
        match value {
            Some(value) if !is_secret => {
                draft.plain.insert(name, value.reveal().to_owned()).map(drop)
            }
            // A variable without a value keeps its stored one, which must be secret.
            value => draft.secret.insert(name, value).map(drop),
        };
    }
    draft
}

/// The schema of the variables.
pub(super) fn env_body_schema() -> Schema {
    let text = || {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .max_length(Some(4096))
            .pattern(Some("^[^\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f]*$"))
    };
    let marked = ObjectBuilder::new()
        .property("value", text())
        .property("secret", ObjectBuilder::new().schema_type(Type::Boolean))
        .required("value")
        .required("secret")
        .additional_properties(Some(utoipa::openapi::schema::AdditionalProperties::FreeForm(
            false,
        )));
    let names = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[A-Z][A-Z0-9_]*$"))
        .min_length(Some(1))
        .max_length(Some(128));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .property_names(Some(Schema::from(names)))
        .additional_properties(Some(Schema::from(OneOfBuilder::new().item(text()).item(marked))))
        .max_properties(Some(50))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_a_string_or_an_object_with_a_secret_flag() {
        let body: EnvBody = serde_json::from_str(
            r#"{"A": "1", "B": {"value": "hunter2", "secret": true}, "C": {"secret": true},
                "D": {"value": "2", "secret": false}}"#,
        )
        .unwrap();
        assert!(!format!("{body:?}").contains("hunter2"));
        let draft = draft(body);
        assert_eq!((draft.plain["A"].as_str(), draft.plain["D"].as_str()), ("1", "2"));
        assert_eq!(draft.secret["B"].as_ref().map(Secret::reveal), Some("hunter2"));
        assert_eq!(draft.secret["C"], None);
        for wrong in
            [r#"{"A": 1}"#, r#"{"A": {"value": "1"}}"#, r#"{"A": {"secret": true, "x": 1}}"#]
        {
            let error = serde_json::from_str::<EnvBody>(wrong).unwrap_err();
            assert!(error.to_string().starts_with("a variable is a string"), "{error}");
        }
    }
}
