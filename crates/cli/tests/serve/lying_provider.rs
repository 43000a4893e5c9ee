//! An OpenID provider for tests, which says what it is told to. It checks what a good one checks:
//! the client, the way back, and the proof key.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use hmac::{Hmac, Mac};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Mutex;
use url::Url;

pub(crate) const CLIENT_ID: &str = "cloche";
pub(crate) const CLIENT_SECRET: &str = "s3cr3t+/ of the client";

/// The provider.
pub(crate) struct LyingProvider {
    pub(crate) issuer: String,
    state: Mutex<ProviderState>,
}

struct ProviderState {
    keys: Vec<EcdsaKeyPair>,
    algorithm: &'static str,
    answer: &'static str,
    /// By code: the query of the request, and the claims.
    codes: HashMap<String, (HashMap<String, String>, Value)>,
}

fn new_key() -> EcdsaKeyPair {
    let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap()
}

fn query_of(url: &Url) -> HashMap<String, String> {
    url.query_pairs().into_owned().collect()
}

impl LyingProvider {
    pub(crate) async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let state = ProviderState {
            keys: vec![new_key()],
            algorithm: "ES256",
            answer: "good",
            codes: HashMap::new(),
        };
        let issuer = format!("http://{address}");
        let provider = Arc::new(Self { issuer, state: Mutex::new(state) });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(describe))
            .route("/jwks", get(list_keys))
            .route("/token", post(redeem_code))
            .with_state(Arc::clone(&provider));
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        provider
    }

    /// Lets someone in with these claims. Returns the query of the way back.
    pub(crate) fn let_in(&self, asked: &Url, claims: Value) -> String {
        let query = query_of(asked);
        let mut state = self.state.lock().unwrap();
        let code = format!("code-{}", state.codes.len());
        let back = format!("code={code}&state={}", query["state"]);
        state.codes.insert(code, (query, claims));
        back
    }

    pub(crate) fn state_of(&self, asked: &Url) -> String {
        query_of(asked)["state"].clone()
    }

    /// Signs with `ES256`, or with something that must not be accepted.
    pub(crate) fn sign_with(&self, algorithm: &'static str) {
        self.state.lock().unwrap().algorithm = algorithm;
    }

    /// How the token endpoint answers: `good`, `huge` or `slow`.
    pub(crate) fn answer_with(&self, answer: &'static str) {
        self.state.lock().unwrap().answer = answer;
    }

    /// Replaces the key.
    pub(crate) fn rotate(&self) {
        self.state.lock().unwrap().keys.push(new_key());
    }
}

async fn describe(State(provider): State<Arc<LyingProvider>>) -> Json<Value> {
    let issuer = &provider.issuer;
    Json(json!({"issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize?tenant=a"),
        "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/jwks")}))
}

async fn list_keys(State(provider): State<Arc<LyingProvider>>) -> Json<Value> {
    let state = provider.state.lock().unwrap();
    let point = state.keys.last().unwrap().public_key().as_ref();
    let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
    // A key of an unknown kind is beside it, as providers with newer algorithms have one.
    Json(json!({"keys": [{"kty": "AKP", "alg": "ML-DSA-44", "pub": "eA"},
        {"kty": "EC", "crv": "P-256", "use": "sig", "kid": format!("key-{}", state.keys.len()),
         "x": x, "y": y}]}))
}

async fn redeem_code(
    State(provider): State<Arc<LyingProvider>>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let form: HashMap<String, String> =
        url::form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    let answer = provider.state.lock().unwrap().answer;
    match answer {
        "huge" => return "x".repeat(3 << 20).into_response(),
        "slow" => tokio::time::sleep(Duration::from_secs(30)).await,
        _ => {}
    }
    let mut state = provider.state.lock().unwrap();
    let refused = |why: &str| {
        (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant", "why": why})))
            .into_response()
    };
    let secret = "s3cr3t%2B%2F+of+the+client";
    let basic = format!("Basic {}", STANDARD.encode(format!("{CLIENT_ID}:{secret}")));
    if headers.get("authorization").map(|value| value.as_bytes()) != Some(basic.as_bytes()) {
        return refused("client");
    }
    let Some((query, claims)) = state.codes.remove(&form["code"]) else { return refused("code") };
    let proof = URL_SAFE_NO_PAD.encode(Sha256::digest(form["code_verifier"].as_bytes()));
    if proof != query["code_challenge"] || form["redirect_uri"] != query["redirect_uri"] {
        return refused("proof");
    }
    let token = state.token(&provider.issuer, &query["nonce"], &claims);
    Json(json!({"access_token": "at", "token_type": "Bearer", "id_token": token})).into_response()
}

impl ProviderState {
    fn token(&self, issuer: &str, nonce: &str, changes: &Value) -> String {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let mut claims = json!({"iss": issuer, "aud": CLIENT_ID, "nonce": nonce, "iat": now,
            "exp": now + 300});
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            }
        }
        let algorithm = if self.algorithm == "foreign" { "ES256" } else { self.algorithm };
        let header = json!({"alg": algorithm, "kid": format!("key-{}", self.keys.len())});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&header), part(&claims));
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes())))
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let key = self.keys.last().unwrap();
        match self.algorithm {
            "none" => Vec::new(),
            // The public key as a shared secret.
            "HS256" => {
                let mut mac = Hmac::<Sha256>::new_from_slice(key.public_key().as_ref()).unwrap();
                mac.update(message);
                mac.finalize().into_bytes().to_vec()
            }
            "foreign" => new_key().sign(&random, message).unwrap().as_ref().to_vec(),
            _ => key.sign(&random, message).unwrap().as_ref().to_vec(),
        }
    }
}
