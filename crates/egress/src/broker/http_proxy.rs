//! Runs in: broker (no capabilities).
//!
//! Plain HTTP under an allowlist: every request is read and written anew, so a request that two
//! parsers would read differently does not reach the server.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use cloche_model::HostName;
use http_body_util::{Either, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    client::conn::http1::{Builder as ClientBuilder, SendRequest},
    header::{self, HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
};

/// The most bytes of the head of a request, and of a reply.
const HEAD_BYTES: usize = 64 * 1024;

/// Headers that belong to one connection, and so not to the other.
static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// Serves the requests of a guest until either side ends. Requests for another host than `names`
/// are answered with 403 and told to `deny`.
pub(super) async fn serve_requests<G, S>(
    guest: G,
    upstream: S,
    names: &[HostName],
    deny: impl Fn(Option<&HostName>) + Send + Sync,
) where
    G: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let connected = ClientBuilder::new()
        .max_buf_size(HEAD_BYTES)
        .handshake::<_, Incoming>(TokioIo::new(upstream))
        .await;
    let Ok((sender, connection)) = connected else {
        return;
    };
    let sender = Arc::new(Mutex::new(sender));
    let service = service_fn(|request| {
        let judged = judge_request(request, names);
        if let Err(name) = &judged {
            deny(name.as_ref());
        }
        answer_request(judged, Arc::clone(&sender))
    });
    let serving = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .half_close(true)
        .serve_connection(TokioIo::new(guest), service);
    let serving = std::pin::pin!(serving);
    let upstream = std::pin::pin!(connection);
    // Errors are those of the two ends; the guest sees its connection close.
    match futures::future::select(serving, upstream).await {
        futures::future::Either::Left(_) => {}
        // What the server has sent before it closed still goes to the guest.
        futures::future::Either::Right((_, mut serving)) => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// The request as it is sent on, or the name that it should not have.
fn judge_request(
    mut request: Request<Incoming>,
    names: &[HostName],
) -> Result<Request<Incoming>, Option<HostName>> {
    let (name, port) = asked_host(request.headers(), request.uri())?;
    if !names.contains(&name) || request.method() == Method::CONNECT {
        return Err(Some(name));
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| Some(name.clone()))?;
    remove_hop_headers(request.headers_mut());
    // A server compares bytes. Another spelling of the name would lead to its default host.
    let host = match port {
        Some(port) => HeaderValue::from_str(&format!("{}:{port}", name.as_str())),
        None => HeaderValue::from_str(name.as_str()),
    };
    let host = host.map_err(|_| Some(name))?;
    request.headers_mut().insert(header::HOST, host);
    *request.version_mut() = Version::HTTP_11;
    Ok(request)
}

/// A host name with the port that was written behind it.
type AskedHost = (HostName, Option<u16>);

/// The one host that a request names: one `Host`, and the same in an absolute target.
fn asked_host(headers: &HeaderMap, target: &Uri) -> Result<AskedHost, Option<HostName>> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(None);
    };
    let (name, port) = parse_host(host.as_bytes()).ok_or(None)?;
    match target.authority() {
        None => Ok((name, port)),
        Some(authority) => match parse_host(authority.as_str().as_bytes()) {
            Some((other, _)) if other == name => Ok((name, port)),
            other => Err(other.map(|(other, _)| other)),
        },
    }
}

/// The name and port in `name` or `name:port`.
fn parse_host(host: &[u8]) -> Option<AskedHost> {
    let mut parts = host.splitn(2, |byte| *byte == b':');
    let name = HostName::from_wire(parts.next()?).ok()?;
    let port = match parts.next() {
        None | Some([]) => None,
        Some(port) if port.iter().all(u8::is_ascii_digit) => {
            Some(std::str::from_utf8(port).ok()?.parse().ok()?)
        }
        Some(_) => return None,
    };
    Some((name, port))
}

/// Removes the headers of one connection, and those that `Connection` names.
fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A request without these would be another request.
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

async fn answer_request(
    judged: Result<Request<Incoming>, Option<HostName>>,
    sender: Arc<Mutex<SendRequest<Incoming>>>,
) -> Result<Answer, Infallible> {
    let Ok(request) = judged else {
        let why = "the network policy of this sandbox does not allow this host\n";
        return Ok(refuse_request(StatusCode::FORBIDDEN, why));
    };
    match send_on(request, &sender).await {
        Ok(mut answer) => {
            remove_hop_headers(answer.headers_mut());
            Ok(answer.map(Either::Left))
        }
        Err(_) => {
            let why = "the server closed the connection without an answer\n";
            Ok(refuse_request(StatusCode::BAD_GATEWAY, why))
        }
    }
}

async fn send_on(
    request: Request<Incoming>,
    sender: &Mutex<SendRequest<Incoming>>,
) -> hyper::Result<Response<Incoming>> {
    let mut sender = sender.lock().await;
    sender.ready().await?;
    sender.send_request(request).await
}

fn refuse_request(status: StatusCode, why: &'static str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::new(Bytes::from_static(why.as_bytes()))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}
