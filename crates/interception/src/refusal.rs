//! Runs in: network broker (no capabilities).
//!
//! What a program gets in place of a reply, when a request or a reply is refused. No sentence
//! quotes anything of a request, a reply or a credential.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, HeaderValue},
};

/// Why a request was not sent, or its reply not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestRefusal {
    /// TRACE or CONNECT.
    Method,
    /// The request names another host than the connection.
    OtherHost,
    /// The target is no path.
    Target,
    /// The request could be read in two ways.
    Framing,
    /// The `Connection` header names other headers.
    ConnectionTokens,
    /// WebSocket and other upgrades.
    Upgrade,
    /// The path could be read in two ways, and a credential is for some paths only.
    AmbiguousPath,
    /// Several credentials fit.
    AmbiguousCredential,
    /// The server could not be reached, or its certificate is not for this host.
    Unverified,
    /// The server closed the connection.
    Lost,
    /// The reply is compressed, so the credential cannot be looked for in it.
    EncodedReply,
    /// The reply changes the protocol.
    UpgradedReply,
}

impl RequestRefusal {
    const fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Target | Self::Framing | Self::ConnectionTokens | Self::AmbiguousPath => {
                StatusCode::BAD_REQUEST
            }
            Self::Upgrade => StatusCode::NOT_IMPLEMENTED,
            Self::AmbiguousCredential => StatusCode::FORBIDDEN,
            Self::Unverified | Self::Lost | Self::EncodedReply | Self::UpgradedReply => {
                StatusCode::BAD_GATEWAY
            }
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Method => "TRACE and CONNECT are not sent to a host with a credential",
            Self::OtherHost => {
                "the request names another host than its connection, which has a credential; \
                 use one connection for each host"
            }
            Self::Target => "the target of a request to a host with a credential must be a path",
            Self::Framing => {
                "the request has conflicting headers for its length or its host, so it was not sent"
            }
            Self::ConnectionTokens => {
                "the Connection header of a request to a host with a credential may only be close \
                 or keep-alive"
            }
            Self::Upgrade => "a connection to a host with a credential cannot be upgraded",
            Self::AmbiguousPath => {
                "the path has dot segments, empty segments or escaped separators; this host has a \
                 credential for some paths only, so write the path without them"
            }
            Self::AmbiguousCredential => {
                "several credentials fit this request; put the placeholder of one of them where it \
                 goes"
            }
            Self::Unverified => {
                "the host of this credential could not be reached with a certificate that is valid \
                 for its name, so nothing was sent"
            }
            Self::Lost => "the host of this credential closed the connection",
            Self::EncodedReply => {
                "the reply is compressed although the request asked for none, so the credential \
                 could not be looked for in it and the reply was dropped"
            }
            Self::UpgradedReply => "the host of this credential tried to change the protocol",
        }
    }

    /// The reply.
    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let body = serde_json::json!({"error": "credential_refused", "message": self.sentence()});
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}
