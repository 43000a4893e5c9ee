//! Which addresses belong to the public internet. Webhooks, pulls of images and networks of cells
//! use the same answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address belongs to the public internet: global unicast, and none of the forms that
/// embed another address.
#[must_use]
pub fn is_public_address(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, d] = ip.octets();
    let special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0 // this network
        || a >= 240 // reserved, broadcast
        || (a == 100 && (64..128).contains(&b)) // carrier-grade NAT
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 192 && b == 31 && c == 196) // AS112
        || (a == 192 && b == 52 && c == 193) // AMT
        || (a == 192 && b == 88 && c == 99) // 6to4 relays
        || (a == 192 && b == 175 && c == 48) // AS112
        || (a == 198 && (18..20).contains(&b)) // benchmarks
        || [a, b, c, d] == [168, 63, 129, 16]; // a cloud's host agent, on a public address
    !special
}

/// Only global unicast, without the blocks that lead back to IPv4 or nowhere.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    match segments {
        // NAT64 with the well-known prefix: the last 32 bits are the address that is reached. The
        // local prefix 64:ff9b:1::/48 is refused below, as are 6to4 and Teredo: no host on the
        // public internet is reached only by them, and their relays embed any address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            is_public_v4(Ipv4Addr::new(a, b, c, d))
        }
        [0x2002, ..] => false,
        // Teredo, benchmarks, ORCHID and the other protocol assignments of 2001::/23.
        [0x2001, b, ..] if b < 0x200 || b == 0xdb8 => false,
        [0x2620, 0x4f, 0x8000, ..] => false,    // AS112
        [0x3fff, b, ..] if b < 0x1000 => false, // documentation
        [0x5f00, ..] => false,                  // segment routing
        [a, ..] => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_the_public_internet_are_recognised() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "64:ff9b:1::808:808",
            "64:ff9b:0:1::808:808",
            "100::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public_address(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn public_addresses_are_recognised() {
        for ip in [
            "1.1.1.1",
            "93.184.216.34",
            "100.128.0.1",
            "172.32.0.1",
            "192.1.0.1",
            "223.255.255.1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2001:4860:4860::8888",
            "2606:4700::1111",
        ] {
            assert!(is_public_address(ip.parse().unwrap()), "{ip}");
        }
    }
}
