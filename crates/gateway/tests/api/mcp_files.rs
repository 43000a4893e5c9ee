//! Files over MCP: files that an execution wrote, files of a thread, and isolation between teams.

use serde_json::{Value, json};

use crate::{
    host::Host,
    mcp_client::{call, python},
};

/// The smallest file with a PNG signature.
const PNG: &str = "b'\\x89PNG\\r\\n\\x1a\\n' + bytes(8)";

async fn tool(host: &Host, name: &str, arguments: Value) -> Value {
    host.ask_mcp(&call(1, name, arguments)).await["result"].clone()
}

async fn read(host: &Host, uri: &Value) -> Value {
    let params = json!({"uri": uri});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params});
    host.ask_mcp(&message).await
}

fn blocks<'a>(result: &'a Value, kind: &str) -> Vec<&'a Value> {
    let content = result["content"].as_array().unwrap();
    content.iter().filter(|block| block["type"] == kind).collect()
}

#[tokio::test]
async fn written_images_are_returned_and_all_files_can_be_read() {
    let mut host = Host::for_agents("allow").await;
    let code = format!(
        "open('plot.png', 'wb').write({PNG})\nopen('plot.svg', 'w').write('<svg/>')\n\
         open('fake.png', 'w').write('<html>')\nopen('out.csv', 'w').write('a,b')"
    );
    let result = host.execute_code(python(&code)).await;
    let images = blocks(&result, "image");
    let kinds: Vec<_> = images.iter().map(|image| image["mimeType"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["image/png", "image/svg+xml"], "{result}");
    assert_eq!(images[1]["data"], "PHN2Zy8+");
    let links = blocks(&result, "resource_link");
    let names: Vec<_> = links.iter().map(|link| link["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fake.png", "out.csv", "plot.png", "plot.svg"]);
    let found = read(&host, &links[1]["uri"]).await;
    let contents = &found["result"]["contents"][0];
    assert_eq!((&contents["text"], &contents["mimeType"]), (&json!("a,b"), &json!("text/csv")));
    let found = read(&host, &links[2]["uri"]).await;
    assert!(found["result"]["contents"][0]["blob"].as_str().unwrap().starts_with("iVBORw0KGgo"));
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/list"});
    let list = host.ask_mcp(&list).await;
    assert_eq!(list["result"]["resources"].as_array().unwrap().len(), 4, "{list}");
    // For another team the file does not exist.
    let uri = links[1]["uri"].clone();
    host.with_key("pro").await;
    host.set_gates("team-pro-0", json!({"agent_sandbox": true})).await;
    let theirs = read(&host, &uri).await;
    let missing = read(&host, &json!("cloche://executions/trc_00000000000000000000/files/a")).await;
    assert_eq!(theirs["error"]["code"], missing["error"]["code"]);
    assert!(theirs["result"].is_null(), "{theirs}");
}

#[tokio::test]
async fn files_of_a_thread_are_written_used_listed_and_read() {
    let mut host = Host::for_agents("allow").await;
    let file = json!({"thread_id": "t1", "path": "in/data.txt", "content": "6 7"});
    let result = tool(&host, "write_file", file).await;
    assert_eq!(result["isError"], false, "{result}");
    let mut arguments = python(
        "a, b = open('in/data.txt').read().split()\nopen('out.txt', 'w').write(str(int(a) * int(b)))",
    );
    arguments["thread_id"] = json!("t1");
    let result = host.execute_code(arguments).await;
    assert_eq!(result["structuredContent"]["status"], "completed", "{result}");
    let listed = tool(&host, "list_files", json!({"thread_id": "t1"})).await;
    let files = listed["structuredContent"]["files"].as_array().unwrap();
    let paths: Vec<_> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["in/data.txt", "out.txt"]);
    let below = tool(&host, "list_files", json!({"thread_id": "t1", "path": "in"})).await;
    assert_eq!(below["structuredContent"]["files"].as_array().unwrap().len(), 1);
    let read = tool(&host, "read_file", json!({"thread_id": "t1", "path": "out.txt"})).await;
    assert_eq!(read["content"][0]["text"], "42");
    let binary = json!({"thread_id": "t1", "path": "x.bin", "content_base64": "AP8="});
    tool(&host, "write_file", binary).await;
    let read = tool(&host, "read_file", json!({"thread_id": "t1", "path": "x.bin"})).await;
    assert_eq!(read["content"][0]["resource"]["blob"], "AP8=");
    for (name, arguments, expected) in [
        ("read_file", json!({"thread_id": "t1", "path": "../etc/passwd"}), "validation_error"),
        ("read_file", json!({"thread_id": "t1", "path": "none"}), "not_found"),
        ("read_file", json!({"thread_id": "none", "path": "a"}), "not_found"),
        ("read_file", json!({"thread_id": "t1"}), "validation_error: missing field `path`"),
        ("write_file", json!({"thread_id": "t1", "path": "a"}), "validation_error"),
        ("write_file", json!({"thread_id": "t1", "path": "in", "content": ""}), "validation_error"),
        ("list_files", json!({"thread_id": "../t"}), "validation_error"),
    ] {
        let result = tool(&host, name, arguments.clone()).await;
        assert_eq!(result["isError"], true, "{arguments}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with(expected), "{arguments}: {text}");
    }
    // For another team the thread does not exist.
    host.with_key("pro").await;
    host.set_gates("team-pro-0", json!({"agent_sandbox": true})).await;
    let theirs = tool(&host, "read_file", json!({"thread_id": "t1", "path": "out.txt"})).await;
    let missing = tool(&host, "read_file", json!({"thread_id": "none", "path": "out.txt"})).await;
    assert_eq!(theirs, missing);
}

#[tokio::test]
async fn with_the_gate_closed_there_are_no_file_tools() {
    let host = Host::start().await;
    assert_eq!(host.mcp_tools().await, Vec::<Value>::new());
    let result = tool(&host, "list_files", json!({"thread_id": "t1"})).await;
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("agent_sandbox=on"));
}
