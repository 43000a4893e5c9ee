//! A chain of models: retries the same model after a transient error, and the next model otherwise.

use std::{sync::Arc, time::Duration};

use cloche_engine::Engine;

use crate::{ModelProvider, ModelReply, ModelRequest, ProviderError, TextListener, TokenPrices};

/// The longest wait before a retry. A provider that requests a longer one is given up.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// One model of a chain.
#[derive(Clone)]
pub(crate) struct ModelRoute {
    /// The name that the caller uses.
    pub(crate) name: String,
    /// The name that the provider uses.
    pub(crate) model: String,
    pub(crate) provider: Arc<dyn ModelProvider>,
    pub(crate) prices: TokenPrices,
    pub(crate) retries: u32,
    pub(crate) backoff: Duration,
}

/// Models that are tried in order. Once one has answered, the chain stays with it.
pub(crate) struct ModelChain {
    routes: Vec<ModelRoute>,
    at: usize,
    /// The engine, for its metrics.
    engine: Engine,
}

impl ModelChain {
    pub(crate) fn new(routes: Vec<ModelRoute>, engine: Engine) -> Self {
        Self { routes, at: 0, engine }
    }

    /// Tries models until one answers; returns the reply and the model that gave it.
    pub(crate) async fn ask_models(
        &mut self,
        turn: ModelRequest<'_>,
        listener: &dyn TextListener,
    ) -> Result<(ModelReply, &ModelRoute), ProviderError> {
        let mut last = None;
        for at in self.at..self.routes.len() {
            match ask_with_retries((&self.routes[at], &self.engine), turn, listener).await {
                Ok(reply) => {
                    self.at = at;
                    return Ok((reply, &self.routes[at]));
                }
                Err(error) => {
                    let model = &self.routes[at].name;
                    tracing::warn!(%model, %error, "a model failed to answer");
                    if listener.has_text() {
                        return Err(error);
                    }
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| {
            ProviderError::new(crate::ProviderErrorKind::Refused, "no model is configured")
        }))
    }
}

async fn ask_with_retries(
    (route, engine): (&ModelRoute, &Engine),
    turn: ModelRequest<'_>,
    listener: &dyn TextListener,
) -> Result<ModelReply, ProviderError> {
    let turn = ModelRequest { model: &route.model, ..turn };
    let mut wait = route.backoff;
    for _ in 0..route.retries {
        let error = match ask_once((route, engine), &turn, listener).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let pause = error.retry_after.unwrap_or(wait);
        if !error.is_passing() || listener.has_text() || pause > MAX_WAIT {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        wait *= 2;
    }
    ask_once((route, engine), &turn, listener).await
}

/// Calls the model once and counts the call.
async fn ask_once(
    (route, engine): (&ModelRoute, &Engine),
    turn: &ModelRequest<'_>,
    listener: &dyn TextListener,
) -> Result<ModelReply, ProviderError> {
    let answer = route.provider.stream_reply(turn, listener).await;
    let provider = route.name.split('/').next().unwrap_or_default();
    let metrics = engine.agent_metrics();
    match &answer {
        Ok(reply) => {
            metrics.model_called(provider, "ok");
            metrics.tokens_used(provider, reply.tokens.input, reply.tokens.output);
        }
        Err(error) => metrics.model_called(provider, error.trouble.name()),
    }
    answer
}
