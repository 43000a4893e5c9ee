//! Runs in: test. Networks of cells on an internet of their own: the real broker, the real stack
//! worker and a tun device, in network namespaces.

mod allowlist;
mod internet;
mod names;
mod transport;
mod walls;
