//! The process of an object client, and its parent.

use crate::page_table::PageTable;
use crate::transport::{ObjectTransport, PATIENCE};
use disk::usd::Transport;
use iochannel::Doorbell;
use objectstore::{ObjectError, ObjectStore, ObjectUrl, OpenError};
use pageclient::{KeptHeader, PageClient, PagingFile, ServeError, Serving, start_usd};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use wired::{PAGE, WiredMemory};

/// How long the store may take for each of three operations before the program is started: `run` waits for 15 s.
const FIRST_PATIENCE: Duration = Duration::from_secs(4);

/// What a client is started for.
#[derive(Clone, Debug)]
pub struct ObjectConfig {
    /// The store.
    pub url: ObjectUrl,
    /// Bytes of pages in the store: of the space, where there is no larger paging file.
    pub size: u64,
    /// Where pages are that the store does not take.
    pub paging_file: Option<PagingFile>,
}

impl ObjectConfig {
    /// Bytes of the space.
    fn space(&self) -> u64 {
        let file = self.paging_file.as_ref().map_or(0, |file| file.size);
        file.max(self.size)
    }
}

/// Why a client cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ObjectClientError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store does not do what is asked of it.
    #[error(transparent)]
    Store(Box<ObjectError>),
    /// The store does not know its client.
    #[error("{why}; its credentials: {credentials}")]
    Denied {
        /// What it said.
        why: Box<ObjectError>,
        /// Where they come from.
        credentials: &'static str,
    },
    /// No memory for the table of pages.
    #[error("cannot get memory for the table of pages: {0}")]
    Memory(std::io::Error),
    /// The process.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// What outlives the processes of a client.
struct ObjectClient<'a> {
    config: &'a ObjectConfig,
    table: Arc<PageTable>,
    doorbell: Doorbell,
    /// Which pages the paging file has.
    places: Option<Arc<WiredMemory>>,
}

impl<'a> ObjectClient<'a> {
    fn new(config: &'a ObjectConfig) -> Result<Self, ObjectClientError> {
        let pages = config.space().div_ceil(PAGE as u64) as usize;
        let places = config.paging_file.as_ref();
        let places = places.map(|file| file.new_places(config.size));
        let thread = |why: &dyn std::fmt::Display| ServeError::Thread(why.to_string());
        Ok(Self {
            config,
            table: Arc::new(PageTable::new(pages).map_err(ObjectClientError::Memory)?),
            doorbell: Doorbell::new().map_err(|why| thread(&why))?,
            places: places.transpose().map_err(ObjectClientError::Memory)?,
        })
    }
}

/// Serves the supervisor at `socket` until it is gone, in another process, and in a further one where that one ends.
/// `begin` is called at the start of each process, and of this one.
///
/// # Errors
/// [`ObjectClientError`], of this process, which has one thread.
pub fn keep(
    config: &ObjectConfig,
    socket: &OwnedFd,
    begin: impl Fn(),
) -> Result<bool, ObjectClientError> {
    pageclient::keep(|| ObjectClient::new(config), socket, begin)
}

/// Serves channels until the supervisor at `socket` is gone.
///
/// # Errors
/// [`ObjectClientError`].
pub fn run(config: &ObjectConfig, socket: &OwnedFd) -> Result<(), ObjectClientError> {
    pageclient::serve(&ObjectClient::new(config)?, socket)
}

impl PageClient for ObjectClient<'_> {
    const NAME: &'static str = "object client";
    type Error = ObjectClientError;

    fn header(&self) -> KeptHeader<'_> {
        self.table.kept_header()
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    fn size(&self) -> u64 {
        self.config.space()
    }

    fn on_end(&self) {
        self.table.end();
    }

    fn start(&self) -> Result<Serving, ObjectClientError> {
        let store = ObjectStore::open(&self.config.url, PATIENCE)?;
        if self.header().served() == 0 {
            let first = store.with_patience(FIRST_PATIENCE);
            // Beside the folder, which is deleted at the end alone.
            let folder = self.table.folder();
            let object = format!("{}-check", folder.trim_end_matches('/'));
            let failed = |why: ObjectError| match why.is_denied() {
                true => ObjectClientError::Denied {
                    why: Box::new(why),
                    credentials: self.config.url.credentials(),
                },
                false => ObjectClientError::Store(Box::new(why)),
            };
            first.wait(first.check(&object)).map_err(failed)?;
        }
        let starts = self.header().count_start();
        let call = |what| move |errno| ServeError::Call { what, errno };
        let transport = ObjectTransport::new(store, Arc::clone(&self.table));
        let transport = transport.map_err(call("make an eventfd"))?;
        let transport: Box<dyn Transport> = match (&self.config.paging_file, &self.places) {
            (Some(file), Some(places)) => {
                let wrapped = file.wrap(transport, self.config.size, places);
                wrapped.map_err(call("take the paging file"))?
            }
            _ => Box::new(transport),
        };
        Ok(Serving {
            usd: start_usd(transport)?,
            first_channel: (starts << 32) + 1,
            connected: 1,
            named: 1,
        })
    }
}
