//! Layers in a bucket, as an operator configures it. Threads survive a kill, and the loss of
//! everything that the host stored of their homes.

use std::fs;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    host::{Host, MODEL_KEY},
    moto::Moto,
    threads::{bash, put},
};

#[tokio::test]
async fn threads_in_a_bucket_survive_the_loss_of_the_host_s_disk() {
    let Some(moto) = Moto::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cloche.toml");
    // The server accepts any key, so existing variables are used.
    let keys = format!("access_key_env = {0:?}\nsecret_key_env = {0:?}\n", MODEL_KEY.0);
    let text = format!("[layers]\nbucket = \"layers\"\nprefix = \"some/where\"\n{keys}");
    fs::write(&file, text).unwrap();
    let endpoint = format!("http://{}", moto.address);
    let arguments = ["--config", file.to_str().unwrap(), "--layers-endpoint", &endpoint];
    let Some(mut host) = Host::start_with(&arguments).await else { return };
    bash(&host, "t", "mkdir d; echo one >d/f; ln d/f hard").await;
    bash(&host, "t", "echo two >>hard").await;
    assert_eq!(put(&host, "t", "up", "loaded").await, Some(200));
    assert!(!host.data().join("layers/blobs").exists(), "nothing is kept on the disk");
    host.signal(Signal::KILL);
    host.ended().await;
    for name in ["cache", "new"] {
        fs::remove_dir_all(host.data().join("layers").join(name)).unwrap();
    }
    host = host.again().await;
    assert_eq!(bash(&host, "t", "cat d/f up; rm d/f").await, "one\ntwo\nloaded");
    assert_eq!(bash(&host, "t", "ls d | wc -l; cat hard").await, "0\none\ntwo\n");
    let body = json!({"id": "t", "path": "hard"});
    let signed = host.request(Method::POST, "/v1/files/download_url").json(&body);
    let signed: Value = signed.send().await.unwrap().json().await.unwrap();
    let got = reqwest::get(signed["url"].as_str().unwrap()).await.unwrap();
    assert_eq!(got.text().await.unwrap(), "one\ntwo\n");
}
