//! One conformance suite for every model provider, against a server that implements its protocol.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{sync::Mutex, time::Duration};

use cloche_agent::{
    AnthropicProvider, ChatMessage, ModelProvider, ModelReply, ModelRequest, ModelToolCall,
    OpenAiProvider, ProviderConfig, ProviderError, ProviderErrorKind, ProviderProtocol,
    TextListener, TokenCounts, ToolChoice, ToolDefinition,
};
use cloche_model::Secret;
use cloche_test_support::models::{Models, SECRET};
use serde_json::{Value, json};

/// Records the pieces of text.
#[derive(Default)]
struct RecordingListener(Mutex<Vec<String>>);

impl TextListener for RecordingListener {
    fn on_text(&self, piece: &str) {
        self.0.lock().unwrap().push(piece.to_owned());
    }

    fn has_text(&self) -> bool {
        !self.0.lock().unwrap().is_empty()
    }
}

struct Fixture {
    models: Models,
    provider: Box<dyn ModelProvider>,
    listener: RecordingListener,
}

impl Fixture {
    async fn start(protocol: ProviderProtocol, secret: &str) -> Self {
        let models = Models::start().await;
        let mut config = ProviderConfig::new(protocol, models.base_url().parse().unwrap());
        config.api_key = Some(Secret::new(secret));
        config.timeout = Duration::from_millis(300);
        let provider: Box<dyn ModelProvider> = match protocol {
            ProviderProtocol::OpenAi => Box::new(OpenAiProvider::new(&config).unwrap()),
            ProviderProtocol::Anthropic => Box::new(AnthropicProvider::new(&config).unwrap()),
        };
        Self { models, provider, listener: RecordingListener::default() }
    }

    async fn ask(&self, messages: &[ChatMessage]) -> Result<ModelReply, ProviderError> {
        let tools = [ToolDefinition {
            name: "sandbox".to_owned(),
            description: "Runs code".to_owned(),
            parameters: json!({"type": "object"}),
        }];
        let turn = ModelRequest {
            model: "small",
            instructions: Some("Be brief."),
            messages,
            tools: &tools,
            choice: ToolChoice::Required,
            max_tokens: Some(50),
            temperature: Some(0.5),
            top_p: None,
        };
        self.provider.stream_reply(&turn, &self.listener).await
    }

    async fn run_entry(&self, entry: Value) -> Result<ModelReply, ProviderError> {
        self.ask(&[ChatMessage::User(json!([entry]).to_string())]).await
    }
}

async fn text_arrives_in_pieces_and_as_a_whole(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, SECRET).await;
    let reply = fixture.run_entry(json!({"text": "Grüße, Welt"})).await.unwrap();
    assert_eq!(reply.text, "Grüße, Welt");
    assert_eq!(*fixture.listener.0.lock().unwrap(), ["Grü", "ße,", " We", "lt"]);
    let tokens = TokenCounts { input: 100, output: 20, cache_read: 40, cache_creation: 0 };
    assert_eq!(reply.tokens, tokens);
    assert!(reply.calls.is_empty() && !reply.cut);
}

async fn tool_calls_are_assembled_from_pieces(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, SECRET).await;
    let first = json!({"code": "print('\\u00e4')\n", "language": "python"});
    let calls = json!([
        {"name": "sandbox", "arguments": first}, {"name": "other", "arguments": "{not json"},
    ]);
    let reply = fixture.run_entry(json!({"text": "So:", "calls": calls})).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.calls.len()), ("So:", 2));
    let arguments: Value = serde_json::from_str(&reply.calls[0].arguments).unwrap();
    assert_eq!((reply.calls[0].name.as_str(), arguments), ("sandbox", first));
    assert_eq!(reply.calls[1].arguments, "{not json");
    assert_ne!(reply.calls[0].id, reply.calls[1].id);
}

async fn the_conversation_is_sent_unchanged(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, SECRET).await;
    let call = |id: &str| ModelToolCall {
        id: id.to_owned(),
        name: "sandbox".to_owned(),
        arguments: "{\"code\":\"1\"}".to_owned(),
    };
    let result =
        |id: &str| ChatMessage::Tool { call_id: id.to_owned(), text: format!("result of {id}") };
    let conversation = [
        ChatMessage::System("Mind the gap.".to_owned()),
        ChatMessage::User(json!([{"calls": []}, {"told": true}]).to_string()),
        ChatMessage::Assistant { text: String::new(), calls: vec![call("a"), call("b")] },
        result("a"),
        result("b"),
    ];
    assert_eq!(fixture.ask(&conversation).await.unwrap().text, "result of b");
    let request = fixture.models.requests().pop().unwrap();
    let text = request.to_string();
    for part in ["Be brief.", "Mind the gap.", "result of a", "small", "Runs code", "0.5"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let most = ["max_tokens", "max_completion_tokens"].map(|name| request[name].as_u64());
    assert!(most.contains(&Some(50)), "{text}");
    assert!(!text.contains(SECRET));
}

async fn kinds_of_errors_are_distinguished(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, SECRET).await;
    for (entry, trouble) in [
        (json!({"http": 429, "retry_after": "7"}), ProviderErrorKind::RateLimited),
        (json!({"http": 503}), ProviderErrorKind::Overloaded),
        (json!({"http": 400}), ProviderErrorKind::Refused),
        (json!({"page": true}), ProviderErrorKind::Malformed),
        (json!({"garbage": true}), ProviderErrorKind::Malformed),
        (json!({"error": "busy"}), ProviderErrorKind::Overloaded),
        (json!({"break": true}), ProviderErrorKind::Unreachable),
        (json!({"text": "well", "silent": true}), ProviderErrorKind::TimedOut),
    ] {
        let error = fixture.run_entry(entry.clone()).await.unwrap_err();
        assert_eq!(error.trouble, trouble, "{entry} {error}");
        let after = entry["retry_after"].as_str().map(|_| Duration::from_secs(7));
        assert_eq!(error.retry_after, after);
    }
    let refused = fixture.run_entry(json!({"http": 400})).await.unwrap_err();
    assert_eq!(refused.message, "the model provider refused the request (HTTP 400): not now");
}

/// The timeout applies to silence, not to the duration of the whole reply.
async fn a_slow_reply_is_accepted(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, SECRET).await;
    let begun = std::time::Instant::now();
    let reply = fixture.run_entry(json!({"text": "well, well", "slow": 40})).await.unwrap();
    assert_eq!(reply.text, "well, well");
    assert!(begun.elapsed() > Duration::from_millis(600), "it was not slow");
    let error = fixture.run_entry(json!({"text": "well", "slow": 2000})).await.unwrap_err();
    assert_eq!(error.trouble, ProviderErrorKind::TimedOut);
}

async fn a_reply_at_the_token_limit_is_marked_as_cut(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, SECRET).await;
    assert!(fixture.run_entry(json!({"text": "well", "cut": true})).await.unwrap().cut);
}

async fn the_error_for_a_wrong_key_does_not_contain_the_key(protocol: ProviderProtocol) {
    let fixture = Fixture::start(protocol, "wrong").await;
    let error = fixture.run_entry(json!({"text": "hello"})).await.unwrap_err();
    assert_eq!(error.trouble, ProviderErrorKind::Refused);
    assert!(error.message.contains("credentials (HTTP 401)"), "{error}");
    assert!(!error.message.contains(SECRET) && !error.message.contains("wrong"), "{error}");
}

async fn an_absent_server_is_reported_as_unreachable(protocol: ProviderProtocol) {
    let mut fixture = Fixture::start(protocol, SECRET).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = ProviderConfig::new(protocol, format!("http://{free}/v1").parse().unwrap());
    fixture.provider = match protocol {
        ProviderProtocol::OpenAi => Box::new(OpenAiProvider::new(&config).unwrap()),
        ProviderProtocol::Anthropic => Box::new(AnthropicProvider::new(&config).unwrap()),
    };
    let error = fixture.run_entry(json!({"text": "hello"})).await.unwrap_err();
    assert_eq!(error.trouble, ProviderErrorKind::Unreachable);
}

macro_rules! conformance {
    ($name:ident, $protocol:expr; $($test:ident),* $(,)?) => {
        mod $name {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test($protocol).await;
                }
            )*
        }
    };
}

macro_rules! conformance_of {
    ($name:ident, $protocol:expr) => {
        conformance!($name, $protocol;
            text_arrives_in_pieces_and_as_a_whole,
            tool_calls_are_assembled_from_pieces,
            the_conversation_is_sent_unchanged,
            kinds_of_errors_are_distinguished,
            a_slow_reply_is_accepted,
            a_reply_at_the_token_limit_is_marked_as_cut,
            the_error_for_a_wrong_key_does_not_contain_the_key,
            an_absent_server_is_reported_as_unreachable,
        );
    };
}

conformance_of!(openai, cloche_agent::ProviderProtocol::OpenAi);
conformance_of!(anthropic, cloche_agent::ProviderProtocol::Anthropic);
