//! What a request costs the server, as its schedule charges it.
//!
//! *Self-Paging in the Nemesis Operating System*, section 6.7: a client is charged for what its
//! requests take away from others, here on the processor and the link.

use crate::page_service::PageService;
use disk::atropos::TransactionDesc;
use disk::cost_model::{Op, OpCost};
use disk::time::Nanos;
use remote_wire::control::ControlRequest;
use remote_wire::{Header, Kind};
use wired::PAGE;

/// The cost of a request to the server: what it takes away from others on the processor and the
/// link (`cargo run --release -p selfpage-remote-server --example load` measures the rates that
/// this is fitted to).
const COST: OpCost = OpCost {
    base: Nanos(2_000),
    per_kib: Nanos(500),
};

/// The cost of a control request, decoding and reply included.
const CONTROL_COST: Nanos = Nanos(10_000);

/// The cost of an entry that a control request passes over.
const ENTRY_COST: Nanos = Nanos(10);

/// The cost of an object that a release ends: it leaves the tables of the capacity and of the server (90 ns of 1000, 780 of
/// 65,000).
const ENDED_COST: Nanos = Nanos(400);

/// What a page of a discard costs, in bytes moved.
const DISCARDED_BYTES: u32 = 64;

/// The job of a request of pages.
pub(crate) fn job_of(header: &Header) -> TransactionDesc {
    let pages = u32::from(header.pages);
    let (op, bytes) = match header.kind {
        Kind::Read => (Op::Read, pages * PAGE as u32),
        Kind::Write => (Op::Write, pages * PAGE as u32),
        _ => (Op::Write, pages * DISCARDED_BYTES),
    };
    TransactionDesc {
        op,
        bytes,
        cost: COST.cost(bytes),
        tag: 0,
    }
}

/// The job of a control request: each passes over the permits, a state over the objects, too, and a release ends those
/// of its permit.
pub(crate) fn job_of_control(service: &PageService, request: &ControlRequest) -> TransactionDesc {
    let more = match request {
        ControlRequest::Status => ENTRY_COST.0 * service.objects.count() as u64,
        ControlRequest::Release(permit) => {
            ENDED_COST.0 * service.issuer.capacity().objects_under(*permit) as u64
        }
        _ => 0,
    };
    let permits = ENTRY_COST.0 * service.issuer.count() as u64;
    job_of_cost(Nanos(CONTROL_COST.0 + permits + more))
}

/// The job of a request that is refused.
pub(crate) fn job_of_refusal() -> TransactionDesc {
    job_of_cost(CONTROL_COST)
}

fn job_of_cost(cost: Nanos) -> TransactionDesc {
    TransactionDesc {
        op: Op::Read,
        bytes: 0,
        cost,
        tag: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ObjectTable;
    use crate::page_memory::PageMemory;
    use crate::pending::PendingTable;
    use crate::permit_issuer::PermitIssuer;
    use disk::atropos::{DiskContract, Utilization};
    use remote_policy::capacity::{CapacityConfig, PermitRequest};
    use remote_policy::identity::{HostId, Incarnation, ObjectId, RequestId};
    use std::time::Duration;

    const SERVER: Incarnation = Incarnation::new(HostId(1), 1, 0);
    const CLIENT: Incarnation = Incarnation::new(HostId(2), 1, 0);

    fn service() -> PageService {
        let config = CapacityConfig {
            lend_above_pages: 0,
            revoke_below_pages: 0,
            lendable_time: Utilization::percent(90),
            lease: Duration::from_secs(60),
            notice: Duration::ZERO,
            deadline: Duration::ZERO,
        };
        let mut service = PageService {
            disk: None,
            memory: PageMemory::new(8, None).unwrap(),
            pending: PendingTable::new(),
            objects: ObjectTable::default(),
            issuer: PermitIssuer::new(config, SERVER, 64).unwrap(),
        };
        service.issuer.on_contact(CLIENT).unwrap();
        service
    }

    #[test]
    fn a_release_costs_by_the_objects_that_end() {
        let mut service = service();
        let epoch = service.issuer.capacity().epoch();
        let mut issue = |number| {
            let id = RequestId {
                client: CLIENT,
                number,
            };
            let qos = DiskContract::new(Nanos::ZERO, Nanos::millis(100)).with_slack();
            let request = PermitRequest {
                id,
                object: None,
                pages: 32,
                qos,
            };
            service.issuer.allocate(epoch, &request).unwrap().permit.id
        };
        let [with_objects, without] = [1, 2].map(&mut issue);
        for number in 0..32 {
            let client = CLIENT.host;
            let object = ObjectId { client, number };
            let capacity = service.issuer.capacity_mut();
            capacity
                .create(with_objects, object, Duration::ZERO)
                .unwrap();
        }
        let cost = |request| job_of_control(&service, &request).cost.0;
        let least = cost(ControlRequest::Renew);
        assert_eq!(cost(ControlRequest::Release(without)), least);
        let all = cost(ControlRequest::Release(with_objects));
        assert_eq!(all, least + 32 * ENDED_COST.0);
    }
}
