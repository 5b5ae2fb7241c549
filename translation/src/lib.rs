//! The only code that speaks userfaultfd, pagemap and madvise.
