//! Prompts that a person can select in a client: one that makes the model run code instead of
//! guessing.

use rmcp::{
    ErrorData,
    model::{GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage, Role},
};
use serde_json::Value;

/// The name of the prompt.
const NAME: &str = "solve_with_code";
/// The name of its argument.
const TASK: &str = "task";
const DESCRIPTION: &str = "Solve a task by writing and running code";

/// The list of prompts.
pub(super) fn list_prompts() -> Vec<Prompt> {
    let task = PromptArgument::new(TASK).with_description("The task to solve.").with_required(true);
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
        return Err(ErrorData::invalid_params(format!("{TASK} must be a string"), None));
    };
    let text = format!(
        "Solve this task with the tool execute_code. Write a program, run it, check its \
         output, and correct it if needed. Base the answer on the output, not on a guess, and show \
         the code that produced it.\n\n{task}"
    );
    let message = PromptMessage::new_text(Role::User, text);
    Ok(GetPromptResult::new(vec![message]).with_description(DESCRIPTION))
}
