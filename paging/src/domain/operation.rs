//! An operation that the program requests of its domain.

use crate::entry::signals::SignalsBlocked;
use crate::pager::Pager;
use std::ops::Deref;

/// The pager for the time of an operation. The operation closes gates and holds locks for which a
/// fault of this very thread would wait for ever: signals are blocked meanwhile, so that no
/// handler of the program's touches a stretch in the middle.
pub(super) struct Operation<'a> {
    pager: &'a Pager,
    _blocked: SignalsBlocked,
}

impl<'a> Operation<'a> {
    pub(super) fn new(pager: &'a Pager) -> Self {
        Self {
            pager,
            _blocked: SignalsBlocked::new(),
        }
    }
}

impl Deref for Operation<'_> {
    type Target = Pager;

    fn deref(&self) -> &Pager {
        self.pager
    }
}
