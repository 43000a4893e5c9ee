//! What a person can pick in their client: a prompt that has the model run code instead of guessing.

use rmcp::{
    ErrorData,
    model::{GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage, Role},
};
use serde_json::Value;

/// Its name.
const NAME: &str = "solve_with_code";
/// Its argument.
const TASK: &str = "task";
const DESCRIPTION: &str = "Work something out by writing and running code";

/// The prompts there are.
pub(super) fn list_prompts() -> Vec<Prompt> {
    let task =
        PromptArgument::new(TASK).with_description("What is to be worked out.").with_required(true);
    vec![Prompt::new(NAME, Some(DESCRIPTION), Some(vec![task]))]
}

/// A prompt with its arguments filled in.
pub(super) fn fill_prompt(request: &GetPromptRequestParams) -> Result<GetPromptResult, ErrorData> {
    if request.name != NAME {
        let shown: String = request.name.chars().take(64).collect();
        return Err(ErrorData::invalid_params(format!("there is no prompt {shown:?}"), None));
    }
    let task = request.arguments.as_ref().and_then(|given| given.get(TASK)).and_then(Value::as_str);
    let Some(task) = task else {
        return Err(ErrorData::invalid_params(format!("{TASK} must be a text"), None));
    };
    let text = format!(
        "Work this out with the tool execute_code. Write a program, run it, look at what it \
         printed, and correct it if need be. Base the answer on its output, not on a guess, and show \
         the code that gave it.\n\n{task}"
    );
    let message = PromptMessage::new_text(Role::User, text);
    Ok(GetPromptResult::new(vec![message]).with_description(DESCRIPTION))
}
