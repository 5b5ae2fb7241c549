//! What servers send unasked: permits that shrink, are revoked or end, and objects that are to move.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 2.3 and 3.5. Rule: a notice concerns the permit in use; one
//! of a permit that is not in use any more, or not yet, changes nothing. An abdicate request concerns an object, and the
//! organizer decides on it.

use crate::transport::{RemoteTransport, since_start};
use crate::{permits, placement};
use disk::time::Time;
use remote_policy::organizer::AbdicateAnswer;
use remote_policy::permit::Permit;
use remote_wire::control::{SealedPermit, ServerNotice};

/// Handles a notice of a server.
pub fn on_notice(transport: &mut RemoteTransport, now: Time, server: usize, notice: ServerNotice) {
    let name = transport.servers[server].name.clone();
    let Some(host) = transport.servers[server].host() else {
        return;
    };
    let time = since_start(now);
    match notice {
        // Of a permit that is not in use any more, or not yet.
        ServerNotice::Rewritten(SealedPermit {
            permit: Permit { id, .. },
            ..
        })
        | ServerNotice::Revoke { permit: id, .. }
        | ServerNotice::Void { permit: id, .. }
            if !permits::has_permit(transport, server, id) => {}
        ServerNotice::Rewritten(sealed) => {
            transport.servers[server].permit = Some(sealed);
            transport.organizer.on_rewritten(sealed.permit);
        }
        ServerNotice::Abdicate(id) => {
            match transport.organizer.on_abdicate_request(host, id, time) {
                AbdicateAnswer::Accepted(action) => {
                    placement::carry_out(transport, action, now);
                }
                AbdicateAnswer::Kept(why) => {
                    tracing::debug!("{id} stays at {name} for now: {why:?}");
                }
            }
        }
        // It comes with each renewal until the server has the pages.
        ServerNotice::Revoke { keep_pages, .. }
            if transport.servers[server].keep_pages == Some(keep_pages)
                || transport.organizer.used_pages_at(host) <= keep_pages => {}
        ServerNotice::Revoke {
            keep_pages, within, ..
        } => {
            tracing::warn!(
                "{name} takes memory back: {keep_pages} pages may stay after {within:.0?}"
            );
            transport.servers[server].keep_pages = Some(keep_pages);
            for action in transport.organizer.on_revocation(host, keep_pages, time) {
                placement::carry_out(transport, action, now);
            }
        }
        ServerNotice::Void { cause, .. } => {
            tracing::warn!("{name} has ended its permit: {cause:?}");
            permits::end_permit(transport, server, now);
        }
    }
}
