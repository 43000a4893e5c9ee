//! Runs in: server (no capabilities).
//!
//! Counts the connections of each address, so that one client cannot use up the limit of all.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// Connection counts by address. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PeerConnections {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    per_address: usize,
    per_loopback: usize,
}

/// One connection of an address; dropping it releases the slot.
pub(crate) struct PeerSlot {
    peers: PeerConnections,
    network: IpAddr,
}

impl PeerConnections {
    pub(crate) fn new(per_address: usize, per_loopback: usize) -> Self {
        Self { open: Arc::default(), per_address, per_loopback }
    }

    /// Takes a slot for a connection from this address; `None` if the limit is reached.
    pub(crate) fn try_admit(&self, address: IpAddr) -> Option<PeerSlot> {
        let network = counted_network(address);
        let most = if network.is_loopback() { self.per_loopback } else { self.per_address };
        let mut open = self.open.lock();
        let count = open.entry(network).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(PeerSlot { peers: self.clone(), network })
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

/// The address used for counting. For IPv6 it is the /64 network, because one client has a whole
/// one.
fn counted_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_address_are_limited() {
        let peers = PeerConnections::new(1, 2);
        let enter = |address: &str| peers.try_admit(address.parse().unwrap());
        let first = enter("192.0.2.1");
        assert!(first.is_some() && enter("192.0.2.1").is_none());
        assert!(enter("192.0.2.2").is_some());
        assert!(enter("::ffff:192.0.2.1").is_none());
        drop(first);
        assert!(enter("::ffff:192.0.2.1").is_some());
        let slots = [enter("127.0.0.1"), enter("127.0.0.1")];
        assert!(slots.iter().all(Option::is_some) && enter("127.0.0.1").is_none());
        let slot = enter("2001:db8::1");
        assert!(slot.is_some() && enter("2001:db8::2").is_none());
        assert!(enter("2001:db8:0:1::1").is_some());
        drop((slots, slot));
        assert!(peers.open.lock().is_empty());
    }
}
