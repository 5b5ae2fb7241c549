//! Work of the transport's own, in the schedule beside its clients' transactions.
//!
//! A transport may have pages to move that no client asked for: copies that it makes again, say. Its owner admits a
//! client for them, with a contract of its own, and the scheduler decides when a piece of the work is started. Rule:
//! one piece is queued or in flight at a time, so a client's transaction waits for one piece at most.
//!
//! Where the contract has x, the work is done in spare time, too. That is stricter than slack: many transactions are in
//! flight at once, so slack is there even while a client waits for its one read. Spare time is that in which no client
//! has a transaction, nor had one for [`TURNAROUND`]. Pieces of it are of a client with slack alone, as are those that
//! a client's request waits for.

use super::transport::Transport;
use crate::atropos::{
    AdmissionError, Atropos, ClientId, DiskContract, InFlightId, TransactionDesc,
};
use crate::cost_model::{CostModel, Op};
use crate::time::{Nanos, Time};
use crate::trace::Writer;

/// How soon a client that works through its pages has its next transaction: `poll_policy` has the measurement.
const TURNAROUND: Nanos = Nanos::micros(200);

/// The tag of a piece: no client has so many transactions.
pub(super) const BACKGROUND_TAG: u64 = u64::MAX;

/// A piece of a transport's own work: the bytes that it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundWork {
    /// Bytes read.
    pub read: u32,
    /// Bytes written.
    pub written: u32,
    /// A client's request waits for it: it need not wait for spare time.
    pub is_awaited: bool,
}

/// The client of a transport's own work, and that of the same in spare time.
#[derive(Debug)]
pub(super) struct Background {
    pub client: ClientId,
    spare: Option<ClientId>,
    piece: Piece,
    /// When a client's transaction was in flight last, arrived or completed.
    busy: Time,
}

#[derive(Debug)]
enum Piece {
    None,
    Queued,
    InFlight { ticket: InFlightId, started: Time },
}

impl Background {
    /// Admits the clients of the work.
    pub fn admit(
        atropos: &mut Atropos<Writer>,
        contract: DiskContract,
    ) -> Result<Self, AdmissionError> {
        let slack_alone = DiskContract {
            slice: Nanos::ZERO,
            ..contract
        };
        let promised = DiskContract {
            extra: false,
            ..contract
        };
        let client = atropos.admit(promised)?;
        let spare = contract.extra.then(|| atropos.admit(slack_alone));
        Ok(Self {
            client,
            spare: spare.transpose()?,
            piece: Piece::None,
            busy: Time(0),
        })
    }

    /// A client's transaction has arrived or completed: the time is not spare.
    pub fn note_client(&mut self, now: Time) {
        self.busy = now;
    }

    /// Queues the next piece of work, if there is one.
    pub fn queue(
        &mut self,
        now: Time,
        atropos: &mut Atropos<Writer>,
        transport: &mut dyn Transport,
        model: &CostModel,
    ) {
        let is_in_flight = matches!(self.piece, Piece::InFlight { .. });
        // The piece itself is not a client's.
        if atropos.in_flight() > usize::from(is_in_flight) {
            self.busy = now;
        }
        let Piece::None = self.piece else {
            return;
        };
        let Some(work) = transport.background() else {
            return;
        };
        let BackgroundWork { read, written, .. } = work;
        let job = TransactionDesc {
            op: Op::Write,
            bytes: read + written,
            cost: model.cost(Op::Read, read) + model.cost(Op::Write, written),
            tag: BACKGROUND_TAG,
        };
        let is_spare = work.is_awaited || now >= self.busy + TURNAROUND;
        let spare = self.spare.filter(|_| is_spare);
        self.piece = Piece::Queued;
        atropos.submit(now, spare.unwrap_or(self.client), job);
    }

    /// Starts the piece that is queued.
    pub fn start(&mut self, now: Time, ticket: InFlightId, transport: &mut dyn Transport) {
        transport.start_background(now);
        self.piece = Piece::InFlight {
            ticket,
            started: now,
        };
    }

    /// Completes the piece in flight, if it has ended. Returns true if it has.
    pub fn complete(
        &mut self,
        now: Time,
        atropos: &mut Atropos<Writer>,
        transport: &mut dyn Transport,
    ) -> bool {
        let Piece::InFlight { ticket, started } = self.piece else {
            return false;
        };
        let has_ended = !transport.is_background_in_flight();
        if has_ended {
            self.piece = Piece::None;
            atropos.complete(now, ticket, now - started);
        }
        has_ended
    }
}
