//! Gives an unmodified program its pager.
