//! A page of the model.

use space::Rights;

#[derive(Clone, Debug, PartialEq)]
pub enum Page {
    Free,
    Reserved,
    /// Contents are None while they may be zeros or what the page had before.
    Committed {
        rights: Rights,
        contents: Option<Vec<u8>>,
    },
    Mapped {
        rights: Rights,
        object: usize,
        page: usize,
        own: Option<Vec<u8>>,
        copy_on_write: bool,
    },
    /// Shareable memory of the space's own.
    Shareable {
        rights: Rights,
        contents: Vec<u8>,
    },
}

/// The page with other rights; none where it has none to change.
pub fn protected(page: &Page, to: Rights) -> Option<Page> {
    let mut page = page.clone();
    match &mut page {
        Page::Committed { rights, .. }
        | Page::Mapped { rights, .. }
        | Page::Shareable { rights, .. } => *rights = to,
        Page::Free | Page::Reserved => return None,
    }
    Some(page)
}
