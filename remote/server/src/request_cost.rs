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

/// The job of a control request: each passes over the permits, and a state over the objects, too.
pub(crate) fn job_of_control(service: &PageService, request: &ControlRequest) -> TransactionDesc {
    let permits = service.issuer.count();
    job_of_entries(match request {
        ControlRequest::Status => permits + service.objects.count(),
        _ => permits,
    })
}

/// The job of a request that is refused.
pub(crate) fn job_of_refusal() -> TransactionDesc {
    job_of_entries(0)
}

fn job_of_entries(entries: usize) -> TransactionDesc {
    TransactionDesc {
        op: Op::Read,
        bytes: 0,
        cost: Nanos(CONTROL_COST.0 + ENTRY_COST.0 * entries as u64),
        tag: 0,
    }
}
