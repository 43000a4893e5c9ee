//! Web tools of the real binary: for models, and for code in sandboxes. A scripted model and a
//! scripted internet on a loopback address of its own answer.

use std::net::{IpAddr, Ipv4Addr};

use cloche_test_support::web::Web;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    agent::{Agent, runs},
    host::MODEL_KEY,
    support::{binary, ended},
};

/// Where the scripted internet is. Only this address is allowed to pages.
const INTERNET: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A server that offers all web tools, with the internet that answers them.
pub(crate) struct Tools {
    pub(crate) agent: Agent,
    pub(crate) web: Web,
}

impl Tools {
    /// Starts with closed gates.
    pub(crate) async fn start_closed() -> Option<Self> {
        let web = Web::start(INTERNET).await;
        let address = web.address;
        let settings = format!(
            "[tools]\ncalls_per_execution = 5\ncall_seconds = 6\n\
             [tools.search]\nkind = \"searxng\"\nurl = \"http://{address}\"\nprice = 0.005\n\
             [tools.people_search]\nkind = \"http\"\nurl = \"http://{address}/people?who={{query}}\"\n\
             results = \"/data\"\ntitle = \"/name\"\nlink = \"/link/href\"\nsnippet = \"/about\"\n\
             header = \"x-people-key\"\nsecret_env = \"{}\"\nprice = 0.01\n\
             [tools.fetch]\nprice = 0.0005\nallow = [\"{INTERNET}/32\"]\nports = []\n\
             timeout_seconds = 3\nmax_bytes = \"1M\"\nper_host_per_minute = 1000\n",
            MODEL_KEY.0
        );
        Some(Self { agent: Agent::start_with(&settings).await?, web })
    }

    /// Starts with every tool allowed to the team.
    pub(crate) async fn start() -> Option<Self> {
        let tools = Self::start_closed().await?;
        tools.policy("allow").await;
        Some(tools)
    }

    /// Sets the policy of every tool.
    async fn policy(&self, policy: &str) {
        let gates = json!({"agent_sandbox": true, "execute_code": "allow", "web_search": policy,
            "fetch_url": policy, "people_search": policy});
        self.agent.gates(gates).await;
    }

    /// Lets code in the sandbox call these tools.
    async fn in_sandbox(&self, settings: Value) {
        let host = &self.agent.host;
        let sandboxes = host.admin_request(Method::GET, "sandboxes").send().await.unwrap();
        let sandboxes: Value = sandboxes.json().await.unwrap();
        let id = sandboxes["sandboxes"][0]["id"].as_str().unwrap();
        host.admin_json(Method::PATCH, &format!("sandboxes/{id}"), settings).await;
    }

    /// Runs code, which must succeed; returns its output.
    async fn output(&self, language: &str, code: &str) -> String {
        let (status, body) =
            self.agent.host.run(json!({"code": code, "language": language, "timeout": 30})).await;
        assert_eq!((status, &body["exit_code"]), (200, &json!(0)), "{body}");
        body["stdout"].as_str().unwrap().to_owned()
    }

    /// What `fetch` says about a URL from inside.
    async fn fetch(&self, url: &str) -> Value {
        let code = format!(
            "import cloche_tools, json\ntry:\n    print(json.dumps(cloche_tools.fetch({url:?})))\n\
             except cloche_tools.ToolError as error:\n    \
             print(json.dumps([error.code, error.message]))\n"
        );
        serde_json::from_str(&self.output("python", &code).await).unwrap()
    }
}

/// A turn in which the model calls a web tool.
fn calls(name: &str, arguments: Value) -> Value {
    json!({"calls": [{"name": name, "arguments": arguments}]})
}

fn names(tools: &[&str]) -> Value {
    tools.iter().map(|name| json!({"type": name})).collect()
}

const ALL: [&str; 3] = ["web_search", "fetch_url", "people_search"];

#[tokio::test]
async fn web_tools_are_denied_until_the_team_allows_them() {
    let Some(tools) = Tools::start_closed().await else { return };
    for name in ALL {
        let response = tools.agent.post(json!({"tools": names(&[name])}), json!([])).await;
        assert_eq!(response.status(), 403);
        let body: Value = response.json().await.unwrap();
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(&format!("{name}=allow")), "{message}");
    }
    tools.in_sandbox(json!({"tools": ALL})).await;
    let code = "import cloche_tools\ntry:\n    cloche_tools.search('x')\n\
                except cloche_tools.ToolError as error:\n    print(error.code, error.message)\n";
    let said = tools.output("python", code).await;
    assert!(said.starts_with("not_allowed the policy of the team"), "{said}");
    assert_eq!(tools.web.requests(), Vec::<String>::new(), "a provider was asked");
}

#[tokio::test]
async fn a_server_without_providers_says_who_can_add_one() {
    let Some(agent) = Agent::start().await else { return };
    let response = agent.post(json!({"tools": names(&["web_search"])}), json!([])).await;
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert!(body["message"].as_str().unwrap().contains("[tools.search]"), "{body}");
}

#[tokio::test]
async fn a_model_searches_and_reads_and_each_call_is_billed() {
    let Some(tools) = Tools::start().await else { return };
    let url = tools.web.url("/page");
    let script = json!([
        calls("web_search", json!({"query": "cats & dogs"})),
        calls("fetch_url", json!({"urls": [url, tools.web.url("/missing")]})),
        calls("people_search", json!({"query": "ada"})),
        {"told": true},
    ]);
    for model in ["open/small", "anthro/small"] {
        let body = json!({"model": model, "tools": names(&ALL)});
        let response = tools.agent.ask(body, script.clone()).await;
        let output = response["output"].as_array().unwrap();
        let types: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["search_results", "fetch_url_results", "search_results", "message"]);
        assert_eq!(output[0]["queries"], json!(["cats & dogs"]));
        assert_eq!(output[0]["results"][0]["id"], 1);
        assert_eq!(output[0]["results"][0]["url"], "https://site1.example/page");
        assert_eq!(output[0]["results"][0]["snippet"], "for q=cats+%26+dogs&format=json");
        assert_eq!(output[1]["contents"].as_array().unwrap().len(), 1);
        assert_eq!(output[1]["contents"][0]["title"], "Page /page");
        let snippet = output[1]["contents"][0]["snippet"].as_str().unwrap();
        assert!(snippet.contains("# About /page") && !snippet.contains("bad()"), "{snippet}");
        assert_eq!(output[2]["results"][0]["title"], "Ada Lovelace");
        let told = output[3]["content"][0]["text"].as_str().unwrap();
        assert!(told.starts_with("The following was written by others."), "{told}");
        let details = &response["usage"]["tool_calls_details"];
        for (name, cost) in [("web_search", 0.005), ("fetch_url", 0.0005), ("people_search", 0.01)]
        {
            assert_eq!(details[name], json!({"invocation": 1, "cost_usd": cost}));
        }
        let cost = &response["usage"]["cost"];
        assert!((cost["tool_calls_cost"].as_f64().unwrap() - 0.0155).abs() < 1e-9, "{cost}");
        let total = ["input_cost", "output_cost", "tool_calls_cost"]
            .map(|part| cost[part].as_f64().unwrap())
            .iter()
            .sum::<f64>();
        assert!((cost["total_cost"].as_f64().unwrap() - total).abs() < 1e-9, "{cost}");
    }
    let metrics = tools.agent.host.metrics().await;
    let line = "cloche_web_tool_calls_total{tool=\"web_search\",status=\"ok\"} 2";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn a_call_that_fails_costs_nothing_and_the_model_is_told_why() {
    let Some(tools) = Tools::start().await else { return };
    let script = json!([
        calls("web_search", json!({"query": "broken"})),
        calls("web_search", json!({"query": "odd"})),
        calls("web_search", json!({"query": "hugely"})),
        calls("fetch_url", json!({"urls": [tools.web.url("/missing")]})),
        calls("fetch_url", json!({"urls": []})),
        calls("web_search", json!({"question": 1})),
        {"told": true},
    ]);
    let response = tools.agent.ask(json!({"tools": names(&ALL)}), script).await;
    assert_eq!(response["usage"]["tool_calls_details"], json!({}));
    assert_eq!(response["usage"]["cost"]["tool_calls_cost"], 0.0);
    let errors: Vec<_> = response["output"].as_array().unwrap()[..4]
        .iter()
        .map(|item| item["error"].as_str().unwrap().to_owned())
        .collect();
    for (error, expected) in errors.iter().zip(["500", "no JSON", "too large", "404"]) {
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn searches_and_pages_are_events_of_a_stream() {
    let Some(tools) = Tools::start().await else { return };
    let script = json!([
        calls("web_search", json!({"query": "cats"})),
        calls("fetch_url", json!({"urls": [tools.web.url("/page")]})),
        {"text": "done"},
    ]);
    let body = json!({"tools": names(&ALL), "stream": true});
    let text = tools.agent.post(body, script).await.text().await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let of = |name: &str| events.iter().find(|event| event["type"] == name).cloned();
    let of = |name: &str| of(&format!("response.reasoning.{name}")).unwrap();
    assert_eq!(of("search_queries")["queries"], json!(["cats"]));
    assert_eq!(of("search_results")["results"][2]["title"], "Result 3");
    assert_eq!(of("fetch_url_queries")["urls"], json!([tools.web.url("/page")]));
    assert_eq!(of("fetch_url_results")["contents"][0]["title"], "Page /page");
    let started = of("started")["sequence_number"].as_u64();
    assert!(started < of("stopped")["sequence_number"].as_u64());
}

#[tokio::test]
async fn python_bash_and_node_call_tools_without_a_network() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ALL})).await;
    let url = tools.web.url("/page");
    let python = format!(
        "import cloche_tools\nprint(cloche_tools.search('a \"b\"', count=2)[1]['title'])\n\
         print(cloche_tools.fetch({url:?})['title'])\n\
         print(cloche_tools.people_search('ada')[0]['title'])\n\
         import subprocess\n\
         print(subprocess.check_output(['python3', '-c', \
         'import cloche_tools; print(len(cloche_tools.search(\"x\")))']).decode(), end='')\n"
    );
    let expected = "Result 2\nPage /page\nAda Lovelace\n3\n";
    // The first run may start cold, the next ones are forked or parked.
    for _ in 0..3 {
        assert_eq!(tools.output("python", &python).await, expected);
    }
    let bash = format!("cloche-tool search 'a \"b\\' c\ncloche-tool fetch {url}\n");
    let said = tools.output("bash", &bash).await;
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sent = "for q=a+%22b%5C+c&format=json";
    assert_eq!(lines[0]["results"][0]["snippet"], sent);
    assert_eq!(lines[1]["pages"][0]["title"], "Page /page");
    let node = "const answer = require('child_process').execFileSync('cloche-tool', \
                ['people_search', 'ada']); console.log(JSON.parse(answer).results[0].title)";
    assert_eq!(tools.output("node", node).await, "Ada Lovelace\n");
    // The cell still has no network: only the socket of the tools leads out of it.
    let address = tools.web.address;
    let direct = format!(
        "import socket\ntry:\n    socket.create_connection(('{}', {}), 5)\n    print('connected')\n\
         except OSError:\n    print('refused')\n",
        address.ip(),
        address.port()
    );
    assert_eq!(tools.output("python", &direct).await, "refused\n");
}

#[tokio::test]
async fn strict_sandboxes_and_threads_have_the_tools_too() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ["web_search"], "profile": "strict"})).await;
    let code = "import cloche_tools\nprint(cloche_tools.search('x')[0]['title'])\n";
    assert_eq!(tools.output("python", code).await, "Result 1\n");
    tools.in_sandbox(json!({"profile": "standard"})).await;
    let code = "import cloche_tools\nopen('kept', 'a').write('x')\n\
                print(cloche_tools.search('x')[0]['title'], open('kept').read())\n";
    for expected in ["Result 1 x\n", "Result 1 xx\n"] {
        let body = json!({"code": code, "thread_id": "t"});
        let (_, body) = tools.agent.host.run(body).await;
        assert_eq!(body["stdout"], expected, "{body}");
    }
}

#[tokio::test]
async fn an_execution_without_tools_has_no_socket_and_the_client_says_so() {
    let Some(tools) = Tools::start().await else { return };
    let python = "import cloche_tools, os\nprint(os.listdir('/run/cloche/socket'))\ntry:\n    \
                  cloche_tools.search('x')\nexcept cloche_tools.ToolError as error:\n    \
                  print(error.code, error)\n";
    let said = tools.output("python", python).await;
    assert!(said.starts_with("[]\nnot_allowed no web tool is allowed in this"), "{said}");
    let bash = "cloche-tool search x; echo $?; cloche-tool; echo $?";
    let (_, body) = tools.agent.host.run(json!({"code": bash, "language": "bash"})).await;
    assert_eq!(body["stdout"], "1\n2\n", "{body}");
    assert!(body["stderr"].as_str().unwrap().contains("no web tool is allowed"), "{body}");
    // A sandbox with one tool has that one only.
    tools.in_sandbox(json!({"tools": ["fetch_url"]})).await;
    let said =
        tools.output("python", &python.replace("os.listdir('/run/cloche/socket')", "1")).await;
    assert!(said.starts_with("1\nnot_allowed this execution may not call web_search"), "{said}");
}

#[tokio::test]
async fn code_of_a_response_calls_the_tools_of_the_response_and_they_are_on_its_bill() {
    let Some(tools) = Tools::start().await else { return };
    let code = "import cloche_tools\nprint(len(cloche_tools.search('a') + cloche_tools.search('b')))\n\
                try:\n    cloche_tools.people_search('c')\n\
                except cloche_tools.ToolError as error:\n    print(error.code)\n";
    let body = json!({"tools": names(&["sandbox", "web_search"])});
    let script = json!([runs(code), {"text": "done"}]);
    let response = tools.agent.ask(body, script.clone()).await;
    assert_eq!(response["output"][0]["results"][0]["stdout"], "6\nnot_allowed\n", "{response}");
    let details = &response["usage"]["tool_calls_details"];
    assert_eq!(details["web_search"], json!({"invocation": 2, "cost_usd": 0.01}));
    assert_eq!(details["sandbox"]["invocation"], 1);
    assert!(details["people_search"].is_null());
    let cost = response["usage"]["cost"]["tool_calls_cost"].as_f64().unwrap();
    assert!((cost - 0.04).abs() < 1e-9, "a session and two searches: {cost}");
    let response = tools.agent.ask(json!({"tools": names(&["sandbox"])}), script).await;
    let run = &response["output"][0]["results"][0];
    assert!(run["stderr"].as_str().unwrap().contains("no web tool is allowed"), "{run}");
}

#[tokio::test]
async fn calls_from_inside_are_bounded() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ALL})).await;
    let many = "import cloche_tools\nfor _ in range(6):\n    try:\n        \
                cloche_tools.search('x')\n        print('ok')\n    \
                except cloche_tools.ToolError as error:\n        print(error.code)\n";
    assert_eq!(tools.output("python", many).await, format!("{}limit_reached\n", "ok\n".repeat(5)));
    let large = "import cloche_tools\ntry:\n    cloche_tools.search('x' * 10_000_000)\n\
                 except cloche_tools.ToolError as error:\n    print(error.code)\n";
    let said = tools.output("python", large).await;
    assert!(["invalid_request\n", "unavailable\n"].contains(&&said[..]), "{said}");
    let raw = "import socket\ndef ask(data):\n    c = socket.socket(socket.AF_UNIX)\n    \
               c.connect('/run/cloche/socket/tools')\n    c.sendall(data)\n    \
               return c.recv(99)[:26]\nfor data in [b'\\n', b'{}\\n', b'[' * 9000 + b'\\n', \
               b'{\"tool\":\"web_search\",\"query\":\"a\",\"team\":\"other\"}\\n']:\n    \
               print(ask(data))\n";
    let said = tools.output("python", raw).await;
    assert_eq!(said, "b'{\"error\":\"invalid_request\"'\n".repeat(4));
    // Connections that send nothing hold their places, and the server goes on.
    let idle = "import socket\nall = []\nfor _ in range(20):\n    c = socket.socket(socket.AF_UNIX)\n    \
                c.settimeout(1)\n    try:\n        c.connect('/run/cloche/socket/tools')\n        \
                all.append(c)\n    except OSError:\n        break\nprint(len(all) >= 4)\n";
    assert_eq!(tools.output("python", idle).await, "True\n");
    assert_eq!(
        tools.output("python", "import cloche_tools\nprint(len(cloche_tools.search('x')))").await,
        "3\n"
    );
    let slow = "import cloche_tools\ntry:\n    cloche_tools.search('slowly')\n\
                except cloche_tools.ToolError as error:\n    print(error.code)\n";
    assert_eq!(tools.output("python", slow).await, "timeout\n");
}

#[tokio::test]
async fn the_record_of_an_execution_has_the_tools_that_its_code_called() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ALL})).await;
    let code = "import cloche_tools\ncloche_tools.search('a')\ncloche_tools.search('b')\n\
                cloche_tools.people_search('c')\n";
    let response = tools.agent.host.execute(&json!({"code": code})).send().await.unwrap();
    let record = tools.agent.host.record(&crate::host::trace_id(&response)).await;
    let expected = json!({"web_search": {"invocation": 2, "cost_usd": 0.01},
        "people_search": {"invocation": 1, "cost_usd": 0.01}});
    assert_eq!(record["tool_calls_details"], expected, "{record}");
}

#[tokio::test]
async fn usage_has_the_calls_of_models_and_of_code_with_their_price() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ALL})).await;
    tools.output("python", "import cloche_tools\ncloche_tools.search('a')\n").await;
    let script = json!([
        calls("people_search", json!({"query": "ada"})),
        calls("web_search", json!({"query": "broken"})),
        {"text": "done"},
    ]);
    tools.agent.ask(json!({"tools": names(&ALL)}), script).await;
    let host = &tools.agent.host;
    let (_, of_key) = host.get("/v1/usage?by=day").await;
    let of_all = host.admin_json(Method::GET, "usage", Value::Null).await;
    for usage in [&of_key, &of_key["days"][0], &of_all] {
        assert_eq!(usage["tool_calls"], 2, "{usage}");
        let cost = usage["tool_calls_cost"].as_f64().unwrap();
        assert!((cost - 0.015).abs() < 1e-9, "{usage}");
    }
    let mut command = std::process::Command::new(binary());
    command.args(["usage", "--by", "day", "--data-dir"]).arg(host.data());
    let shown = ended(command, b"").printed();
    assert!(shown.contains("TOOL_CALLS_COST") && shown.contains("0.015"), "{shown}");
}

#[tokio::test]
async fn a_brave_service_is_asked_as_brave_has_it() {
    let web = Web::start(INTERNET).await;
    let settings = format!(
        "[tools.search]\nkind = \"brave\"\nurl = \"http://{}\"\nsecret_env = \"{}\"\n",
        web.address, MODEL_KEY.0
    );
    let Some(agent) = Agent::start_with(&settings).await else { return };
    let tools = Tools { agent, web };
    tools.agent.gates(json!({"web_search": "allow"})).await;
    tools.in_sandbox(json!({"tools": ["web_search"]})).await;
    let code = "import cloche_tools\nfor hit in cloche_tools.search('cats & dogs', count=2):\n    \
                print(hit['title'], hit['url'], hit['snippet'], hit.get('date'))\n";
    let expected = "Brave 1 https://site1.example/page for q=cats+%26+dogs&count=2 2026-01-01\n\
                    Brave 2 https://site2.example/page for q=cats+%26+dogs&count=2 2026-01-01\n";
    assert_eq!(tools.output("python", code).await, expected);
    assert_eq!(tools.web.requests(), ["/res/v1/web/search?q=cats+%26+dogs&count=2"]);
}

#[tokio::test]
async fn pages_of_internal_addresses_are_refused_however_they_are_spelled() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ["fetch_url"]})).await;
    let port = tools.web.address.port();
    let internal = Web::start(Ipv4Addr::LOCALHOST.into()).await;
    let here = internal.address.port();
    let mut urls: Vec<String> = [
        "127.0.0.1",
        "localhost",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "127.0.0.1.",
    ]
    .map(|host| format!("http://{host}:{here}/page"))
    .into();
    urls.extend([
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://10.0.0.1/".to_owned(),
        "http://[fd00:ec2::254]/".to_owned(),
        tools.web.url(&format!("/redirect?to=http://127.0.0.1:{here}/page")),
        tools.web.url(&format!("/redirect?to=http://localhost:{here}/page")),
        tools.web.url("/redirect?to=file:///etc/passwd"),
        tools.web.url("/redirect?to=http://169.254.169.254/"),
        "file:///etc/passwd".to_owned(),
        "ftp://127.0.0.2/".to_owned(),
        format!("http://user:secret@127.0.0.2:{port}/page"),
        "http://".to_owned(),
        String::new(),
    ]);
    for url in &urls {
        let said = tools.fetch(url).await;
        assert!(said[0] == "not_readable" || said[0] == "invalid_request", "{url}: {said}");
        assert!(!said.to_string().contains("Text of the page"), "{url}: {said}");
        let is_plain = url.starts_with("http://") && !url.contains('@') && url.len() > 8;
        let reason = said[1].as_str().unwrap();
        let expected = if url.contains("file:") { "only http" } else { "not a public address" };
        assert!(!is_plain || reason.contains(expected), "{url}: {said}");
    }
    assert_eq!(internal.requests(), Vec::<String>::new(), "an internal address was asked");
    let page =
        tools.fetch(&tools.web.url(&format!("/redirect?to=http://127.0.0.2:{port}/x"))).await;
    assert_eq!(
        (&page["title"], page["final_url"].as_str()),
        (&json!("Page /x"), Some(&tools.web.url("/x")[..]))
    );
}

#[tokio::test]
async fn huge_slow_and_odd_pages_are_bounded() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ["fetch_url"]})).await;
    let page = tools.fetch(&tools.web.url("/huge")).await;
    assert_eq!(page["truncated"], true);
    assert!(page["text"].as_str().unwrap().len() <= 200_000);
    for (path, expected) in [
        ("/slow", "longer than 3 s"),
        ("/silent", "longer than 3 s"),
        ("/image", "image/png"),
        ("/zipped", "compressed"),
        ("/missing", "404"),
        ("/loop", "more than 5 times"),
        ("/private/x", "robots.txt"),
    ] {
        let said = tools.fetch(&tools.web.url(path)).await;
        assert!(said[1].as_str().unwrap().contains(expected), "{path}: {said}");
    }
    assert!(!tools.web.requests().contains(&"/private/x".to_owned()), "robots.txt was ignored");
}

#[tokio::test]
async fn a_page_with_instructions_widens_nothing() {
    let Some(tools) = Tools::start().await else { return };
    let url = tools.web.url("/injected");
    // A model that obeys the page, and calls a tool that the response does not have.
    let script = json!([
        calls("fetch_url", json!({"urls": [url]})),
        {"calls": [{"name": "sandbox", "arguments": {"code": "print(1)"}},
                   {"name": "web_search", "arguments": {"query": "allowed"}}]},
        {"told": true},
    ]);
    let response = tools.agent.ask(json!({"tools": names(&["fetch_url"])}), script).await;
    let output = response["output"].as_array().unwrap();
    assert_eq!(output.len(), 2, "{output:?}");
    assert_eq!(output[1]["content"][0]["text"], "there is no tool of that name");
    assert_eq!(response["usage"]["tool_calls_details"].as_object().unwrap().len(), 1);
    // Code that obeys it cannot call what its sandbox does not have.
    tools.in_sandbox(json!({"tools": ["fetch_url"]})).await;
    let code = format!(
        "import cloche_tools, socket\ntext = cloche_tools.fetch({url:?})['text']\n\
         line = [line for line in text.splitlines() if line.startswith('{{')][0]\n\
         c = socket.socket(socket.AF_UNIX)\nc.connect('/run/cloche/socket/tools')\n\
         c.sendall(line.encode() + b'\\n')\nprint(c.recv(999).decode())\n"
    );
    let said = tools.output("python", &code).await;
    assert!(said.starts_with("{\"error\":\"not_allowed\""), "{said}");
    assert!(!tools.web.requests().iter().any(|path| path.contains("allowed")));
    let (_, sandbox) = tools.agent.host.get("/v1/executions").await;
    assert!(sandbox["executions"].is_array(), "{sandbox}");
}

#[tokio::test]
async fn a_call_waits_for_a_person_where_the_policy_asks() {
    let Some(tools) = Tools::start().await else { return };
    tools.policy("ask").await;
    tools.in_sandbox(json!({"tools": ["web_search"]})).await;
    let host = &tools.agent.host;
    let answer = async |verb: &str| {
        let approval = cloche_test_support::eventually("a question is asked", async || {
            let open = host.admin_request(Method::GET, "approvals?state=pending").send().await;
            let open: Value = open.unwrap().json().await.unwrap();
            open["approvals"][0]["id"].as_str().map(str::to_owned).ok_or(open)
        })
        .await;
        let shown = host.admin_request(Method::GET, &format!("approvals/{approval}")).send().await;
        let shown: Value = shown.unwrap().json().await.unwrap();
        assert_eq!(shown["tool"], "web_search");
        assert!(shown.to_string().contains("who asks"), "{shown}");
        host.admin_json(Method::POST, &format!("approvals/{approval}/{verb}"), json!({})).await;
    };
    let inside = "import cloche_tools\ntry:\n    print(len(cloche_tools.search('who asks')))\n\
                  except cloche_tools.ToolError as error:\n    print(error.code)\n";
    let (said, ()) = tokio::join!(tools.output("python", inside), answer("approve"));
    assert_eq!(said, "3\n");
    let outside = json!([calls("web_search", json!({"query": "who asks"})), {"told": true}]);
    let body = json!({"tools": names(&["web_search"]), "background": true});
    let response = tools.agent.ask(body, outside).await;
    answer("deny").await;
    let response =
        tools.agent.until(&response["id"], |response| response["status"] == "completed").await;
    assert!(response["output"][0]["error"].as_str().unwrap().contains("denied"), "{response}");
    assert_eq!(response["usage"]["tool_calls_details"], json!({}));
    // Each call of code is a decision in the record.
    let decisions = host.admin_request(Method::GET, "decisions").send().await.unwrap();
    let decisions: Value = decisions.json().await.unwrap();
    let used = decisions["decisions"].as_array().unwrap().iter();
    let used = used.filter(|row| row["tool"] == "web_search" && row["kind"] == "used").count();
    assert_eq!(used, 1, "{decisions}");
}

#[tokio::test]
async fn the_secret_of_a_provider_is_nowhere_to_be_read() {
    let Some(tools) = Tools::start().await else { return };
    tools.in_sandbox(json!({"tools": ALL})).await;
    let code = "import cloche_tools, os\nprint(cloche_tools.people_search('ada'), dict(os.environ))\n\
                print(open('/proc/self/environ').read())\n";
    let said = tools.output("python", code).await;
    assert!(said.contains("Ada Lovelace") && !said.contains(MODEL_KEY.1), "{said}");
    let log = tools.agent.host.said("log");
    assert!(!log.contains(MODEL_KEY.1), "{log}");
}
