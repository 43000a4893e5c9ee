//! Export and import of threads as OCI images.

use reqwest::Method;
use serde_json::json;

use crate::host::Host;

async fn export(host: &Host, path: &str) -> Vec<u8> {
    let response = host.request(Method::GET, path).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/x-tar".parse().unwrap())
    );
    response.bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn an_exported_thread_can_be_imported_on_another_server() {
    let host = Host::start().await;
    host.bash("t", "mkdir d; echo one >d/f; echo gone >g").await;
    host.bash("t", "echo two >d/f; rm g").await;
    let (now, before) = (
        export(&host, "/v1/threads/t/export").await,
        export(&host, "/v1/threads/t/export?at=1").await,
    );
    let mut elsewhere = Host::start().await;
    elsewhere.with_key("free").await;
    for (thread, image, expected) in [("a", &now, "two\nno\n"), ("b", &before, "one\ngone\n")] {
        let path = format!("/v1/threads/{thread}/import");
        let import = || elsewhere.request(Method::POST, &path).body(image.clone());
        let response = import().send().await.unwrap();
        assert_eq!(response.status(), 201, "{}", response.text().await.unwrap());
        assert_eq!(import().send().await.unwrap().status(), 409);
        let answer = elsewhere.bash(thread, "cat d/f; cat g 2>/dev/null || echo no").await;
        assert_eq!(answer["stdout"], expected);
    }
    let (_, history) = elsewhere.get("/v1/threads/a/history").await;
    assert_eq!(history["points"][1]["kind"], "import");
    assert_eq!(
        host.request(Method::GET, "/v1/threads/t/export?at=7").send().await.unwrap().status(),
        404
    );
}

#[tokio::test]
async fn an_invalid_image_is_refused_and_leaves_no_files() {
    let host = Host::start().await;
    host.bash("t", "echo one >f").await;
    let image = export(&host, "/v1/threads/t/export").await;
    let mut damaged = image.clone();
    // Inside a blob.
    let at = damaged.len() / 2;
    damaged[at..at + 64].iter_mut().for_each(|byte| *byte ^= 0x55);
    let half = image[..image.len() / 2].to_vec();
    for body in [Vec::new(), b"no tar at all".to_vec(), vec![0; 4096], half, damaged] {
        let import = host.request(Method::POST, "/v1/threads/x/import").body(body);
        let response = import.send().await.unwrap();
        assert_eq!(response.status(), 400, "{}", response.text().await.unwrap());
    }
    assert_eq!(host.get("/v1/threads/x").await.0, 404);
    assert_eq!(std::fs::read_dir(host.directory().join("scratch")).unwrap().count(), 0);
    let (_, page) = host.get("/v1/threads").await;
    assert_eq!(page["threads"].as_array().unwrap().len(), 1, "{}", json!(page));
}
