//! The cryptography of HTTP clients in tests.

/// Makes `reqwest::Client::new()` work in this process, with the cryptography that the product has.
/// It may be called several times.
pub fn install_crypto() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
