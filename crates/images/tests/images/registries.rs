//! Registries that fail, lie or lead elsewhere. Real ones are in the tests of the binary.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cloche_images::{
    ClientSource, ClientTarget, ImageError, ImageLimits, NewImage, PullRequest, RegistryAccess,
    RegistryCredentials,
};
use cloche_model::{Moment, Secret};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::support::{Store, TarBytes, TestImage, paths, sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Addresses that end in 1 are public for these tests.
struct TestClients;

impl ClientSource for TestClients {
    fn make_client(
        &self,
        target: &ClientTarget,
    ) -> Result<reqwest::Client, Box<dyn std::error::Error + Send + Sync>> {
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        Ok(builder.no_proxy().resolve_to_addrs(&target.host, &target.addresses).build()?)
    }

    fn is_public(&self, address: IpAddr) -> bool {
        address.to_string() == "127.0.0.1"
    }
}

/// What the registry does with a request.
#[derive(Clone, Default)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The connection breaks after so many bytes of the body.
    cut: Option<usize>,
}

impl Answer {
    fn ok(body: Vec<u8>) -> Self {
        Self { status: 200, body, ..Self::default() }
    }

    fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// A request: method, path and headers.
type Request = (String, String, BTreeMap<String, String>);

/// A registry that answers as the test says.
struct Registry {
    address: String,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Registry {
    async fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_on("127.0.0.1", answer).await
    }

    async fn start_on(
        host: &str,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        cloche_test_support::install_crypto();
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                tokio::spawn(async move {
                    serve_one(stream, |request| {
                        log.lock().push(request.clone());
                        answer(request)
                    })
                    .await;
                });
            }
        });
        Self { address, seen, task }
    }

    /// A registry with this image at `tool:1`; `change` may replace any answer.
    async fn with_image(
        image: &TestImage,
        change: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        let (blobs, (digest, _)) = image.blobs();
        Self::start(move |request| {
            change(request).unwrap_or_else(|| answer_with(&blobs, &digest, request))
        })
        .await
    }

    fn count(&self, part: &str) -> usize {
        let seen = self.seen.lock();
        seen.iter().filter(|(method, path, _)| format!("{method} {path}").contains(part)).count()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers as a registry should, with ranges.
fn answer_with(blobs: &BTreeMap<String, Vec<u8>>, digest: &str, request: &Request) -> Answer {
    let (_, path, headers) = request;
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = if name == "1" { digest } else { name };
    let Some(blob) = blobs.get(name) else { return Answer::status(404) };
    let start = headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match start {
        Some(start) if start < blob.len() => {
            let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
            let part = Answer { status: 206, body: blob[start..].to_vec(), ..Answer::default() };
            part.with("content-range", range)
        }
        Some(_) => Answer::status(416),
        None => Answer::ok(blob.clone()).with("docker-content-digest", name),
    }
}

async fn serve_one(mut stream: TcpStream, answer: impl FnOnce(&Request) -> Answer) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(head).ok()?;
    let mut lines = text.lines();
    let mut words = lines.next()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let pairs = lines.filter_map(|line| line.split_once(": "));
    let headers = pairs.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let request = (method, path, headers);
    let Answer { status, headers, body, cut } = answer(&request);
    let mut reply = format!("HTTP/1.1 {status} x\r\nconnection: close\r\n");
    reply.push_str(&format!("content-length: {}\r\n", body.len()));
    for (name, value) in headers {
        reply.push_str(&format!("{name}: {value}\r\n"));
    }
    reply.push_str("\r\n");
    stream.write_all(reply.as_bytes()).await.ok()?;
    if request.0 != "HEAD" {
        stream.write_all(&body[..cut.unwrap_or(body.len())]).await.ok()?;
    }
    stream.shutdown().await.ok()
}

fn access() -> RegistryAccess {
    RegistryAccess {
        plain_http: true,
        retry_pause: Duration::from_millis(1),
        stall: Duration::from_secs(5),
        ..RegistryAccess::default()
    }
}

async fn pull(store: &Store, registry: &Registry) -> Result<NewImage, ImageError> {
    pull_with(store, &format!("{}/tool:1", registry.address), access()).await
}

async fn pull_with(
    store: &Store,
    reference: &str,
    access: RegistryAccess,
) -> Result<NewImage, ImageError> {
    let assembler = store.assembler();
    let request = PullRequest { reference: reference.parse().unwrap(), access };
    let clients: Arc<dyn ClientSource> = Arc::new(TestClients);
    let made = assembler.pull_image(clients, request, &store.partial, Moment(1)).await;
    store.settle(&assembler, made).await
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn image() -> TestImage {
    let base = TarBytes::default().file("base", &noise(300_000)).end();
    TestImage::new(&[base, TarBytes::default().file("top", b"1").end()])
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_its_layers_only_once() {
    let image = image();
    let registry = Registry::with_image(&image, |_| None).await;
    let store = Store::new().await;
    let new = pull(&store, &registry).await.unwrap();
    assert_eq!(new.image.digest.to_string(), image.blobs().1.0);
    assert_eq!(new.names[0].to_string(), format!("{}/tool:1", registry.address));
    assert_eq!(paths(&store.tree(&new).await).len(), 2);
    assert_eq!(registry.count("GET /v2/tool/blobs/"), 3);
    // The tag is looked at once, by HEAD; the manifest is fetched by its digest.
    assert_eq!(registry.count("/v2/tool/manifests/1"), 1);
    assert!(store.leftovers().is_empty());
    pull(&store, &registry).await.unwrap();
    assert_eq!(registry.count("GET /v2/tool/blobs/"), 4, "only the configuration again");
    assert_eq!(store.blob_count().await, 2);
}

#[tokio::test]
async fn a_connection_that_breaks_is_continued() {
    let image = image();
    let (blobs, (digest, _)) = image.blobs();
    let large = sha256(&image.layers[0].0);
    let registry = Registry::start(move |request| {
        let mut answer = answer_with(&blobs, &digest, request);
        if request.1.ends_with(&large) {
            answer.cut = Some(answer.body.len().min(70_000));
        }
        answer
    })
    .await;
    let store = Store::new().await;
    let new = pull(&store, &registry).await.unwrap();
    assert_eq!(paths(&store.tree(&new).await).len(), 2);
    let seen = registry.seen.lock();
    let ranges: Vec<&String> =
        seen.iter().filter_map(|(.., headers)| headers.get("range")).collect();
    assert!(ranges.len() >= 4 && ranges[0] == "bytes=70000-", "{ranges:?}");
}

#[tokio::test]
async fn a_second_pull_goes_on_where_the_first_stopped() {
    let image = image();
    let (blobs, (digest, _)) = image.blobs();
    let large = sha256(&image.layers[0].0);
    let (whole, name) = (image.layers[0].0.len(), large.clone());
    let works = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let switch = Arc::clone(&works);
    let registry = Registry::start(move |request| {
        let mut answer = answer_with(&blobs, &digest, request);
        if request.1.ends_with(&name) && !switch.load(Ordering::SeqCst) {
            // The first request brings a part, the others nothing.
            answer.cut = Some(if answer.body.len() == whole { 100_000 } else { 0 });
        }
        answer
    })
    .await;
    let store = Store::new().await;
    let error = pull(&store, &registry).await.unwrap_err();
    assert!(matches!(error, ImageError::Registry(_)), "{error:?}");
    assert!(error.to_string().contains("stopped after 100000 of"), "{error}");
    assert_eq!(store.blob_count().await, 0);
    let left: u64 = store.leftovers().iter().map(|it| it.metadata().unwrap().len()).sum();
    assert!(left >= 100_000);

    works.store(true, Ordering::SeqCst);
    registry.seen.lock().clear();
    let new = pull(&store, &registry).await.unwrap();
    assert_eq!(paths(&store.tree(&new).await).len(), 2);
    let seen = registry.seen.lock();
    let layer = seen.iter().find(|(_, path, _)| path.ends_with(&large)).unwrap();
    assert_eq!(layer.2.get("range").map(String::as_str), Some("bytes=100000-"));
    assert!(store.leftovers().is_empty());
}

#[tokio::test]
async fn a_damaged_part_of_an_earlier_pull_is_fetched_again() {
    let image = image();
    let registry = Registry::with_image(&image, |_| None).await;
    let store = Store::new().await;
    let digest = sha256(&image.layers[0].0);
    std::fs::write(store.partial.join(&digest[7..]), [0; 1000]).unwrap();
    let new = pull(&store, &registry).await.unwrap();
    assert_eq!(paths(&store.tree(&new).await).len(), 2);
    assert!(store.leftovers().is_empty());
}

#[tokio::test]
async fn a_registry_without_ranges_begins_again() {
    let image = image();
    let large = sha256(&image.layers[0].0);
    let blob = image.layers[0].0.clone();
    let registry = Registry::with_image(&image, move |request| {
        request.1.ends_with(&large).then(|| Answer::ok(blob.clone()))
    })
    .await;
    let store = Store::new().await;
    let digest = sha256(&image.layers[0].0);
    std::fs::write(store.partial.join(&digest[7..]), &image.layers[0].0[..5000]).unwrap();
    let new = pull(&store, &registry).await.unwrap();
    assert_eq!(paths(&store.tree(&new).await).len(), 2);
}

/// Pulls from a registry whose answers are changed, and expects this refusal.
async fn refuse(
    change: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static,
    reason: &str,
) -> ImageError {
    let store = Store::new().await;
    let registry = Registry::with_image(&image(), change).await;
    let error = pull(&store, &registry).await.unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
    assert_eq!(store.blob_count().await, 0);
    assert!(store.leftovers().is_empty(), "{:?}", store.leftovers());
    error
}

#[tokio::test]
async fn a_registry_that_lies_is_refused() {
    let image = image();
    let top = sha256(&image.layers[1].0);
    let mut other = image.layers[1].0.clone();
    other[12] ^= 1;
    let name = top.clone();
    let change =
        move |request: &Request| request.1.ends_with(&name).then(|| Answer::ok(other.clone()));
    refuse(change, "has the digest").await;

    let (name, more) = (top.clone(), [&image.layers[1].0[..], b"more"].concat());
    let change =
        move |request: &Request| request.1.ends_with(&name).then(|| Answer::ok(more.clone()));
    refuse(change, "has more than").await;

    let manifest = |request: &Request| {
        (request.0 == "GET" && request.1.contains("/manifests/"))
            .then(|| Answer::ok(b"{\"schemaVersion\":2}".to_vec()))
    };
    refuse(manifest, "has the digest").await;

    let large = |request: &Request| {
        (request.0 == "GET" && request.1.contains("/manifests/"))
            .then(|| Answer::ok(vec![b' '; 5 << 20]))
    };
    refuse(large, "larger than 4194304 bytes").await;

    let config = image.blobs().0.into_values().find(|it| it.starts_with(b"{\"arch")).unwrap();
    let name = sha256(&config);
    let change =
        move |request: &Request| request.1.ends_with(&name).then(|| Answer::ok(b"{}".to_vec()));
    refuse(change, "bytes instead of").await;
}

#[tokio::test]
async fn a_digest_that_was_asked_for_must_match() {
    let image = image();
    let registry = Registry::with_image(&image, |_| None).await;
    let store = Store::new().await;
    let digest = image.blobs().1.0;
    let reference = format!("{}/tool@{digest}", registry.address);
    let new = pull_with(&store, &reference, access()).await.unwrap();
    assert!(new.names.is_empty(), "a digest gives no tag");
    let other = format!("{}/tool@{}", registry.address, sha256(b"other"));
    let error = pull_with(&store, &other, access()).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn failures_of_the_registry_are_named() {
    let store = Store::new().await;
    for (status, reason) in [(404, "has no 1 in tool"), (500, "it answered 500"), (429, "429")] {
        let registry = Registry::start(move |_| Answer::status(status)).await;
        let error = pull(&store, &registry).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{status}: {error}");
    }
    let registry = Registry::start(|_| Answer::ok(Vec::new())).await;
    let address = registry.address.clone();
    drop(registry);
    let error = pull_with(&store, &format!("{address}/tool:1"), access()).await.unwrap_err();
    assert!(matches!(error, ImageError::Registry(_)), "{error:?}");
}

#[tokio::test]
async fn a_busy_registry_is_asked_again() {
    let image = image();
    let count = std::sync::atomic::AtomicU32::new(0);
    let registry = Registry::with_image(&image, move |_| {
        let turn = count.fetch_add(1, Ordering::SeqCst);
        turn.is_multiple_of(2).then(|| Answer::status(503).with("retry-after", "0"))
    })
    .await;
    let store = Store::new().await;
    pull(&store, &registry).await.unwrap();
}

#[tokio::test]
async fn a_redirect_to_an_internal_address_is_not_followed() {
    let inside = Registry::start_on("127.0.0.2", |_| Answer::ok(b"secret".to_vec())).await;
    let target = format!("http://{}/metadata", inside.address);
    let change = move |request: &Request| {
        request.1.contains("/blobs/").then(|| Answer::status(307).with("location", target.clone()))
    };
    refuse(change, "leads to the internal address 127.0.0.2").await;
    assert!(inside.seen.lock().is_empty());
}

#[tokio::test]
async fn a_redirect_is_followed_without_the_password() {
    let image = image();
    let (blobs, (digest, _)) = image.blobs();
    let store_of_blobs =
        Registry::start(move |request| answer_with(&blobs, &digest, request)).await;
    let target = store_of_blobs.address.clone();
    let registry = Registry::with_image(&image, move |request| {
        if !request.2.contains_key("authorization") {
            return Some(Answer::status(401).with("www-authenticate", "Basic realm=\"x\""));
        }
        let location = format!("http://{target}{}", request.1);
        request.1.contains("/blobs/").then(|| Answer::status(302).with("location", location))
    })
    .await;
    let store = Store::new().await;
    let credentials = RegistryCredentials::Password {
        username: "me".to_owned(),
        password: Secret::new("secret"),
    };
    let reference = format!("{}/tool:1", registry.address);
    let access = RegistryAccess { credentials: Some(credentials), ..access() };
    pull_with(&store, &reference, access).await.unwrap();
    let seen = store_of_blobs.seen.lock();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|(.., headers)| !headers.contains_key("authorization")));
}

#[tokio::test]
async fn a_password_is_not_sent_to_a_stranger() {
    let stranger = Registry::start(|_| Answer::ok(json!({"token": "t"}).to_string().into())).await;
    let challenge = format!(
        "Bearer realm=\"http://localhost:{}/token\",service=\"s\"",
        stranger.address.rsplit(':').next().unwrap()
    );
    let change = move |request: &Request| {
        let known = request.2.get("authorization").is_some_and(|value| value == "Bearer t");
        (!known).then(|| Answer::status(401).with("www-authenticate", challenge.clone()))
    };
    let registry = Registry::with_image(&image(), change).await;
    let reference = format!("{}/tool:1", registry.address);
    let store = Store::new().await;
    let credentials = Some(RegistryCredentials::Password {
        username: "me".to_owned(),
        password: Secret::new("secret"),
    });
    let with = RegistryAccess { credentials, ..access() };
    let error = pull_with(&store, &reference, with.clone()).await.unwrap_err();
    assert!(error.to_string().contains("--auth-host localhost"), "{error}");
    assert!(!error.to_string().contains("secret"));
    assert!(stranger.seen.lock().is_empty());
    // Without a password the token is asked for, and so it is if the operator allows it.
    pull_with(&store, &reference, access()).await.unwrap();
    assert!(!stranger.seen.lock()[0].2.contains_key("authorization"));
    let with = RegistryAccess { auth_hosts: vec!["localhost".to_owned()], ..with };
    pull_with(&store, &reference, with).await.unwrap();
    let sent = stranger.seen.lock().last().unwrap().clone();
    assert!(sent.1.contains("scope=repository%3Atool%3Apull") && sent.1.contains("service=s"));
    assert!(sent.2.contains_key("authorization"));
}

#[tokio::test]
async fn plain_http_is_for_this_host_only() {
    let store = Store::new().await;
    let error = pull_with(&store, "192.0.2.1:5000/tool:1", access()).await.unwrap_err();
    assert!(
        error.to_string().contains("plain HTTP is only for a registry on this host"),
        "{error}"
    );
}

#[tokio::test]
async fn a_registry_without_tls_is_named_at_once() {
    cloche_test_support::install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Store::new().await;
    let access = RegistryAccess { plain_http: false, ..access() };
    let reference = format!("{address}/tool:1");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            // The rest of what the client sends is not read, but the connection stays.
            let _ = stream.read(&mut [0; 16]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let error = pull_with(&store, &reference, access).await.unwrap_err().to_string();
    answering.abort();
    assert!(error.contains("does not speak TLS"), "{error}");
    // For the digest of the tag, and for the manifest.
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_image_that_says_it_is_too_large_is_not_downloaded() {
    let image = image();
    let (mut blobs, (digest, _)) = image.blobs();
    let mut manifest: Value = serde_json::from_slice(&blobs[&digest]).unwrap();
    manifest["layers"][0]["size"] = json!(1_u64 << 50);
    let manifest = manifest.to_string().into_bytes();
    let name = sha256(&manifest);
    blobs.insert(name.clone(), manifest);
    let registry = Registry::start(move |request| {
        answer_with(&blobs, &name, request).with("content-type", MANIFEST)
    })
    .await;
    let mut store = Store::new().await;
    store.limits = ImageLimits::default();
    let error = pull(&store, &registry).await.unwrap_err();
    assert!(error.to_string().contains("the image is too large"), "{error}");
    assert_eq!(registry.count("GET /v2/tool/blobs/"), 1);
}
