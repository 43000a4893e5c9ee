//! A real TLS server that records what it gets, and a cell that trusts only the interceptor.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use cloche_interception::{InterceptedConnection, Interceptor};
use cloche_model::{BrokerRule, BrokeredCredential, Secret};
use futures::{StreamExt, channel::mpsc};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Frame, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

pub(crate) const HOST: &str = "api.example.com";
pub(crate) const PORT: u16 = 443;
pub(crate) const SECRET: &str = "sk-live/0123+456789=abcdef";

/// A request as the server got it.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// A certificate authority that the interceptor trusts.
pub(crate) struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), der }
    }

    fn make_acceptor(&self, name: &str, alpn: &[&str]) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        Arc::new(roots)
    }
}

pub(crate) struct TestServer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    endless: Arc<EndlessReplies>,
}

/// Replies that begin when they are released, and never end.
pub(crate) struct EndlessReplies {
    pub(crate) released: Semaphore,
    pub(crate) sent: AtomicUsize,
}

impl TestServer {
    /// A server with a certificate for `name` that speaks these protocols.
    pub(crate) async fn start(authority: &TestAuthority, name: &str, alpn: &[&str]) -> Self {
        let tls = authority.make_acceptor(name, alpn);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        let (seen, endless) = (Arc::clone(&server.seen), Arc::clone(&server.endless));
        tokio::spawn(accept(listener, tls, Replies { seen, endless }));
        server
    }

    /// A server that answers whatever it gets with these bytes, and closes without a word of TLS.
    pub(crate) async fn start_ragged(authority: &TestAuthority, reply: String) -> Self {
        let tls = authority.make_acceptor(HOST, &[]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = tls.accept(stream).await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                stream.write_all(reply.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                stream.get_mut().0.shutdown().await.unwrap();
            }
        });
        server
    }

    fn new(listener: &TcpListener) -> Self {
        let (released, sent) = (Semaphore::new(0), AtomicUsize::new(0));
        let endless = Arc::new(EndlessReplies { released, sent });
        Self { address: listener.local_addr().unwrap(), seen: Arc::default(), endless }
    }

    pub(crate) fn endless(&self) -> &EndlessReplies {
        &self.endless
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap().clone()
    }
}

/// What all connections of a server share.
#[derive(Clone)]
struct Replies {
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    endless: Arc<EndlessReplies>,
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, replies: Replies) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, replies) = (tls.clone(), replies.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |request| reply(replies.clone(), request));
            let io = TokioIo::new(stream);
            if is_http2 {
                // It keeps little itself, so that what it has sent is at the other end.
                let _ = http2::Builder::new(TokioExecutor::new())
                    .max_send_buf_size(16 << 10)
                    .serve_connection(io, service)
                    .await;
            } else {
                let _ = http1::Builder::new().serve_connection(io, service).await;
            }
        });
    }
}

type ReplyBody = BoxBody<Bytes, Infallible>;

fn full(text: impl Into<Bytes>) -> ReplyBody {
    Full::new(text.into()).boxed()
}

async fn reply(
    replies: Replies,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let one = SeenRequest {
        method: head.method.to_string(),
        target: target.clone(),
        headers: head.headers.clone(),
        body: body.clone(),
    };
    replies.seen.lock().unwrap().push(one);
    let echo = format!("{} {target} {:?}", head.method, head.headers);
    let mut response = Response::new(full(""));
    match head.uri.path() {
        "/headers" => {
            for (name, value) in &head.headers {
                let name: hyper::header::HeaderName = format!("x-echo-{name}").parse().unwrap();
                let mut value = value.clone();
                value.set_sensitive(false);
                response.headers_mut().append(name, value);
            }
        }
        "/redirect" => {
            *response.status_mut() = StatusCode::FOUND;
            let to = format!("https://evil.example/?stolen={SECRET}");
            response.headers_mut().insert("location", to.parse().unwrap());
        }
        "/gzip" => {
            response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
            *response.body_mut() = full(echo);
        }
        "/coding" => {
            response.headers_mut().insert("transfer-encoding", "gzip, chunked".parse().unwrap());
            *response.body_mut() = full(echo);
        }
        "/names" => {
            let key = head.headers["x-api-key"].to_str().unwrap();
            let name: hyper::header::HeaderName = format!("x-got-{key}").parse().unwrap();
            response.headers_mut().insert(name, "1".parse().unwrap());
            response.headers_mut().insert("x-other", "1".parse().unwrap());
        }
        "/endless" => *response.body_mut() = send_endlessly(replies.endless),
        "/large" => *response.body_mut() = full(vec![b'x'; 32 << 20]),
        "/sse" => *response.body_mut() = events(),
        "/trailers" => *response.body_mut() = secret_in_trailers(),
        "/split" => {
            let (one, two) = SECRET.split_at(9);
            let frames = ["before ", one, two, " after"].map(|part| Ok(Frame::data(part.into())));
            *response.body_mut() = BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)));
        }
        "/alt" => {
            response.headers_mut().insert("alt-svc", "h3=\":443\"".parse().unwrap());
        }
        _ => *response.body_mut() = full(echo),
    }
    Ok(response)
}

fn secret_in_trailers() -> ReplyBody {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-message", SECRET.parse().unwrap());
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = [Frame::data(Bytes::from("body")), Frame::trailers(trailers)];
    let frames = futures::stream::iter(frames.map(Ok::<_, Infallible>));
    BodyExt::boxed(StreamBody::new(frames))
}

fn send_endlessly(endless: Arc<EndlessReplies>) -> ReplyBody {
    const FRAME: usize = 16 << 10;
    let frames = futures::stream::unfold((endless, false), |(endless, is_released)| async move {
        if !is_released {
            endless.released.acquire().await.unwrap().forget();
        }
        endless.sent.fetch_add(FRAME, Ordering::Relaxed);
        Some((Ok(Frame::data(Bytes::from(vec![b'x'; FRAME]))), (endless, true)))
    });
    BodyExt::boxed(StreamBody::new(frames))
}

/// Events that never end: one at once, and no other.
fn events() -> ReplyBody {
    let (mut sender, receiver) = mpsc::channel(4);
    sender.try_send(Ok(Frame::data(Bytes::from("data: one\n\n")))).unwrap();
    // The stream stays open as long as its sender.
    let open = receiver.chain(futures::stream::pending());
    drop(sender);
    BodyExt::boxed(StreamBody::new(open))
}

/// A credential in this form for [`HOST`].
pub(crate) fn credential(name: &str, form: &str, value: &str) -> BrokeredCredential {
    BrokeredCredential {
        name: name.to_owned(),
        rule: BrokerRule {
            hosts: vec![HOST.parse().unwrap()],
            methods: Vec::new(),
            paths: Vec::new(),
            form: form.parse().unwrap(),
        },
        value: Secret::new(value),
    }
}

/// An interceptor with a server behind it.
pub(crate) struct TestInternet {
    pub(crate) server: TestServer,
    pub(crate) interceptor: Arc<Interceptor>,
}

impl TestInternet {
    pub(crate) async fn start(credentials: &[BrokeredCredential], alpn: &[&str]) -> Self {
        let authority = TestAuthority::new();
        let server = TestServer::start(&authority, HOST, alpn).await;
        Self::with_server(server, &authority, credentials)
    }

    pub(crate) fn with_server(
        server: TestServer,
        authority: &TestAuthority,
        credentials: &[BrokeredCredential],
    ) -> Self {
        let interceptor = Interceptor::new(credentials, authority.roots()).unwrap();
        Self { server, interceptor: Arc::new(interceptor) }
    }

    /// A connection of the cell through the interceptor, before TLS.
    pub(crate) async fn connect(&self) -> (DuplexStream, JoinHandle<InterceptedConnection>) {
        let (cell, ours) = tokio::io::duplex(64 << 10);
        let server = TcpStream::connect(self.server.address).await.unwrap();
        let interceptor = Arc::clone(&self.interceptor);
        let serving =
            tokio::spawn(async move { interceptor.serve(ours, server, HOST, PORT).await });
        (cell, serving)
    }

    /// TLS as a client in the cell speaks it, with this name and these protocols.
    pub(crate) async fn connect_tls(
        &self,
        name: &str,
        alpn: &[&str],
    ) -> std::io::Result<(TlsStream<DuplexStream>, JoinHandle<InterceptedConnection>)> {
        let mut roots = RootCertStore::empty();
        let pem = self.interceptor.authority_pem().as_bytes();
        roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let (cell, serving) = self.connect().await;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, cell).await?;
        Ok((stream, serving))
    }

    /// The same by a client that accepts every certificate.
    pub(crate) async fn connect_trusting(
        &self,
        name: &str,
    ) -> (std::io::Result<TlsStream<DuplexStream>>, JoinHandle<InterceptedConnection>) {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustEveryone))
            .with_no_client_auth();
        let (cell, serving) = self.connect().await;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        (TlsConnector::from(Arc::new(config)).connect(name, cell).await, serving)
    }
}

#[derive(Debug)]
struct TrustEveryone;

impl ServerCertVerifier for TrustEveryone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
