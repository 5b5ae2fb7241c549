//! The addresses at which other hosts reach this one: those that its interfaces have now.
//!
//! Rule: a host may start before its network is up, and a network may give it another address. A host that has only
//! loopback now keeps the address that it had: it is off its network for a moment.

use crate::discovery;
use crate::protocol::Member;
use remote_keys::{Keyring, KeyringError};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often the interfaces are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Where a host listens, and what it was configured to advertise.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddresses {
    /// The paging server.
    pub paging: SocketAddr,
    /// The control port.
    pub control: SocketAddr,
    /// The address at which other hosts reach this one; `None` to take the one of an interface.
    pub advertise: Option<IpAddr>,
}

impl ListenAddresses {
    /// The addresses of the paging server and of the control port for others, while an interface has an address.
    pub fn advertised(&self, of_interface: Option<Ipv4Addr>) -> (SocketAddr, SocketAddr) {
        let of_interface = of_interface.unwrap_or(Ipv4Addr::LOCALHOST).into();
        let of = |listens: SocketAddr| {
            let own = match listens.ip().is_unspecified() {
                true => of_interface,
                false => listens.ip(),
            };
            SocketAddr::new(self.advertise.unwrap_or(own), listens.port())
        };
        (of(self.paging), of(self.control))
    }

    /// Sets this host's name and the address of its paging server in the cluster's list. A loopback address is one that
    /// no other host reaches, unless all are here.
    pub fn set_listed(
        &self,
        keys: &Keyring,
        name: &str,
        paging: SocketAddr,
    ) -> Result<(), KeyringError> {
        let is_reached = !paging.ip().is_loopback() || self.paging.ip().is_loopback();
        let paging = is_reached.then(|| paging.to_string());
        keys.set_own(name, paging.as_deref())
    }

    /// A host's next introduction, if it is reached at other addresses now that an interface has one.
    fn renewed(&self, own: &Member, of_interface: Ipv4Addr) -> Option<Member> {
        let (paging, control) = self.advertised(Some(of_interface));
        let is_other = (paging, control) != (own.paging, own.control);
        is_other.then(|| Member {
            paging,
            control,
            since: now_millis().max(own.since + 1),
            ..own.clone()
        })
    }

    /// Renews a host's introduction when its interfaces have other addresses, until the host ends. The cluster's list
    /// has the new address first: a host that is introduced to this one asks for it.
    pub async fn watch(self, own: watch::Sender<Member>, keys: Option<(Arc<Keyring>, String)>) {
        if own.borrow().control.ip().is_loopback() && self.control.ip().is_unspecified() {
            tracing::warn!(
                "this host has no address but loopback: others reach it when it has another one"
            );
        }
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(of_interface) = of_interface() else {
                continue;
            };
            let renewed = self.renewed(&own.borrow(), of_interface);
            if let Some(member) = renewed {
                tracing::info!("other hosts reach this one at {} now", member.paging);
                if let Some((keys, name)) = keys.clone() {
                    let set = move || self.set_listed(&keys, &name, member.paging);
                    if let Ok(Err(why)) = tokio::task::spawn_blocking(set).await {
                        tracing::warn!("the cluster's list has an earlier address: {why}");
                    }
                }
                own.send_replace(member);
            }
        }
    }
}

/// The first address of an interface that other hosts may reach.
pub fn of_interface() -> Option<Ipv4Addr> {
    let mut addresses = discovery::own_addresses().into_iter();
    addresses.find(|address| !address.is_loopback())
}

/// Milliseconds since 1970: later introductions of a host win over earlier ones.
pub fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use remote_policy::identity::{HostId, Incarnation};

    const LATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);

    fn listens(at: Ipv4Addr, advertise: Option<IpAddr>) -> ListenAddresses {
        ListenAddresses {
            paging: (at, 4763).into(),
            control: (at, 4765).into(),
            advertise,
        }
    }

    fn started_alone(listens: &ListenAddresses) -> Member {
        let (paging, control) = listens.advertised(None);
        Member {
            server: Incarnation::new(HostId(1), 1, 1),
            name: "host".into(),
            paging,
            control,
            since: u64::MAX / 2,
        }
    }

    #[test]
    fn a_host_that_starts_before_its_network_is_reached_by_it_later() {
        let listens = listens(Ipv4Addr::UNSPECIFIED, None);
        let own = started_alone(&listens);
        assert!(own.paging.ip().is_loopback());
        let renewed = listens.renewed(&own, LATE).unwrap();
        assert_eq!(renewed.paging, (LATE, 4763).into());
        assert_eq!(renewed.control, (LATE, 4765).into());
        assert!(renewed.since > own.since);
        assert_eq!(listens.renewed(&renewed, LATE), None);
    }

    #[test]
    fn a_configured_address_stays() {
        for listens in [
            listens(Ipv4Addr::LOCALHOST, None),
            listens(Ipv4Addr::UNSPECIFIED, Some([10, 0, 0, 9].into())),
        ] {
            let own = started_alone(&listens);
            assert_eq!(listens.renewed(&own, LATE), None);
        }
    }
}
