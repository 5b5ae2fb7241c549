//! The moves of a client's copies, by the policy's coordinator.

use super::{RunningMove, SimulatedClient};
use crate::context::Context;
use crate::message::HostMessage;
use remote_policy::identity::{HostId, ObjectId};
use remote_policy::migration::{Generation, Move, MoveMessage, MoveOutcome, MovePhase};
use remote_policy::permit::PermitId;
use std::time::Duration;

/// Silence after which the message that a move waits for is sent again: above the time that a
/// full link takes for an object's pages.
const SILENCE: Duration = Duration::from_secs(2);

impl SimulatedClient {
    pub(super) fn begin_move(
        &mut self,
        object: ObjectId,
        from: HostId,
        permit: PermitId,
        ctx: &mut Context,
    ) {
        let bound = self.objects.copy_at(object, from);
        let bound = bound.map(|copy| copy.generation).unwrap_or_default();
        let latest = self.objects.latest(object);
        let running = RunningMove {
            coordinator: Move::new(from, permit.server, bound, latest),
            from,
            permit,
            last: ctx.now,
        };
        self.moves.insert(object, running);
        self.send_move(object, ctx);
    }

    /// Sends the message that the move waits to be answered.
    fn send_move(&mut self, object: ObjectId, ctx: &mut Context) {
        let Some(running) = self.moves.get_mut(&object) else {
            return;
        };
        let Some(send) = running.coordinator.message() else {
            return;
        };
        running.last = ctx.now;
        let pages = self.objects.pages_of(object);
        let message = match send.message {
            MoveMessage::Create { .. } => {
                HostMessage::MoveTo(object, running.permit, pages, send.message)
            }
            message => HostMessage::Move(object, message),
        };
        ctx.send_to(self.node, send.to, message);
    }

    pub(super) fn on_move_message(
        &mut self,
        server: HostId,
        object: ObjectId,
        message: MoveMessage,
        ctx: &mut Context,
    ) {
        let Some(running) = self.moves.get_mut(&object) else {
            return;
        };
        running.last = ctx.now;
        let before = running.coordinator.phase();
        running.coordinator.on_message(server, message);
        self.after_move_event(object, before, ctx);
    }

    fn after_move_event(&mut self, object: ObjectId, before: MovePhase, ctx: &mut Context) {
        let Some(running) = self.moves.get(&object) else {
            return;
        };
        let phase = running.coordinator.phase();
        if phase == MovePhase::Ended {
            self.end_move(object, ctx);
        } else if phase != before {
            self.send_move(object, ctx);
        }
    }

    fn end_move(&mut self, object: ObjectId, ctx: &mut Context) {
        let Some(running) = self.moves.remove(&object) else {
            return;
        };
        let latest = running.coordinator.latest();
        let outcome = running.coordinator.outcome();
        let has_arrived = outcome == Some(MoveOutcome::Moved);
        let arrived = has_arrived.then(|| (running.permit, Generation(latest.0 - 1)));
        self.objects
            .on_move_ended(object, running.from, latest, arrived);
        self.organizer.on_move_ended(object, has_arrived);
        if has_arrived {
            ctx.pages.moved_objects += 1;
            ctx.pages.moved_pages += self.objects.pages_of(object);
        } else {
            ctx.pages.kept_moves += 1;
        }
    }

    /// A server is gone: moves from it and to it end as their coordinators decide.
    pub(super) fn end_moves_at(&mut self, host: HostId, ctx: &mut Context) {
        let is_at = |running: &RunningMove| running.from == host || running.permit.server == host;
        let moves = self.moves.iter().filter(|(_, running)| is_at(running));
        let moves: Vec<_> = moves.map(|(object, _)| *object).collect();
        for object in moves {
            if let Some(running) = self.moves.get_mut(&object) {
                let before = running.coordinator.phase();
                running.coordinator.on_died(host);
                self.after_move_event(object, before, ctx);
            }
        }
    }

    /// Sends again what was not answered.
    pub(super) fn resume_moves(&mut self, ctx: &mut Context) {
        let now = ctx.now;
        let is_silent = |running: &RunningMove| now >= running.last + SILENCE;
        let silent = self.moves.iter().filter(|(_, running)| is_silent(running));
        let silent: Vec<_> = silent.map(|(object, _)| *object).collect();
        for object in silent {
            self.send_move(object, ctx);
        }
    }

    /// A client that moved is done once each of its copies is at a server near it.
    pub(super) fn check_near(&mut self, ctx: &mut Context) {
        if self.moved.is_none() {
            return;
        }
        let topology = &ctx.network.topology;
        let site = topology.site_of(topology.rack_of(self.node));
        let is_near = |host: HostId| {
            let node = topology.node(host);
            topology.site_of(topology.rack_of(node)) == site
        };
        if self.objects.are_near(is_near) && self.moves.is_empty() {
            self.moved = None;
            ctx.last_near = ctx.now;
        }
    }
}
