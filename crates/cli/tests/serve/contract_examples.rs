//! Runs in: test.
//!
//! What the examples of the contracts do, and what `docs/CLIENTS.md` shows, against the real
//! binary: curl, the public Python and TypeScript clients, and MCP clients. `tests/examples` has
//! the examples, one test each, and the list of those that need a missing capability.

use std::{net::Ipv4Addr, path::Path};

use cloche_test_support::internet::{Internet, NAME_SERVER};
use cloche_test_support::web::Web;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::{Host, MODEL_KEY},
    models::Models,
    moto::Moto,
    python_client::{tool, tool_of, top},
    storage_connections::put_object,
    support::{binary, ended, skip},
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

/// The question to the agent loop in `examples/`.
const PRIMES_PROMPT: &str = "How many primes are below 10000?";

/// The replies to it: two programs, of which the second reads a file of the first, and then what
/// the second printed.
fn primes_replies() -> Vec<Value> {
    let write = "primes = [n for n in range(2, 10000) if all(n % d for d in range(2, int(n**.5) + \
                 1))]\nopen('primes', 'w').write('\\n'.join(map(str, primes)))\n";
    let read = "print(len(open('primes').read().split()), end='')";
    let call = |code| json!({"calls": [{"name": "execute_code", "arguments": {"code": code}}]});
    vec![call(write), call(read), json!({"told": true})]
}

/// A server for the examples, and the files that they need.
struct ExampleServer {
    host: Host,
    files: TempDir,
    /// The bucket behind the storage of the examples.
    bucket: Moto,
    models: Models,
    _internet: Internet,
}

impl ExampleServer {
    /// A server with a model provider `openai` and open gates, which delivers webhooks to this
    /// machine.
    async fn start() -> Option<Self> {
        let files = TempDir::new().unwrap();
        // First: what this thread starts from now on is on that internet.
        let Some(internet) = Internet::start(files.path()) else {
            skip("this user cannot make network namespaces");
            return None;
        };
        let bucket = Moto::start()?;
        put_object(&bucket, "reports/q1/sales.csv", "region,amount\nnorth,3\n").await;
        put_object(&bucket, "customers/customers.csv", "id,age\n1,30\n2,50\n").await;
        let scripts = [
            (PROMPT.to_owned(), replies()),
            (SEARCH_PROMPT.to_owned(), search_replies()),
            (PRIMES_PROMPT.to_owned(), primes_replies()),
        ];
        let models = Models::start_with(scripts).await;
        let web = Web::start(Ipv4Addr::LOCALHOST.into()).await;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(files.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(files.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let config = format!(
            "[agent.providers.openai]\nprotocol = \"openai\"\nbase_url = \"{}\"\n\
             api_key_env = \"{}\"\n[network]\nresolvers = [\"{NAME_SERVER}\"]\n\
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
        Some(Self { host, files, bucket, models, _internet: internet })
    }

    /// Moves the sandbox of the first start to the default image. Skips the test without one.
    fn use_default_image(&self) -> bool {
        let layout = top().join("target/images/default");
        if !layout.join("index.json").exists() {
            return skip("there is no image target/images/default: run scripts/setup-tests");
        }
        let layout = layout.display().to_string();
        for words in [
            &["image", "import", &layout, "--name", "cloche/default"][..],
            &["sandbox", "set", "default/default", "--image", "cloche/default"],
        ] {
            let mut command = std::process::Command::new(binary());
            command.args(words).arg("--data-dir").arg(self.host.data());
            let done = ended(command, b"");
            assert_eq!(done.code, 0, "{words:?} {done:?} {}", self.host.said("log"));
        }
        true
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
            .env("CLOCHE_MODEL_URL", format!("http://{}", self.models.address))
            .env("CLOCHE_MODEL_KEY", MODEL_KEY.1)
            .env("CLOCHE_S3_ENDPOINT", format!("http://{}", self.bucket.address))
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
    if !server.use_default_image() {
        return;
    }
    let ignored = ["guide", "programs"].map(|it| format!("--ignore=tests/examples/{it}"));
    let others = ["tests/examples", &ignored[0], &ignored[1]];
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

#[tokio::test]
async fn the_programs_in_examples_work_as_they_stand() {
    let Some(python) = tool("python") else { return };
    let Some(server) = ExampleServer::start().await else { return };
    println!("{}", server.run_examples(&python, &["tests/examples/programs"]).await);
}
