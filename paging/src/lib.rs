//! Self-paging for a Linux program: domains, stretches, stretch drivers.
