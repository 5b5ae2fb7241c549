//! Stub.
use crate::atropos::{ClientId, Contract, Refusal};
use crate::model::Model;
use crate::swapfs::{Device, Extents};
use crate::time::Nanos;
use crate::trace::Reader;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
/// s
pub struct Settings { /// m
 pub model: Model, /// s
 pub spin: Duration }
/// s
pub enum Backing { /// s
 Swap(Extents), /// f
 File { /// f
 fd: OwnedFd, /// s
 size: u64, /// w
 writable: bool } }
/// i
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelId(pub u64);
/// n
pub enum News { /// c
 Closed(ChannelId), /// c
 CutOff { /// c
 channel: ChannelId, /// w
 why: String } }
/// f
#[derive(Default)]
pub struct Figures { /// c
 pub charged: Nanos, /// l
 pub lax: Nanos, /// t
 pub transactions: u64, /// b
 pub bytes: u64 }
/// u
pub struct Usd;
impl Usd {
 /// s
 pub fn start(_: Arc<Device>, _: Settings) -> Result<Self, String> { todo!() }
 /// n
 pub fn news_fd(&self) -> BorrowedFd<'_> { todo!() }
 /// n
 pub fn news(&self) -> Option<News> { todo!() }
 /// a
 pub fn admit(&self, _: Contract) -> Result<ClientId, Refusal> { todo!() }
 /// c
 pub fn change(&self, _: ClientId, _: Contract) -> Result<(), Refusal> { todo!() }
 /// b
 pub fn back(&self, _: ClientId, _: Backing, _: OwnedFd) { todo!() }
 /// r
 pub fn remove(&self, _: ClientId) { todo!() }
 /// a
 pub fn add_channel(&self, _: ClientId, _: iochannel::Server) -> ChannelId { todo!() }
 /// c
 pub fn close_channel(&self, _: ChannelId) { todo!() }
 /// f
 pub fn figures(&self, _: ClientId) -> Option<Figures> { todo!() }
 /// t
 pub fn trace(&self) -> &Reader { todo!() }
}
