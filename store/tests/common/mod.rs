//! Helpers for the store's tests: pages with known contents, and simple use of a channel.
#![allow(dead_code)]

pub mod model;
pub mod system;

pub use fastrand::Rng;

use store::{
    Channel, Checksum, Completion, PageHandle, ReadPage, SharedStore, Store, StoreConfig,
    StoreError, Submitted, Wait, WritePage,
};

pub const PAGE: usize = 4096;

/// A page, aligned as stores require.
#[repr(C, align(4096))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Page(pub [u8; PAGE]);

impl Page {
    pub fn sum(&self) -> Checksum {
        Checksum::of(&self.0)
    }
}

/// The page of `seed`: one in eight is one repeated value, one in eight is noise, the others
/// compress to something between.
pub fn page(seed: u64) -> Page {
    let mut rng = Rng::with_seed(seed);
    let mut page = Page([0; PAGE]);
    let kind = rng.u64(..8);
    if kind == 0 {
        page.0
            .chunks_mut(8)
            .for_each(|word| word.copy_from_slice(&(seed + 1).to_le_bytes()));
        return page;
    }
    let noisy = if kind == 1 {
        PAGE
    } else {
        rng.usize(..PAGE * 2 / 3)
    };
    for chunk in page.0[..noisy].chunks_mut(8) {
        let bytes = rng.u64(..).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    page.0[PAGE - 16..].copy_from_slice(&[seed.to_le_bytes(), (!seed).to_le_bytes()].concat());
    page
}

pub fn make(config: &str, holders: u16) -> SharedStore {
    let config: StoreConfig = config.parse().unwrap();
    SharedStore::create(&config, holders).unwrap().0
}

/// Writes pages, and waits for all.
pub fn write(channel: &mut dyn Channel, pages: &[Page]) -> Vec<Result<PageHandle, StoreError>> {
    let writes: Vec<WritePage> = pages
        .iter()
        .enumerate()
        .map(|(at, page)| WritePage {
            from: page.0.as_ptr(),
            sum: page.sum(),
            token: at as u64,
        })
        .collect();
    channel.submit_write(&writes).unwrap();
    let mut results = vec![None; pages.len()];
    for _ in pages {
        let Completion { token, result } = channel.complete(Wait::Yes).unwrap();
        let result = result.map(|handle| handle.unwrap());
        assert!(
            results[token as usize].replace(result).is_none(),
            "a token returned twice"
        );
    }
    assert_eq!(channel.pending(), 0);
    results.into_iter().map(Option::unwrap).collect()
}

pub fn write_one(channel: &mut dyn Channel, page: &Page) -> Result<PageHandle, StoreError> {
    write(channel, std::slice::from_ref(page)).remove(0)
}

pub fn read_page(handle: PageHandle, into: &mut Page, token: u64) -> ReadPage {
    ReadPage {
        handle,
        into: into.0.as_mut_ptr(),
        token,
    }
}

pub fn read(channel: &mut dyn Channel, handle: PageHandle) -> Result<Page, StoreError> {
    let mut page = Box::new(Page([0xa5; PAGE]));
    if channel.submit_read(read_page(handle, &mut page, 77))? == Submitted::Pending {
        let Completion { token, result } = channel.complete(Wait::Yes).unwrap();
        assert_eq!(token, 77);
        assert_eq!(result?, None);
    }
    Ok(*page)
}

/// Pages in the store, in any tier.
pub fn pages(store: &SharedStore) -> u64 {
    let usage = store.usage();
    usage.pages_ram + usage.pages_filled + usage.pages_disk
}
