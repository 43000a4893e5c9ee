//! The public Python client of the Agent API, unchanged, against the real binary.

use serde_json::json;

use crate::{
    agent::Agent,
    python_client::{tool, top},
};

#[tokio::test]
async fn the_public_agent_client_works_unchanged() {
    let Some(python) = tool("python") else { return };
    let settings = "[agent.requests_per_minute]\nfree = 2\n";
    let Some(agent) = Agent::start_with(settings).await else { return };
    agent.gates(json!({"agent_sandbox": true, "execute_code": "allow"})).await;
    for model in ["open/small", "anthro/small"] {
        let output = tokio::process::Command::new(&python)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/client/agent"])
            .current_dir(top())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_PROXY", "127.0.0.1")
            .env("CLOCHE_URL", &agent.host.url)
            .env("CLOCHE_API_KEY", &agent.host.key)
            .env("CLOCHE_ADMIN_TOKEN", &agent.host.admin)
            .env("CLOCHE_MODEL", model)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\n{}", agent.host.said("log"));
        println!("{said}");
    }
}
