//! A connection to a server: plain, or TLS with a certificate that this host trusts.

use std::{io, net::IpAddr, sync::Arc};

use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

/// A two-way byte stream.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Connects to the host of an `http` or `https` address.
pub(crate) async fn open_connection(url: &Url) -> io::Result<Box<dyn ByteStream>> {
    let addresses = url.socket_addrs(|| None)?;
    let stream = TcpStream::connect(&*addresses).await?;
    if url.scheme() == "http" {
        return Ok(Box::new(stream));
    }
    let stream = tls_connector()?.connect(certificate_name(url)?, stream).await?;
    Ok(Box::new(stream))
}

fn tls_connector() -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the certificate must have.
fn certificate_name(url: &Url) -> io::Result<ServerName<'static>> {
    match url.host() {
        Some(Host::Domain(name)) => ServerName::try_from(name.to_owned()).map_err(io::Error::other),
        Some(Host::Ipv4(ip)) => Ok(ServerName::IpAddress(IpAddr::V4(ip).into())),
        Some(Host::Ipv6(ip)) => Ok(ServerName::IpAddress(IpAddr::V6(ip).into())),
        None => Err(io::Error::other("the address has no host")),
    }
}
