use super::*;
use crate::test_member::{member_at, runtime};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, channel};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// Counts the lines of the log.
#[derive(Default)]
struct Lines(AtomicU32);

/// The lines, for `tracing`.
struct Counter(Arc<Lines>);

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A control port in the clear, and the events of its peers.
async fn port() -> (SocketAddr, Receiver<Event>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (events, received) = channel(16);
    tokio::spawn(listen(listener, ControlLinks::in_clear(), events));
    (address, received)
}

#[test]
fn peers_that_send_garbage_do_not_fill_the_log() {
    let lines = Arc::new(Lines::default());
    // Beside it alone, a line that a thread of another test comes to first would stay off for all.
    let _second = tracing::Dispatch::new(Counter(Arc::default()));
    let _default = tracing::subscriber::set_default(Counter(Arc::clone(&lines)));
    runtime().block_on(async {
        let (address, _events) = port().await;
        for _ in 0..60 {
            let mut peer = TcpStream::connect(address).await.unwrap();
            let _ = peer.write_all(&[0xff; 64]).await;
            let _ = peer.read_to_end(&mut Vec::new()).await;
        }
    });
    let lines = lines.0.load(Ordering::Relaxed);
    assert!((1..40).contains(&lines), "{lines} lines");
}

/// A connection of a host that has introduced itself.
async fn host(address: SocketAddr, number: u64) -> TcpStream {
    let mut peer = TcpStream::connect(address).await.unwrap();
    let hello = frame::encode(&Hello::Host(member_at(number, address))).unwrap();
    peer.write_all(&hello).await.unwrap();
    peer
}

#[test]
fn one_address_has_a_part_of_the_connections() {
    let connected = runtime().block_on(async {
        let (address, mut events) = port().await;
        let mut connected = 0;
        let mut peers = Vec::new();
        for number in 0..MAX_OF_ADDRESS as u64 + 1 {
            peers.push(host(address, number).await);
            // The last one is closed instead.
            let mut byte = [0];
            tokio::select! {
                event = events.recv() => connected += usize::from(matches!(event, Some(Event::Connected { .. }))),
                read = peers[number as usize].read(&mut byte) => assert_eq!(read.unwrap_or(0), 0),
            }
        }
        connected
    });
    assert_eq!(connected, MAX_OF_ADDRESS);
}

#[test]
fn one_address_has_some_long_messages_under_way() {
    runtime().block_on(async {
        let (address, mut events) = port().await;
        let mut peers = Vec::new();
        for number in 0..=MAX_LONG as u64 {
            let mut peer = host(address, number).await;
            assert!(matches!(events.recv().await, Some(Event::Connected { .. })));
            // A message that does not come.
            peer.write_all(&(LONG as u32 + 1).to_le_bytes())
                .await
                .unwrap();
            peers.push(peer);
        }
        assert!(matches!(
            events.recv().await,
            Some(Event::Disconnected { .. })
        ));
        // Short ones have no such limit.
        let mut peer = host(address, 1000).await;
        assert!(matches!(events.recv().await, Some(Event::Connected { .. })));
        let short = frame::encode(&HostMessage::RequestReport).unwrap();
        peer.write_all(&short).await.unwrap();
        assert!(matches!(events.recv().await, Some(Event::FromHost { .. })));
    });
}
