//! The public Python client of the Agent API, unchanged, against the real binary.

use std::path::Path;

use serde_json::json;

use crate::{
    agent::Agent,
    python_client::{tool, top},
    web_tools::Tools,
};

#[tokio::test]
async fn the_public_agent_client_works_unchanged() {
    let Some(python) = tool("python") else { return };
    let settings = "[agent.requests_per_minute]\nfree = 2\n";
    let Some(agent) = Agent::start_with(settings).await else { return };
    agent.gates(json!({"agent_sandbox": true, "execute_code": "allow"})).await;
    run_client_tests(&python, &agent, "tests/client/agent", "").await;
}

#[tokio::test]
async fn the_public_agent_client_uses_web_tools() {
    let Some(python) = tool("python") else { return };
    let Some(tools) = Tools::start().await else { return };
    run_client_tests(&python, &tools.agent, "tests/client/tools", &tools.web.url("")).await;
}

/// Runs Python tests against a server, with models of both protocols.
async fn run_client_tests(python: &Path, agent: &Agent, tests: &str, web: &str) {
    for model in ["open/small", "anthro/small"] {
        let output = tokio::process::Command::new(python)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", tests])
            .current_dir(top())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_PROXY", "127.0.0.1")
            .env("CLOCHE_URL", &agent.host.url)
            .env("CLOCHE_API_KEY", &agent.host.key)
            .env("CLOCHE_ADMIN_TOKEN", &agent.host.admin)
            .env("CLOCHE_MODEL", model)
            .env("CLOCHE_WEB", web)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\n{}", agent.host.said("log"));
    }
}
