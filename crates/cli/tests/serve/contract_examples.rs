//! Runs in: test.
//!
//! What the examples of the contracts do, and what `docs/CLIENTS.md` shows, against the real
//! binary: curl, the public Python and TypeScript clients, and MCP clients. `tests/examples` has
//! the examples, one test each, and the list of those that need a missing capability.

use std::{net::Ipv4Addr, path::Path};

use cloche_test_support::web::Web;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::{Host, MODEL_KEY},
    models::Models,
    python_client::{tool, tool_of, top},
    support::{binary, skip},
};

/// The message of the examples to the model. `tests/examples/agent_answer.py` has it as well.
const PROMPT: &str = "Write a CSV of the first ten Fibonacci numbers, each with its square.";

/// The message about web tools in `docs/CLIENTS.md`.
const SEARCH_PROMPT: &str = "Search for the first computer program, and name the best source.";

/// The replies to it: a search, and then the answer.
fn search_replies() -> Vec<Value> {
    let call = json!({"name": "web_search", "arguments": {"query": "first computer program"}});
    vec![json!({"calls": [call]}), json!({"text": "The best source is Result 1."})]
}

/// The replies of the model: a program, and then the answer.
fn replies() -> Vec<Value> {
    let code = "a, b = 0, 1\nfor _ in range(10):\n    print(f'{a},{a * a}')\n    a, b = b, a + b\n";
    let call = json!({"name": "sandbox", "arguments": {"code": code}});
    let answer = "The table has ten rows; the last one is 34,1156.";
    vec![json!({"calls": [call]}), json!({"text": answer})]
}

/// A server for the examples, and the files that they need.
struct ExampleServer {
    host: Host,
    files: TempDir,
    _models: Models,
}

impl ExampleServer {
    /// A server with a model provider `openai` and open gates, which delivers webhooks to this
    /// machine.
    async fn start() -> Option<Self> {
        let scripts =
            [(PROMPT.to_owned(), replies()), (SEARCH_PROMPT.to_owned(), search_replies())];
        let models = Models::start_with(scripts).await;
        let web = Web::start(Ipv4Addr::LOCALHOST.into()).await;
        let files = TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(files.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(files.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let config = format!(
            "[agent.providers.openai]\nprotocol = \"openai\"\nbase_url = \"{}\"\n\
             api_key_env = \"{}\"\n\
             [tools.search]\nkind = \"searxng\"\nurl = \"{}\"\n",
            models.base_url(),
            MODEL_KEY.0,
            web.url("")
        );
        std::fs::write(files.path().join("cloche.toml"), config).unwrap();
        let path = |name: &str| files.path().join(name).display().to_string();
        let host = Host::start_with(&[
            "--config",
            &path("cloche.toml"),
            "--webhook-ca",
            &path("cert.pem"),
            "--webhook-allow",
            "127.0.0.0/8,::1/128",
            "--grace",
            "0",
        ])
        .await?;
        let gates = json!({"agent_sandbox": true, "execute_code": "allow", "web_search": "allow"});
        host.admin_json(Method::PATCH, "defaults", gates).await;
        Some(Self { host, files, _models: models })
    }

    /// Runs tests of `tests/examples`. Returns the report, which names each.
    async fn run_examples(&self, python: &Path, arguments: &[&str]) -> String {
        let output = tokio::process::Command::new(python)
            .args(["-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", "--basetemp"])
            .arg(self.host.directory().join("pytest"))
            .args(arguments)
            .current_dir(top())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_PROXY", "127.0.0.1,localhost")
            .env("CLOCHE_URL", &self.host.url)
            .env("CLOCHE_API_KEY", &self.host.key)
            .env("CLOCHE_ADMIN_TOKEN", &self.host.admin)
            .env("CLOCHE_BIN", binary())
            .env("CLOCHE_WEBHOOK_CERT", self.files.path().join("cert.pem"))
            .env("CLOCHE_WEBHOOK_KEY", self.files.path().join("key.pem"))
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\n{}", self.host.said("log"));
        said.into_owned()
    }
}

/// Whether the packages for TypeScript are installed.
fn has_typescript() -> bool {
    top().join(".conformance/node_modules/.bin/tsc").exists()
        || skip("there is no TypeScript in .conformance: run scripts/setup-tests")
}

#[tokio::test]
async fn the_examples_of_the_contracts_work() {
    let Some(python) = tool("python") else { return };
    if !has_typescript() {
        return;
    }
    let Some(server) = ExampleServer::start().await else { return };
    let others = ["tests/examples", "--ignore=tests/examples/guide"];
    println!("{}", server.run_examples(&python, &others).await);
}

#[tokio::test]
async fn the_guide_to_clients_works_as_it_stands() {
    let Some(python) = tool("python") else { return };
    if tool_of(".venv-crewai", "python").is_none() || !has_typescript() {
        return;
    }
    let Some(server) = ExampleServer::start().await else { return };
    println!("{}", server.run_examples(&python, &["tests/examples/guide"]).await);
}
