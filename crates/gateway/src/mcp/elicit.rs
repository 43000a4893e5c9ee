//! Asking the person at the client, the way that the client's version of the protocol has for it.

use std::collections::BTreeMap;

use cloche_model::{Approval, Tool};
use rmcp::{
    RoleServer,
    model::{
        ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
        InputRequest, InputRequiredResult, ProtocolVersion,
    },
    service::{ElicitationMode, RequestContext},
};
use serde_json::Value;

/// The field of the form.
const FIELD: &str = "approve";

/// How the person at the client can be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Not at all.
    None,
    /// By a request of ours, while the call waits.
    Request,
    /// By an answer that tells the client to ask and call again.
    Return,
}

/// What they said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    Nothing,
}

/// What this client offers.
pub(super) fn means(context: &RequestContext<RoleServer>) -> Means {
    let newer = context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
    if newer {
        let offered = context.client_capabilities().and_then(|offered| offered.elicitation);
        let form = offered.is_some_and(|offered| offered.form.is_some() || offered.url.is_none());
        return if form { Means::Return } else { Means::None };
    }
    let form = context.peer.supported_elicitation_modes().contains(&ElicitationMode::Form);
    if form { Means::Request } else { Means::None }
}

/// Asks, and waits for as long as it takes.
pub(super) async fn ask(
    context: &RequestContext<RoleServer>,
    approval: &Approval,
    text: &str,
) -> Answer {
    match context.peer.create_elicitation(form(approval, text)).await {
        Ok(ElicitResult { action, content, .. }) => judge(action, content.as_ref()),
        Err(error) => {
            tracing::debug!(%error, "a client did not answer for its person");
            Answer::Nothing
        }
    }
}

/// The answer that tells a client to ask. The approval's id is the question's name, so that the
/// answer cannot be given to another question.
pub(super) fn question(approval: &Approval, text: &str) -> InputRequiredResult {
    let request = InputRequest::Elicitation(ElicitRequest::new(form(approval, text)));
    let requests = BTreeMap::from([(approval.id.to_string(), request)]);
    InputRequiredResult::from_input_requests(requests)
}

/// What a client brought back. Anything that is not a clear answer is none.
pub(super) fn read(response: &Value) -> Answer {
    match serde_json::from_value::<ElicitResult>(response.clone()) {
        Ok(ElicitResult { action, content, .. }) => judge(action, content.as_ref()),
        Err(_) => Answer::Nothing,
    }
}

fn judge(action: ElicitationAction, content: Option<&Value>) -> Answer {
    match action {
        ElicitationAction::Accept => match content.and_then(|content| content[FIELD].as_bool()) {
            Some(true) => Answer::Yes,
            Some(false) => Answer::No,
            None => Answer::Nothing,
        },
        ElicitationAction::Decline => Answer::No,
        _ => Answer::Nothing,
    }
}

/// The form: the whole call for a person to read, as the engine describes it.
fn form(approval: &Approval, text: &str) -> ElicitRequestParams {
    let (does, title) = match approval.tool {
        Tool::ExecuteCode => ("run this code", "Run this code?"),
        Tool::WriteFile => ("write this file, where code will run", "Write this file?"),
    };
    let requested_schema = ElicitationSchema::builder()
        .required_bool_property(FIELD, |field| field.title(title))
        .build_unchecked();
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("An agent wants to {does} ({}):\n\n{text}", approval.id),
        requested_schema,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (response, answer) in [
            (json!({"action": "accept", "content": {"approve": true}}), Answer::Yes),
            (json!({"action": "accept", "content": {"approve": false}}), Answer::No),
            (json!({"action": "accept", "content": {"approve": "true"}}), Answer::Nothing),
            (json!({"action": "accept"}), Answer::Nothing),
            (json!({"action": "decline", "content": {"approve": true}}), Answer::No),
            (json!({"action": "cancel"}), Answer::Nothing),
            (json!({"action": "approve"}), Answer::Nothing),
            (json!(true), Answer::Nothing),
        ] {
            assert_eq!(read(&response), answer, "{response}");
        }
    }
}
