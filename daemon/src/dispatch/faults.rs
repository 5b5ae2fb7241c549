//! Requests for a share of the faults, and for processor time beside it.

use crate::contracts::Contracts;
use crate::refusal::Refusal;
use crate::{Daemon, fault_rates, policy};
use protocol::TenantNumber;
use std::time::Duration;

/// Reserved processor time: runtime and period.
type Reservation = Option<(Duration, Duration)>;

/// Handles a request for a share. A tenant that is `known` to an earlier daemon keeps the reservation that was
/// recorded then, whatever it claims now.
pub(super) fn request(
    daemon: &mut Daemon,
    token: u64,
    number: TenantNumber,
    reservation: Reservation,
    known: bool,
) {
    let Some(tenant) = daemon.tenants().get(number) else {
        return;
    };
    let recorded = tenant.record.reservation;
    // Where the earlier daemon recorded no reservation, a claimed one is checked as a new one.
    let is_known = known && tenant.rejoined && (recorded.is_some() || reservation.is_none());
    let shared = match is_known {
        true => share(daemon, token, number, recorded, true),
        false => check_reservation(daemon, token, number, reservation)
            .and_then(|()| share(daemon, token, number, reservation, false)),
    };
    if let Err(why) = shared {
        daemon.connections().refuse(token, why);
    }
}

fn share(
    daemon: &mut Daemon,
    token: u64,
    number: TenantNumber,
    reservation: Reservation,
    is_known: bool,
) -> Result<(), Refusal> {
    let weight = weight(daemon, token);
    let Contracts {
        frames,
        fault_rates,
        processor_time,
        ..
    } = &mut daemon.contracts;
    let tenants = &frames.tenants;
    let paging = processor_time.promised(tenants, None);
    fault_rates.request(tenants, number, weight, reservation, is_known, paging)?;
    let tenant = frames.tenants.get_mut(number);
    let tenant = tenant.ok_or(Refusal::NoTenant(number))?;
    if tenant.record.reservation != reservation {
        tenant.record.reservation = reservation;
        // The tenant has its reply; a record that cannot be written now is tried again.
        let _ = daemon.contracts.persist(number);
    }
    Ok(())
}

/// Checks a reservation against the rule of the peer, whose contracts all count.
fn check_reservation(
    daemon: &mut Daemon,
    token: u64,
    number: TenantNumber,
    reservation: Reservation,
) -> Result<(), Refusal> {
    let (tenants, rates) = (daemon.tenants(), &daemon.contracts.fault_rates);
    let Some(connection) = daemon.connections().get(token) else {
        return Err(Refusal::Disconnected);
    };
    let uid = connection.identity.uid;
    let others = tenants.numbers_of(uid);
    let held = others
        .filter(|other| *other != number)
        .map(|other| rates.reserved(other))
        .sum();
    let own = rustix::process::getuid().as_raw();
    let rules = &daemon.contracts.config.allow;
    let asked = fault_rates::processors_of(reservation);
    policy::check_reservation(rules, own, &connection.identity, held, asked)?;
    let tenant = tenants.get(number);
    // Each change is a write of the record.
    if tenant.is_some_and(|tenant| tenant.record.reservation != reservation) {
        let limits = &mut daemon.connections_mut().user_limits;
        return limits.over_change_rate(uid).map_or(Ok(()), Err);
    }
    Ok(())
}

/// The weight of a connection's peer, against others, in sharing out faults.
fn weight(daemon: &Daemon, token: u64) -> u32 {
    let peer = daemon.connections().get(token).map(|c| &c.identity);
    peer.map_or(1, |peer| {
        policy::fault_weight(&daemon.contracts.config.allow, peer)
    })
}
