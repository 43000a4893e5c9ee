//! Elicitation: asks the person at the client, in the way that the client's protocol version
//! supports.

use std::collections::BTreeMap;

use cloche_model::{AgentTool, Approval};
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
const APPROVE_FIELD: &str = "approve";

/// How the person at the client can be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ElicitSupport {
    /// The client does not support elicitation.
    None,
    /// With a request from the server, while the call waits.
    ServerRequest,
    /// With a result that makes the client ask and then repeat the call.
    InputRequired,
}

/// The person's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ElicitedAnswer {
    Yes,
    No,
    Nothing,
}

/// The support that this client offers.
pub(super) fn elicit_support(context: &RequestContext<RoleServer>) -> ElicitSupport {
    let newer = context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
    if newer {
        let offered = context.client_capabilities().and_then(|offered| offered.elicitation);
        let form = offered.is_some_and(|offered| offered.form.is_some() || offered.url.is_none());
        return if form { ElicitSupport::InputRequired } else { ElicitSupport::None };
    }
    let form = context.peer.supported_elicitation_modes().contains(&ElicitationMode::Form);
    if form { ElicitSupport::ServerRequest } else { ElicitSupport::None }
}

/// Asks the person, and waits without a time limit.
pub(super) async fn ask_client(
    context: &RequestContext<RoleServer>,
    approval: &Approval,
    text: &str,
) -> ElicitedAnswer {
    match context.peer.create_elicitation(build_form(approval, text)).await {
        Ok(ElicitResult { action, content, .. }) => answer_from_action(action, content.as_ref()),
        Err(error) => {
            tracing::debug!(%error, "a client failed to answer an elicitation request");
            ElicitedAnswer::Nothing
        }
    }
}

/// The result that makes a client ask. The id of the approval is the key of the question, so an
/// answer cannot be used for another question.
pub(super) fn build_input_required(approval: &Approval, text: &str) -> InputRequiredResult {
    let request = InputRequest::Elicitation(ElicitRequest::new(build_form(approval, text)));
    let requests = BTreeMap::from([(approval.id.to_string(), request)]);
    InputRequiredResult::from_input_requests(requests)
}

/// Parses the client's answer. Anything that is not a clear answer counts as none.
pub(super) fn parse_elicit_response(response: &Value) -> ElicitedAnswer {
    match serde_json::from_value::<ElicitResult>(response.clone()) {
        Ok(ElicitResult { action, content, .. }) => answer_from_action(action, content.as_ref()),
        Err(_) => ElicitedAnswer::Nothing,
    }
}

fn answer_from_action(action: ElicitationAction, content: Option<&Value>) -> ElicitedAnswer {
    match action {
        ElicitationAction::Accept => {
            match content.and_then(|content| content[APPROVE_FIELD].as_bool()) {
                Some(true) => ElicitedAnswer::Yes,
                Some(false) => ElicitedAnswer::No,
                None => ElicitedAnswer::Nothing,
            }
        }
        ElicitationAction::Decline => ElicitedAnswer::No,
        _ => ElicitedAnswer::Nothing,
    }
}

/// The form: the whole call for a person to read, as the engine formats it.
fn build_form(approval: &Approval, text: &str) -> ElicitRequestParams {
    let (action, title) = match approval.tool {
        AgentTool::ExecuteCode => ("run this code", "Run this code?"),
        AgentTool::WriteFile => ("write this file, where code will run", "Write this file?"),
        AgentTool::WebSearch | AgentTool::PeopleSearch => ("search for this", "Search for this?"),
        AgentTool::FetchUrl => ("read these pages", "Read these pages?"),
    };
    let requested_schema = ElicitationSchema::builder()
        .required_bool_property(APPROVE_FIELD, |field| field.title(title))
        .build_unchecked();
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("An agent wants to {action} ({}):\n\n{text}", approval.id),
        requested_schema,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_explicit_yes_approves() {
        for (response, answer) in [
            (json!({"action": "accept", "content": {"approve": true}}), ElicitedAnswer::Yes),
            (json!({"action": "accept", "content": {"approve": false}}), ElicitedAnswer::No),
            (json!({"action": "accept", "content": {"approve": "true"}}), ElicitedAnswer::Nothing),
            (json!({"action": "accept"}), ElicitedAnswer::Nothing),
            (json!({"action": "decline", "content": {"approve": true}}), ElicitedAnswer::No),
            (json!({"action": "cancel"}), ElicitedAnswer::Nothing),
            (json!({"action": "approve"}), ElicitedAnswer::Nothing),
            (json!(true), ElicitedAnswer::Nothing),
        ] {
            assert_eq!(parse_elicit_response(&response), answer, "{response}");
        }
    }
}
