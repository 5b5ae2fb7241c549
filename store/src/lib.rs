//! Where pages go: direct file, compressed RAM, a tier of both.
