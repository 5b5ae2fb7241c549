//! The network of an address, by which a host's connections are counted.

use std::net::IpAddr;

/// The network of a host's address: a host has the addresses of a /64 of IPv6 for nothing, and one of IPv4.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_of_one_network() {
        let of = |address: &str| network_of(address.parse().unwrap());
        assert_eq!(of("fd00::1"), of("fd00::2:3:4:5"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
