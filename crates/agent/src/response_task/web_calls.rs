//! The calls of web tools by a model.

use cloche_engine::{ToolCallOrigin, WebToolAnswer, WebToolCall};
use cloche_model::WebTool;

use super::{ResponseTask, interrupted_failure};
use crate::{
    ModelToolCall, ResponseEventKind, ResponseFailure, ResponseItem,
    web_tool::{WebToolRequest, answer_for_model, error_for_model, shown_pages},
};

impl ResponseTask {
    /// The web tool of this name that the request has.
    pub(super) fn find_web_tool(&self, name: &str) -> Option<WebToolRequest> {
        self.order.web_tools.iter().find(|request| request.tool.name() == name).cloned()
    }

    /// Runs one call of a web tool. Returns the result for the model.
    pub(super) async fn run_web_call(
        &mut self,
        request: &WebToolRequest,
        call: &ModelToolCall,
    ) -> Result<String, ResponseFailure> {
        let asked = match request.parse_call(&call.arguments) {
            Ok(asked) => asked,
            Err(why) => return Ok(error_for_model(&why)),
        };
        self.live.change(|_| {
            let queries = match &asked {
                WebToolCall::Search { query, .. } => {
                    ResponseEventKind::SearchQueries { queries: vec![query.clone()] }
                }
                WebToolCall::Fetch { urls } => {
                    ResponseEventKind::FetchQueries { urls: urls.clone() }
                }
            };
            ((), vec![ResponseEventKind::ReasoningStarted, queries])
        });
        let answered = self.answer_web_call(&asked).await;
        let answer = match answered {
            Ok(Ok(answer)) => Ok(request.limit_answer(answer)),
            Ok(Err(why)) => Err(why),
            Err(failure) => return Err(failure),
        };
        self.show_web_answer(asked, answer.as_ref());
        Ok(match answer {
            Ok(answer) => answer_for_model(&answer),
            Err(why) => error_for_model(&why),
        })
    }

    /// Asks the gates and the provider, and bills the answer. The inner error is for the model.
    async fn answer_web_call(
        &mut self,
        asked: &WebToolCall,
    ) -> Result<Result<WebToolAnswer, String>, ResponseFailure> {
        let permit = match self.obtain_permit(&asked.to_gate_call()).await? {
            Ok(permit) => permit,
            Err(why) => return Ok(Err(why)),
        };
        let tools = self.engine.web_tools();
        let origin = ToolCallOrigin { execution: None, response: Some(self.live.id.clone()) };
        let answered = tokio::select! {
            answered = tools.run_call(&self.caller, &permit, &origin, asked) => answered,
            () = self.live.stopped.cancelled() => return Err(interrupted_failure()),
        };
        if answered.is_ok() {
            self.bill_web_calls(asked.tool(), 1, tools.price_of(asked.tool()));
        }
        Ok(answered.map_err(|error| error.message))
    }

    /// Adds calls of a web tool to the bill.
    pub(super) fn bill_web_calls(&self, tool: WebTool, calls: u64, micro_dollars: u64) {
        self.live.change(|response| {
            response.bill.add_web_calls(tool, calls, micro_dollars);
            ((), Vec::new())
        });
    }

    /// Adds the item of a call, and the events of its results.
    fn show_web_answer(&self, asked: WebToolCall, answer: Result<&WebToolAnswer, &String>) {
        let error = answer.err().cloned();
        let (item, results) = match asked {
            WebToolCall::Search { tool, query, .. } => {
                let results = match answer {
                    Ok(WebToolAnswer::Search { results }) => results.clone(),
                    _ => Vec::new(),
                };
                let event = ResponseEventKind::SearchResults { results: results.clone() };
                (ResponseItem::Search { tool, queries: vec![query], results, error }, event)
            }
            WebToolCall::Fetch { .. } => {
                let pages = match answer {
                    Ok(WebToolAnswer::Pages { pages }) => shown_pages(pages.clone()),
                    _ => Vec::new(),
                };
                let event = ResponseEventKind::FetchResults { pages: pages.clone() };
                (ResponseItem::Fetch { pages, error }, event)
            }
        };
        self.live.change(|response| {
            let index = response.output.len();
            response.output.push(item.clone());
            let added = ResponseEventKind::ItemAdded { index, item: item.clone() };
            let done = ResponseEventKind::ItemDone { index, item };
            ((), vec![results, ResponseEventKind::ReasoningStopped, added, done])
        });
    }
}
